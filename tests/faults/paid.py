"""The submit side of a job on Nodus whose every submission stands on a ledger, as a process that a test can kill:

    python -m tests.faults.paid STATE FILES LIGHT

The worker is the stand-in of the platform's own tests; LIGHT/wanted.json says what it does.
"""

import json
import sys
from pathlib import Path

from stages import command, platforms
from stages.delivery import budgeted
from stages.evidence.digests import sha256_file
from stages.platforms import nodus as module
from stages.protocol import read_params, read_protocol
from tests.platforms.nodus_setup import case, light_files, settings


def main() -> None:
    state, files, light = (Path(text) for text in sys.argv[1:])
    plan = json.loads((light / "wanted.json").read_text())
    repeat = plan.pop("repeat")
    module.worker_files = lambda: light_files(light, **plan)  # type: ignore[attr-defined]
    params = read_params()[0].model_copy(update={"platform": "nodus"})
    job, inputs, model = case(read_protocol("embedded"), files, repeat=repeat)
    context = budgeted(params, "train", state)
    with platforms.run("nodus", settings(), context, job, inputs, model, state) as delivery:
        found = {str(path.relative_to(delivery.out)): sha256_file(path) for path in delivery.out.rglob("*.*")}
        print(json.dumps({"receipt": delivery.receipt.model_dump(), "files": found}))


if __name__ == "__main__":
    command.run(main)
