"""The submitting side as a process that a test may kill: the shared driver on platform `modal`.

    python -m tests.platforms.modal_submit STATE JOB [--kill POINT]

JOB holds `job.json`, `inputs/` and `model/`. Prints the receipt and the digests of what came back as the last line.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from stages import command, platforms
from stages.evidence.digests import sha256_file
from stages.jobs import read_job
from stages.platforms import modal
from stages.platforms.common import source
from stages.platforms.common.progress import Echo
from stages.platforms.on_modal import store
from stages.validation import validate
from tests.platforms import budget
from tests.platforms.modal_kit import SETTINGS, WORKER
from tests.platforms.timed import peak_kib, timed


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_step(self: Echo, line: str) -> None:
    print(line, flush=True)
    if line.startswith("step 2/"):
        die()


def arm(point: str | None) -> None:
    """End this process without a word at a point of its way."""
    import modal as sdk

    downloads = []
    download = store.download

    def die_at_second(url: str, length: int) -> bytes:
        downloads.append(url)
        return die() if len(downloads) == 2 else download(url, length)

    targets: dict[str, tuple[Any, str, Any]] = {
        "before submission": (sdk.Function, "spawn", die),
        "before the handle": (platforms, "write_json", die),
        "queued": (modal, "follow", die),
        "running": (Echo, "__call__", die_at_step),
        "fetching": (store, "download", die_at_second),
        "after": (modal.Platform, "receipt", die),
    }
    if point:
        setattr(*targets[point])


def submit(
    state: Path, folder: Path, settings: dict[str, Any], cap: str = "1.00", *, detach: bool = False
) -> dict[str, Any]:
    job = read_job(folder)
    inputs = [folder / "inputs" / name for name in job.inputs]
    checked = validate(modal.Settings, SETTINGS | settings, "params.yaml", ("modal",))
    context = budget.context("modal", state, cap=cap, detach=detach)
    model = folder / "model" if job.model.source == "folder" else None
    with platforms.run("modal", checked, context, job, inputs, model, state) as delivery:
        files = {
            str(path.relative_to(delivery.out)): sha256_file(path) for path in delivery.out.rglob("*") if path.is_file()
        }
        result = json.loads((delivery.out / "result.json").read_text())
        return {"receipt": delivery.receipt.model_dump(), "files": files, "result": result}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("state", type=Path)
    arguments.add_argument("job", type=Path)
    arguments.add_argument("--kill")
    arguments.add_argument("--settings", type=json.loads, default={})
    arguments.add_argument("--cap", default="1.00")
    arguments.add_argument("--detach", action="store_true")
    arguments.add_argument("--real", action="store_true", help="with the worker itself, not its stand-in")
    given = arguments.parse_args()
    if not given.real:
        stand_in = source.worker_files() | {"stages/worker.py": WORKER}
        setattr(modal, "worker_files", lambda: stand_in)  # noqa: B010
    arm(given.kill)
    seconds = {name: timed(modal.Platform, name) for name in ("submit", "fetch")}
    seconds["verify"] = timed(platforms, "verify")
    found = submit(given.state, given.job, given.settings, given.cap, detach=given.detach)
    found |= {f"{name}_seconds": taken[0] for name, taken in seconds.items() if taken}
    found["heavy"] = sorted({"torch", "transformers", "trl"} & sys.modules.keys())
    found["peak_mib"] = peak_kib() // 1024
    print(json.dumps(found))


if __name__ == "__main__":
    command.run(main)
