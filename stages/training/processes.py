"""Training in several processes of one machine, one GPU each: `accelerate launch` of this module.

Each process is the worker's own training over again; DDP gives all of them the same gradients (gloo on CPU, nccl on
GPUs). Process 0 alone writes.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from stages import command
from stages.command import ParityError, die_with_parent
from stages.evidence.digests import read_json, write_json
from stages.jobs import PROJECT, Job, read_job

RESULT, LOG, LOGS = "processes.json", "processes.log", "processes"
WORKER = "PARITY_WORKER"  # its process id


def launch(job: Job, folder: Path, out: Path, state: Path, device: str) -> dict[str, Any]:
    """Train in `job.training.processes` processes; raises ParityError with the line that the first to fail has said."""
    assert job.training is not None
    count = job.training.processes
    check_devices(count, device)
    state.mkdir(parents=True, exist_ok=True)
    (state / RESULT).unlink(missing_ok=True)
    # A file of ours, since the user's own accelerate configuration would be read otherwise.
    settings: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU"}
    settings |= {"num_machines": 1, "num_processes": count, "main_process_port": 0, "mixed_precision": "no"}
    write_json(state / "accelerate.json", settings)
    line = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(state / "accelerate.json")]
    line += ["--log_dir", str(state / LOGS)]  # else in the temporary folder, where it would stay
    line += ["-m", "stages.training.processes", *map(str, (folder, out, state)), device]
    environment = os.environ | {"PYTHONPATH": str(PROJECT), WORKER: str(os.getpid())}
    with (state / LOG).open("w") as log:
        status = subprocess.Popen(line, env=environment, stderr=log, preexec_fn=die_with_parent).wait()
    shutil.rmtree(state / LOGS, ignore_errors=True)
    if status:
        raise ParityError(ended_badly(count, (state / LOG).read_text(errors="replace")))
    return dict(read_json(state / RESULT))


def check_devices(count: int, device: str) -> None:
    import torch

    if device == "cuda" and (found := torch.cuda.device_count()) < count:
        raise ParityError(f"train.processes: {count} need a GPU each, this machine has {found}")


def ended_badly(count: int, log: str) -> str:
    """What went wrong, from what the processes and their launcher wrote to stderr."""
    if said := re.findall(r"^(?:\[rank\d+\]:)?\s*error: (.*)$", log, re.MULTILINE):
        return str(said[0])
    if killed := re.search(r"exitcode\s*: -(\d+)", log):
        name = signal.Signals(int(killed[1])).name
        return f"one of the {count} training processes was ended by {name} (out of memory?). Run it again to resume"
    print(log, file=sys.stderr)
    return f"the {count} training processes ended early; their messages stand above"


def orphaned() -> bool:
    """Whether the launcher, the worker's child, ended before this process had asked to end with it."""
    status = Path(f"/proc/{os.getppid()}/status")
    return not status.is_file() or f"\nPPid:\t{os.environ[WORKER]}\n" not in status.read_text()


def main() -> None:
    """One of the processes, told by accelerate which one it is."""
    die_with_parent()  # of the launcher; it would not hear of the worker's own end
    if orphaned():
        raise ParityError("the worker ended before its processes began")
    import torch

    from stages.worker import train_here

    folder, out, state = map(Path, sys.argv[1:4])
    rank, device = int(os.environ["LOCAL_RANK"]), sys.argv[4]
    if rank:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - process 0 speaks for all
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:  # accelerate calls a process's device cpu:0, and torch knows no such place to load a checkpoint to
        torch.serialization.register_package(
            0, lambda _: None, lambda storage, place: storage if place.startswith("cpu:") else None
        )
    result = train_here(read_job(folder), folder, out, state, device)
    if rank == 0:
        write_json(state / RESULT, result)


if __name__ == "__main__":
    command.run(main)
