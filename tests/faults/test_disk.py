"""Promise: a disk that is full, out of inodes, read-only or not ours is one clear line; what was there before is there
still, byte for byte, nothing half-written is left, and with the disk in order the same command succeeds."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stages.evidence import ledger
from tests.comparison.build import START, branch, repository
from tests.faults.disk import Disk
from tests.faults.kit import SPEND, digests

FOLDERS = ("data", "metrics", "out", "state")
KIB, BLOCK = 1 << 10, 4 << 10
# Drops CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH for good (PR_CAPBSET_DROP is 24), and runs Python on what follows.
BOUND = """
import ctypes, os, sys
for capability in (1, 2):
    ctypes.CDLL(None).prctl(24, capability)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Case(NamedTuple):
    """A command and the outputs that it leaves."""

    command: tuple[str, ...]
    outputs: tuple[str, ...]


CASES = {
    "check": Case(("-m", "stages.check"), ("data/inputs/SHA256SUMS",)),
    "sources": Case(("-m", "stages.sources"), ("data/raw", "metrics/sources.json")),
    "prepare": Case(("-m", "stages.prepare", "sft"), ("data/inputs/sft-train.jsonl", "data/inputs/sft-test.jsonl")),
    "gate": Case(("-m", "stages.gate", "pretrain"), ("metrics/pretrain/gate.json",)),
    "report": Case(("-m", "stages.report"), ("metrics/report.html",)),
    "export": Case(("-m", "stages.campaign", "export"), ("metrics/campaign.json",)),
    "compare": Case(("-m", "stages.compare", "a", "b", "--html", "out/page.html"), ("out/page.html",)),
    "publish": Case(
        ("-m", "stages.publish", "a", "b", "--out", "out"), ("out/results.json", "out/execution-record.json")
    ),
}
COMPARED = ("compare", "publish")
LARGE = ("sources", "prepare", "report", "compare", "publish")  # than a block


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two runs to compare and publish."""
    root = repository(tmp_path_factory.mktemp("compared") / "project")
    branch(root, "a", platform="nodus", charge="0.10")
    branch(root, "b", platform="modal", charge="0.20", start=START + timedelta(hours=1))
    return root


class Machine:
    """A project on a disk of its own, its state folder beside its data."""

    def __init__(self, folder: Path, source: Path):
        self.project = folder / "disk"
        self.disk = Disk(self.project)
        shutil.copytree(source, self.disk.view(self.project), dirs_exist_ok=True, symlinks=True)
        self.environment = os.environ | {
            "PARITY_STATE": str(self.project / "state"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": "",
        }

    def run(self, *command: str, bound: bool = False, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run Python on the disk, where `bound` without root's right to pass over permissions."""
        whole = [sys.executable, *(["-c", BOUND] if bound else []), *command]
        return self.disk.run(whole, self.project, env=self.environment, **options)

    def succeeds(self, *command: str) -> None:
        done = self.run(*command)
        assert done.returncode == 0, done.stderr

    def outputs(self, case: str) -> list[Path]:
        found = [self.disk.view(self.project / name) for name in CASES[case].outputs]
        return [path for output in found for path in ([output] if output.is_file() else output.rglob("*.*"))]

    def content(self) -> dict[str, str]:
        """Every file that a stage may have made, by its digest, folders that are empty included."""
        found = {}
        for name in FOLDERS:
            root = self.disk.view(self.project / name)
            found |= digests(root) if root.is_dir() else {}
            found |= {str(path): "" for path in root.rglob("*") if path.is_dir()}
        return found


@pytest.fixture
def machine(request: pytest.FixtureRequest, small: Path, compared: Path, tmp_path: Path) -> Iterator[Machine]:
    name: str = request.getfixturevalue("case")
    made = Machine(tmp_path, compared if name in COMPARED else small)
    yield made
    made.disk.close()


