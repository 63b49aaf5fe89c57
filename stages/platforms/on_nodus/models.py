"""Where a Job finds its model: on the Volume that keeps trained ones, or on one imported from the hub."""

import time
from datetime import datetime
from typing import Any

from stages.command import ParityError
from stages.jobs import JobModel
from stages.platforms.on_nodus import answers
from stages.platforms.on_nodus.client import first_line

WEIGHTS = "model.safetensors"
IMPORT_SECONDS = 1800.0


def label(digest: str) -> str:
    """A digest as a label's value, which may have 63 characters."""
    return digest[:63]


def kept(nodus: Any, model: JobModel) -> str | None:
    """The digest under which the Volume keeps `model`; None where no Job has left it there.

    A Volume's content cannot be listed without its command line client, so the Job that trained a model carries its
    digest as a label.
    """
    digest = model.sha256.get(WEIGHTS)
    if digest is None:
        return None
    found = answers.jobs(nodus, {"parity-model": label(digest)})
    return digest if any(one.status.phase == "Succeeded" for one in found) else None


def committed(nodus: Any, volume: str, since: str) -> bool:
    """Whether anything was put on the Volume since then: a Job goes well even where its model could not be kept."""
    moment = answers.volume(nodus, volume).committed
    return moment is not None and datetime.fromisoformat(moment) >= datetime.fromisoformat(since)


def remember(nodus: Any, job: str, digest: str) -> None:
    """Put the digest of the model that Job `job` has trained and kept on the Job."""
    nodus.api.patch("Job", job, {"metadata": {"labels": {"parity-model": label(digest)}}})


def volume_name(model: JobModel) -> str:
    title = model.id.split("/")[1].lower().translate(str.maketrans("._", "--"))
    return f"parity-{title[:40]}-{model.revision[:12].lower()}"


def cached(nodus: Any, model: JobModel) -> str | None:
    """Whether the hub's model lies on its Volume by now; None for a model that is not the hub's."""
    if model.source != "hub":
        return None
    return "warm" if answers.volume(nodus, volume_name(model)).phase == "Ready" else "cold"


def imported(nodus: Any, model: JobModel) -> Any:
    """The Volume with the hub's model at its revision, imported once."""
    name = volume_name(model)
    volume = nodus.Volume.import_from(name, huggingface=model.id, revision=model.revision)
    until, said = time.monotonic() + IMPORT_SECONDS, False
    while (status := answers.volume(nodus, name)).phase != "Ready":
        if status.phase == "Failed" or time.monotonic() > until:
            why = (
                f"{first_line(status.reason or 'it takes too long')}: {first_line(status.message or 'still not there')}"
            )
            raise ParityError(f"nodus: importing {model.id} into Volume {name}: {why}; delete the Volume and run again")
        if not said:
            print(f"nodus: importing {model.id} into Volume {name}", flush=True)
            said = True
        time.sleep(0.5)
    return volume
