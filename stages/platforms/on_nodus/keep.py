"""Runs inside a Job, beside the worker: a Volume keeps trained models under their weights' digest.

    python keep.py store    after training: put the output's model on the Volume and commit it
    python keep.py link SHA before scoring: let the job folder have the model of that digest

It comes with the uploaded code and needs nothing but Python.
"""

import hashlib
import http.client
import os
import shutil
import socket
import sys
from pathlib import Path

VOLUME = Path(os.environ.get("PARITY_MODELS", ""))


def store() -> None:
    model = Path(os.environ["NODUS_OUTPUT_DIR"]) / "model"
    with (model / "model.safetensors").open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if not (VOLUME / digest).is_dir():
        partial = VOLUME / f".{digest}.{os.environ['NODUS_ATTEMPT']}"
        shutil.copytree(model, partial)
        partial.rename(VOLUME / digest)
    commit(os.environ["PARITY_MODELS_VOLUME"])


def commit(volume: str) -> None:
    """Publish what this attempt wrote, through the socket that a Job reaches Nodus by."""
    connection = http.client.HTTPConnection("nodus")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(os.environ["NODUS_RUNTIME_SOCKET"])
    connection.request("POST", f"/_nodus/v1/volumes/{volume}/commit")
    answer = connection.getresponse()
    if answer.status >= 400:
        raise OSError(f"committing {volume} was answered with HTTP {answer.status}")


def link(digest: str) -> None:
    if not (VOLUME / digest / "model.safetensors").is_file():
        sys.exit(f"error: the Volume keeps no model {digest:.12}; set nodus.models to null to upload it")
    Path("job/model").symlink_to(VOLUME / digest)


if __name__ == "__main__":
    if sys.argv[1] == "link":
        link(sys.argv[2])
    else:
        try:
            store()
        except (OSError, KeyError) as error:  # a training that is paid for must not fail for this
            print(f"the model was not kept on the Volume: {error}", flush=True)