def complains(done: "subprocess.CompletedProcess[str]", *said: str) -> None:
    """One line, and it says what is wrong."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: "), line
    assert ".partial" not in line, line
    for words in said:
        assert words in line, line


def stands(machine: Machine, case: str, fault: Callable[[], Any], mend: Callable[[], Any], *said: str) -> None:
    """Run a command, run it again under a fault, and again without."""
    command = CASES[case].command
    machine.succeeds(*command)
    before = machine.content()
    options = fault() or {}
    complains(machine.run(*command, **options), *said)
    assert machine.content() == before
    mend()
    machine.succeeds(*command)
    assert machine.content() == before


def some(values: list[tuple[Any, ...]], *sample: tuple[Any, ...]) -> list[Any]:
    """Parameters of which those outside the sample are for `make faults`."""
    return [pytest.param(*v, marks=() if v in sample else pytest.mark.faults, id=" ".join(map(str, v))) for v in values]


SHARES = [(case, 0.0) for case in CASES] + [(case, share) for case in LARGE for share in (0.5, 0.99)]


@pytest.mark.parametrize(("case", "share"), some(SHARES, ("sources", 0.99), ("publish", 0.5)))
def test_a_full_disk(case: str, share: float, machine: Machine) -> None:
    """`share` of the blocks that its outputs need are free."""

    def fault() -> None:
        needed = sum(-(-path.stat().st_size // BLOCK) for path in machine.outputs(case))
        machine.disk.fill(int(needed * share) * BLOCK)

    stands(machine, case, fault, machine.disk.free, "No space left on device; free some space and run it again")


INODES = [(case, 0) for case in CASES] + [(case, n) for case, n in (("sources", 1), ("sources", 4), ("publish", 1))]


@pytest.mark.parametrize(("case", "leave"), some(INODES, ("sources", 4)))
def test_no_inodes(case: str, leave: int, machine: Machine) -> None:
    said = "No space left on device; free some space and run it again"
    stands(machine, case, lambda: machine.disk.take_inodes(leave), machine.disk.free, said)


@pytest.mark.parametrize("case", some([(case,) for case in CASES], ("gate",)))
def test_a_read_only_disk(case: str, machine: Machine) -> None:
    said = "Read-only file system; choose a folder that can be written"
    stands(machine, case, machine.disk.lock, machine.disk.free, said)


@pytest.mark.parametrize("case", some([(case,) for case in CASES], ("report",)))
def test_a_folder_that_may_not_be_written(case: str, machine: Machine) -> None:
    folders = {machine.disk.view(machine.project / name).parent for name in CASES[case].outputs}

    def allow(mode: int) -> None:
        for folder in folders:
            folder.chmod(mode)

    def fault() -> dict[str, Any]:
        allow(0o555)
        return {"bound": True}

    said = "Permission denied; allow it or choose another folder"
    stands(machine, case, fault, lambda: allow(0o755), said)


@pytest.mark.parametrize("case", ["prepare"])
def test_a_limit_on_the_size_of_a_file(machine: Machine, case: str) -> None:
    """As a quota or `ulimit -f` has it."""
    stands(machine, case, lambda: {"preexec_fn": limited}, lambda: None, "sft-train.jsonl: File too large")


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * KIB, 64 * KIB))


# The ledger.

FAULTS: dict[str, tuple[Callable[[Disk], Any], str]] = {
    "full": (lambda disk: disk.fill(0), "No space left on device; free some space and run it again"),
    "one block": (lambda disk: disk.fill(BLOCK), "No space left on device; free some space and run it again"),
    "read-only": (Disk.lock, "Read-only file system; choose a folder that can be written"),
    "no inodes": (lambda disk: disk.take_inodes(0), "No space left on device; free some space and run it again"),
}


@pytest.mark.parametrize("case", ["prepare"])
@pytest.mark.parametrize("fault", [pytest.param(f, marks=() if f == "full" else pytest.mark.faults) for f in FAULTS])
def test_a_ledger_on_a_bad_disk_keeps_what_it_acknowledged(fault: str, case: str, machine: Machine) -> None:
    if fault != "no inodes":  # for that, the ledger must not be there yet
        machine.succeeds("-c", SPEND, "12")
    strike, said = FAULTS[fault]
    file = ledger.path("default", machine.disk.view(machine.project / "state"))
    before = file.read_bytes() if file.exists() else b""
    strike(machine.disk)
    done = machine.run("-c", SPEND, "12")
    complains(done, "/state", said)
    found = {entry.id for entry in ledger.entries("default", file.parent.parent)}
    assert {line.split()[1] for line in done.stdout.splitlines()} <= found
    assert (file.read_bytes() if file.exists() else b"").startswith(before)
    machine.disk.free()
    machine.succeeds("-c", SPEND, "12")
    after = ledger.entries("default", file.parent.parent)
    assert found <= {entry.id for entry in after}
    assert sum(not entry.final for entry in after) <= 1
