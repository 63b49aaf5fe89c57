"""Kills at chosen moments: a process counts the files it is about to touch, and sends itself a signal at the n-th.

Python finds the hook as `sitecustomize.py` in the folder of its PYTHONPATH, so it reaches a stage, its worker and the
submit side of a platform without a line of theirs being replaced.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import read

SIGNALS = (signal.SIGKILL, signal.SIGTERM)
HOOK = """
import os, sys

named = [name for name in os.environ.get("FAULT_MODULES", "").split() if name in sys.orig_argv]
if named:
    at, number = int(os.environ["FAULT_AT"]), int(os.environ["FAULT_SIGNAL"])
    count = os.open(os.environ["FAULT_COUNT"] + named[0], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    touched = 0
    APART = ("/dev/", "/proc/", os.environ["TMPDIR"])  # an SDK's temporary files come in no certain number
    CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"}

    def touch(what, path):
        global touched
        touched += 1
        os.write(count, f"{what} {path!s}".replace("\\n", " ").encode() + b"\\n")
        if touched == at:
            os.kill(os.getpid(), number)

    def hook(event, given):
        if event == "open":
            path, _, flags = given
            written = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if written and not str(path).startswith(APART):
                touch(event, path)
        elif event in CHANGES:
            touch(event, given[0])

    sys.addaudithook(hook)
    fsync = os.fsync

    def counted(descriptor):
        touch("fsync", descriptor)
        fsync(descriptor)

    os.fsync = counted
"""


class Point(NamedTuple):
    """The n-th of `of` moments of one kind; where in its share of the run it lies is drawn from a seed."""

    name: str
    n: int
    of: int
    signal: signal.Signals

    @property
    def fraction(self) -> float:
        return (self.n + random.Random(f"{self.name} {self.n} of {self.of}").random()) / self.of

    def among(self, touches: int) -> int:
        return 1 + int(self.fraction * touches)


def points(name: str, of: int, sample: tuple[int, ...] = ()) -> list[Any]:
    """`of` points spread over a run, every other one a SIGTERM; those not in `sample` are for `make faults`."""
    made = [Point(name, n, of, SIGNALS[n % 2]) for n in range(of)]
    faults = pytest.mark.faults
    return [
        pytest.param(one, marks=() if one.n in sample else faults, id=f"{name} {one.n} {one.signal.name}")
        for one in made
    ]


class Place:
    """Where one point's processes run: a state folder, a temporary folder and the hook, all of this point alone."""

    def __init__(self, folder: Path, project: Path):
        self.folder, self.project = folder, project
        self.state, self.temporary, self.count = folder / "state", folder / "tmp", folder / "count"
        self.temporary.mkdir(parents=True)

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PARITY_STATE": str(self.state),
            "TMPDIR": str(self.temporary),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": "",
        }

    def armed(self, modules: str, at: int = 0, number: int = signal.SIGKILL) -> dict[str, str]:
        """The environment in which `modules` count their touches, and at the `at`-th have their signal."""
        hook = {"FAULT_MODULES": modules, "FAULT_AT": str(at), "FAULT_SIGNAL": str(int(number))}
        where = {"FAULT_COUNT": f"{self.count}-", "PYTHONPATH": str(self.project)}
        return self.environment | hook | where

    def start(self, environment: dict[str, str], *command: str) -> "subprocess.Popen[str]":
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, *command], cwd=self.project, env=environment, **pipes)

    def run(self, environment: dict[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
        child = self.start(environment, *command)
        out, errors = child.communicate()
        return subprocess.CompletedProcess(child.args, child.returncode, out, errors)

    def touched(self, module: str) -> list[str]:
        """What a module's process did to a file and to which, in its order."""
        return self.count.with_name(f"{self.count.name}-{module}").read_text().splitlines()

    def touches(self, module: str) -> int:
        return len(self.touched(module))

    def running(self) -> dict[int, str]:
        """Processes that have this place in their environment: command line by id."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if str(self.folder).encode() in path.read_bytes():
                    found[int(path.parent.name)] = path.with_name("cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
        return found

    def processes(self) -> list[str]:
        """Command lines of what still runs."""
        return list(self.running().values())

    def quiet(self) -> bool:
        """Whether nothing of this place runs any more; the kernel's own kills take a moment."""
        until = time.monotonic() + 30
        while self.processes() and time.monotonic() < until:
            time.sleep(0.05)
        return not self.processes()

    def left(self) -> list[str]:
        """What no command may leave: partial files in the project, jobs and holds in the state, temporary files."""
        project = [path for name in ("data", "metrics") for path in (self.project / name).rglob(".*")]
        project = [path for path in project if path.name != ".gitignore"]
        state = [path for path in self.state.rglob("*") if path.parent.name in ("local", "nodus", "modal")]
        # torch's own cache, empty and one per user, which every import of it makes.
        temporary = [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]
        return [str(path) for path in [*project, *state, *temporary]]


def interrupted(done: "subprocess.CompletedProcess[str]", number: int) -> None:
    """A killed process says nothing more; one that was told to end says so in a line."""
    if number == signal.SIGKILL:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return
    assert done.returncode == 130, (done.returncode, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "error: interrupted", done.stderr


def digests(folder: Path) -> dict[str, str]:
    """Every file below a folder, or the file itself, by its digest."""
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


# Said by a clock, or of the way that a result took. Of the tries at a job, those before the last are the way.
TIMED = {
    *("seconds", "delivery_seconds", "trainer_seconds", "worker_seconds", "samples_per_second"),
    *("submitted_utc", "started_utc", "ended_utc", "worker_started_utc", "worker_finished_utc", "verified_utc"),
    "taken_up",
}


def timeless(value: Any) -> Any:
    """A document without what must differ from run to run, `result.json`, which holds moments, by its name alone."""
    if isinstance(value, list):
        return [timeless(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: timeless(one) for key, one in value.items() if key not in TIMED}
    if "result.json" in found:
        found["result.json"] = "there"
    if "attempts" in found:
        found["attempts"] = found["attempts"][-1:]
    return found


def picture(project: Path, *names: str) -> dict[str, Any]:
    """The end state that must not depend on a kill: files by their bytes, documents without what a clock said."""
    found: dict[str, Any] = {}
    for name in names:
        path = project / name
        if path.suffix == ".json" and path.is_file():
            found[name] = timeless(read(path))
        else:
            found |= digests(path)
    return found


# Reserves and settles so many attempts, and says of each what it has seen done.
SPEND = """
import sys
from decimal import Decimal
from stages import command
from stages.evidence import ledger
from stages.protocol import Campaign

BUDGET = Campaign(name="default", authorization_usd="900.00", cap_usd="1.00", reserve_usd="1.00")

def main():
    for n in range(int(sys.argv[1])):
        attempt = ledger.reserve(
            BUDGET, job=f"{n:064x}", platform="nodus", task="sft", stage="train", amount=Decimal("1.00")
        )
        print("reserved", attempt, flush=True)
        ledger.settle("default", attempt, role="failed", charge_usd=Decimal("0.10"), final=True)
        print("settled", attempt, flush=True)

command.run(main)
"""
