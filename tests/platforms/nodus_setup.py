"""What the Nodus tests share: an emulator, a small job, and a worker that is done in a moment."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stages import platforms
from stages.command import die_with_parent
from stages.jobs import build
from stages.platforms import Delivery
from stages.platforms.common.source import worker_files
from stages.platforms.nodus import Settings
from stages.protocol import Protocol
from tests.platforms import budget

REPEATS = itertools.count(1)  # every job is another
ROOT = Path(__file__).resolve().parent.parent.parent
# Stands in for the trainer: a checkpoint per step, resumed from the newest, and an output that is sealed.
# It imports nothing of the project's, which would take it longer than all the rest.
LIGHT = """
import hashlib, json, os, sys, time
from pathlib import Path

given = Path(sys.argv[1])
job_id = hashlib.sha256((given / "job.json").read_bytes()).hexdigest()
out, state = Path(os.environ["NODUS_OUTPUT_DIR"]), Path(os.environ["NODUS_STATE_DIR"])
plan = {"steps": 3, "pause": 0.02} | json.loads(Path("plan.json").read_text())
steps = plan["steps"]
first = max([int(path.name) for path in state.iterdir()] or [0]) + 1
for step in range(first, steps + 1):
    time.sleep(plan["pause"])
    (state / str(step)).write_text("x")
    print(f"step {step}/{steps} first {first}", flush=True)
if plan.get("exit"):
    print("error: the light worker was told to fail", flush=True)
    sys.exit(plan["exit"])
(out / "result.json").write_text(json.dumps({"job": job_id, "first": first}))
if json.loads((given / "job.json").read_text())["training"]:
    (out / "model").mkdir()
    with (out / "model" / "model.safetensors").open("wb") as stream:
        block = os.urandom(plan["mib"] << 20) if "mib" in plan else b"weights"
        for _ in range(plan.get("blocks", 1)):
            stream.write(block)
    (out / "model" / "config.json").write_text("{}")
else:
    assert (given / "model" / "model.safetensors").is_file() or os.environ.get("PARITY_MIRROR")
files = {}
for path in out.rglob("*"):
    if path.is_file():
        digest = hashlib.file_digest(path.open("rb"), "sha256").hexdigest()
        files[str(path.relative_to(out))] = {"bytes": path.stat().st_size, "sha256": digest}
(out / "manifest.json").write_text(json.dumps({"version": 1, "job": job_id, "files": files}))
"""


def settings(**changes: Any) -> Settings:
    base = {"project": None, "timeout": "1h", "models": "parity-models", "final_charge_seconds": 20}
    return Settings.model_validate(base | changes)


class Emulator:
    """The emulator as a process of the test's, so that it outlives a submit side that is killed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "emulators.nodus", "--folder", str(self.folder)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent, cwd=ROOT
        )
        assert self.process.stdout is not None
        self.environment: dict[str, str | None] = json.loads(self.process.stdout.readline())["environment"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=10)

    def fault(self, **faults: Any) -> None:
        """Have faults strike; `_` in a name stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in faults.items()}
        fresh = self.folder / "faults.new"
        fresh.write_text(json.dumps(named))
        fresh.replace(self.folder / "faults.json")

    def faults_left(self) -> dict[str, Any]:
        left: dict[str, Any] = json.loads((self.folder / "faults.json").read_text())
        return left

    @property
    def requests(self) -> list[dict[str, Any]]:
        path = self.folder / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def sent(self, method: str, path_end: str) -> list[dict[str, Any]]:
        return [r for r in self.requests if r["method"] == method and r["path"].endswith(path_end)]

    @property
    def created(self) -> list[dict[str, Any]]:
        """Bodies of the Jobs that were admitted."""
        posts = [r for r in self.sent("POST", "/jobs") if "dryRun" not in r["query"] and r["code"] == 201]
        return [r["body"] for r in posts]

    def objects(self, kind: str) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in sorted((self.folder / "objects" / kind).glob("*/*.json"))]

    @property
    def running(self) -> list[int]:
        """Processes that have something of the emulator's jobs in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if str(self.folder / "jobs").encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found


@contextlib.contextmanager
def pointed(environment: dict[str, str | None]) -> Iterator[None]:
    before = dict(os.environ)
    try:
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def model_folder(folder: Path, content: bytes = b"base") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_text("{}")
    return folder


def case(protocol: Protocol, folder: Path, *, seed: int | None = 11, repeat: int = 1, model: Path | None = None) -> Any:
    rows = folder / "sft-train.jsonl"
    rows.parent.mkdir(parents=True, exist_ok=True)
    rows.write_text('{"completion":" positive","prompt":"fine"}\n')
    chosen = model or model_folder(folder / "base")
    return build(protocol, "sft", inputs=[rows], model=chosen, seed=seed, repeat=repeat), [rows], chosen


def light_files(folder: Path, **plan: Any) -> dict[str, Path]:
    """The worker's code as it is shipped, the worker itself replaced by the light one, which follows `plan`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "worker.py").write_text(LIGHT)
    (folder / "plan.json").write_text(json.dumps(plan))
    return worker_files() | {"stages/worker.py": folder / "worker.py", "plan.json": folder / "plan.json"}


@contextlib.contextmanager
def delivered(
    state: Path, parts: Any, chosen: Settings | None = None, *, cap: str = "1.00", detach: bool = False
) -> Iterator[Delivery]:
    job, inputs, model = parts
    context = budget.context("nodus", state, cap=cap, detach=detach)
    with platforms.run("nodus", chosen or settings(), context, job, inputs, model, state) as delivery:
        yield delivery


def jobs_of(emulator: Emulator, parts: Any) -> list[dict[str, Any]]:
    return [o for o in emulator.objects("Job") if o["metadata"]["labels"]["parity-job"] == parts[0].id[:63]]


def wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
