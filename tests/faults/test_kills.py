"""Promise: after a kill at any moment the same command ends as if nothing had been, and nothing is left of the kill.

Most points are deterministic: the n-th file that a process is about to touch, n drawn from a seed.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM
from typing import Any, NamedTuple

import pytest
import yaml

from stages.evidence import ledger
from tests.conftest import ROOT, read, run
from tests.faults.kit import HOOK, SPEND, Place, Point, interrupted, picture, points

DELIVERED = {
    "train": ("data/models/pretrain", "metrics/pretrain/loss.csv"),
    "baseline": ("data/predictions/pretrain/baseline.jsonl",),
    "evaluate": ("data/predictions/pretrain/evaluate.jsonl",),
}
JOB_OUTPUTS = {
    name: (*files, f"metrics/pretrain/{name}.json", f"metrics/pretrain/evidence/{name}.json")
    for name, files in DELIVERED.items()
}
STAGES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "check": (["stages.check"], ("data/inputs/SHA256SUMS",)),
    "sources": (["stages.sources"], ("data/raw", "metrics/sources.json")),
    "prepare": (["stages.prepare", "sft"], ("data/inputs/sft-train.jsonl", "data/inputs/sft-test.jsonl")),
    "gate": (["stages.gate", "pretrain"], ("metrics/pretrain/gate.json",)),
    "report": (["stages.report"], ("metrics/report.html",)),
    **{name: ([f"stages.{name}", "pretrain"], outputs) for name, outputs in JOB_OUTPUTS.items()},
}


class Undisturbed(NamedTuple):
    """What a stage left that nobody disturbed, how many files its processes touched, and how long it took."""

    picture: dict[str, Any]
    touches: dict[str, int]  # by module, after DVC's removal of the outputs
    over: int  # by the stage, with the outputs of an earlier run there
    seconds: float


class Runs:
    """The undisturbed run of each stage, made when it is first asked for."""

    def __init__(self, project: Path, folder: Path):
        self.project, self.folder, self.known = project, folder, dict[str, Undisturbed]()

    def __getitem__(self, name: str) -> Undisturbed:
        if name == "evaluate":
            self["train"]  # what is evaluated is what was trained
        if name not in self.known:
            self.known[name] = self.run(name)
        return self.known[name]

    def run(self, name: str) -> Undisturbed:
        command, outputs = STAGES[name]
        clear(self.project, outputs)
        started = time.monotonic()
        touches = self.count(name)
        seconds = time.monotonic() - started
        over = touches if name in JOB_OUTPUTS else self.count(name)
        return Undisturbed(picture(self.project, *outputs), touches, over[command[0]], seconds)

    def count(self, name: str) -> dict[str, int]:
        command = STAGES[name][0]
        modules = [command[0], "stages.worker"] if name in JOB_OUTPUTS else command[:1]
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            place = Place(Path(folder), self.project)
            done = place.run(place.armed(" ".join(modules)), "-m", *command)
            assert done.returncode == 0, done.stderr
            assert place.left() == []
            return {module: place.touches(module) for module in modules}


@pytest.fixture(scope="module")
def undisturbed(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(small, tmp_path_factory.mktemp("undisturbed"))


def clear(project: Path, names: tuple[str, ...]) -> None:
    """Remove a stage's outputs, as DVC does before it runs one."""
    for name in names:
        shutil.rmtree(project / name) if (project / name).is_dir() else (project / name).unlink(missing_ok=True)


def within(path: str, outputs: list[str]) -> bool:
    return any(path.endswith(output) or f"{output}/" in path for output in outputs)


def ends_as(expected: Undisturbed, name: str, place: Place) -> None:
    """What the kill left is whole or not there; the command, run again, leaves the end state and nothing beside it."""
    command, outputs = STAGES[name]
    assert place.quiet(), place.processes()
    there = [output for output in outputs if (place.project / output).exists()]
    found = picture(place.project, *there)
    assert found == {path: value for path, value in expected.picture.items() if within(path, there)}
    again = place.run(place.environment, "-m", *command)
    assert again.returncode == 0, again.stderr
    assert picture(place.project, *outputs) == expected.picture
    if name in JOB_OUTPUTS:  # a try that the kill ended stands on the receipt, and so does one that was over by then
        tries = read(place.project / outputs[-1])["receipt"]["attempts"]
        assert [one["outcome"] for one in tries[:-1]] in ([], ["killed"], ["failed"], ["succeeded"])
    assert place.quiet(), place.processes()
    assert place.left() == []


LIGHT_POINTS = [
    *points("check", 4),
    *points("sources", 10, sample=(4, 9)),
    *points("prepare", 8, sample=(5,)),
    *points("gate", 4),
    *points("report", 4, sample=(2,)),
]


@pytest.mark.parametrize("point", LIGHT_POINTS)
def test_a_stage_killed_at_a_file(point: Point, small: Path, undisturbed: Runs, tmp_path: Path) -> None:
    expected, (command, outputs) = undisturbed[point.name], STAGES[point.name]
    fresh = point.n % 4 < 2
    if fresh:
        clear(small, outputs)
    place = Place(tmp_path, small)
    at = point.among(expected.touches[command[0]] if fresh else expected.over)
    killed = place.run(place.armed(command[0], at, point.signal), "-m", *command)
    interrupted(killed, point.signal)
    ends_as(expected, point.name, place)


SUBMIT_POINTS = [*points("train", 6, sample=(4,)), *points("baseline", 2), *points("evaluate", 4)]
WORKER_POINTS = [*points("train worker", 5), *points("baseline worker", 1), *points("evaluate worker", 3)]


@pytest.mark.parametrize("point", SUBMIT_POINTS)
def test_a_submit_side_killed_at_a_file_takes_its_worker_along(
    point: Point, small: Path, undisturbed: Runs, tmp_path: Path
) -> None:
    expected, (command, outputs) = undisturbed[point.name], STAGES[point.name]
    clear(small, outputs)
    place = Place(tmp_path, small)
    at = point.among(expected.touches[command[0]])
    killed = place.run(place.armed(command[0], at, point.signal), "-m", *command)
    interrupted(killed, point.signal)
    ends_as(expected, point.name, place)


@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_worker_killed_at_a_file_is_an_error_of_its_stage(
    point: Point, small: Path, undisturbed: Runs, tmp_path: Path
) -> None:
    name = point.name.split()[0]
    expected, (command, outputs) = undisturbed[name], STAGES[name]
    clear(small, outputs)
    place = Place(tmp_path, small)
    at = point.among(expected.touches["stages.worker"])
    failed = place.run(place.armed("stages.worker", at, point.signal), "-m", *command)
    assert failed.returncode == 1, failed.stderr
    assert "Traceback" not in failed.stdout + failed.stderr, failed.stderr
    how = "was ended by SIGKILL" if point.signal == signal.SIGKILL else "ended with exit code 130"
    assert failed.stderr.strip().splitlines()[-1].startswith(f"error: the worker {how}")
    assert not any((small / output).exists() for output in outputs)
    ends_as(expected, name, place)


@pytest.mark.parametrize("point", [*points("train in time", 3), *points("evaluate in time", 2)])
def test_a_job_killed_at_a_moment_between_files(point: Point, small: Path, undisturbed: Runs, tmp_path: Path) -> None:
    """Where the work is: in imports and steps. One that was over before its moment is run again and killed earlier."""
    name = point.name.split()[0]
    expected, (command, outputs) = undisturbed[name], STAGES[name]
    place = Place(tmp_path, small)
    seconds = 0.5 + point.fraction * (expected.seconds - 0.5)
    for earlier in range(5):
        clear(small, outputs)
        child = place.start(place.environment, "-m", *command)
        time.sleep(seconds / 2**earlier)
        child.send_signal(point.signal)
        out, errors = child.communicate()
        if child.returncode:
            break
    interrupted(subprocess.CompletedProcess(command, child.returncode, out, errors), point.signal)
    ends_as(expected, name, place)


# `dvc repro` itself, whose stages do not die with it.

TRAIN = ("dvc", "repro", "train@pretrain")
MODEL = JOB_OUTPUTS["train"]
# Who has the signal: DVC alone, or, as with Ctrl-C at a terminal, all of its group.
HOWS = [("alone", SIGKILL), ("alone", SIGTERM), ("group", SIGKILL), ("group", SIGTERM), ("group", SIGINT)]


class Repro(NamedTuple):
    """A clone in which DVC has the inputs, and what `dvc repro` of the training leaves there that nobody disturbs."""

    project: Path
    model: str
    picture: dict[str, Any]


@pytest.fixture(scope="module")
def repro(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Repro:
    folder = tmp_path_factory.mktemp("repro")
    project = shutil.copytree(small, folder / "project", symlinks=True)
    run("dvc", "repro", "prepare@pretrain", cwd=project)
    done = shutil.copytree(project, folder / "undisturbed", symlinks=True)
    run(*TRAIN, cwd=done)
    return Repro(project, trained(done), inside(done))


def trained(project: Path) -> str:
    """MD5 of the model as DVC has it on record, after a look that its cache has it too."""
    outs = yaml.safe_load((project / "dvc.lock").read_text())["stages"]["train@pretrain"]["outs"]
    (found,) = (out["md5"] for out in outs if out["path"] == MODEL[0])
    assert (project / ".dvc/cache/files/md5" / found[:2] / found[2:]).is_file()
    return str(found)


def inside(project: Path) -> dict[str, Any]:
    """The picture of the training by names that are the same in every clone."""
    return {path.removeprefix(f"{project}/"): value for path, value in picture(project, *MODEL).items()}


def started(place: Place, log: Path) -> "subprocess.Popen[bytes]":
    """`dvc repro` in a process group of its own; a file takes what it says, which its orphans may still write to."""
    with log.open("wb") as stream:
        pipes: Any = {"stdout": stream, "stderr": subprocess.STDOUT, "start_new_session": True}
        return subprocess.Popen(TRAIN, cwd=place.project, env=place.environment, **pipes)


def says(log: Path, words: str) -> None:
    until = time.monotonic() + 120
    while words not in log.read_text():
        assert time.monotonic() < until, f"{words!r} was never said, but:\n{log.read_text()}"
        time.sleep(0.02)


@pytest.mark.faults
@pytest.mark.parametrize(("who", "number"), HOWS, ids=[f"{who} {number.name}" for who, number in HOWS])
def test_dvc_repro_killed_in_the_middle_of_a_stage(
    who: str, number: signal.Signals, repro: Repro, tmp_path: Path
) -> None:
    project = shutil.copytree(repro.project, tmp_path / "project", symlinks=True)
    place = Place(tmp_path / "place", project)
    first = started(place, tmp_path / "first")
    says(tmp_path / "first", f"step {2 + 2 * (HOWS.index((who, number)) % 3)}/8")
    stage = place.running()
    if who == "group":
        os.killpg(first.pid, number)
        first.wait()
        assert place.quiet(), place.processes()
    else:
        # The stage lives on. Held still, it is sure to be in the way of the second.
        orphans = [pid for pid in stage if pid != first.pid]
        assert orphans
        for pid in orphans:
            os.kill(pid, signal.SIGSTOP)
        first.send_signal(number)
        first.wait()
    second = started(place, tmp_path / "second")
    if who == "alone":
        says(tmp_path / "second", "waiting: another process runs job")
        for pid in orphans:
            os.kill(pid, signal.SIGCONT)
    assert first.returncode != 0
    assert second.wait() == 0, (tmp_path / "second").read_text()
    assert trained(project) == repro.model
    assert inside(project) == repro.picture
    assert "up to date" in run("dvc", "status", "train@pretrain", cwd=project).stdout
    assert place.quiet(), place.processes()
    assert place.left() == []


# The ledger.


@pytest.fixture(scope="module")
def spending(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder with a program that spends and the hook, and how many files it touches."""
    folder = tmp_path_factory.mktemp("spending")
    (folder / "spend.py").write_text(SPEND)
    (folder / "sitecustomize.py").write_text(HOOK)
    place = Place(folder / "undisturbed", folder)
    done = spend(place, place.armed("spend"))
    assert done.returncode == 0, done.stderr
    assert place.temporary.is_dir()
    return folder, place.touches("spend")


def spend(place: Place, environment: dict[str, str]) -> Any:
    return place.run(environment | {"PYTHONPATH": f"{place.project}:{ROOT}"}, "-m", "spend", "6")


@pytest.mark.parametrize("point", points("ledger", 16, sample=(3, 6, 9, 12)))
def test_a_ledger_loses_nothing_acknowledged_and_holds_nothing_that_cannot_be_cleared(
    point: Point, spending: tuple[Path, int], tmp_path: Path
) -> None:
    project, touches = spending
    place = Place(tmp_path, project)
    killed = spend(place, place.armed("spend", point.among(touches), point.signal))
    interrupted(killed, point.signal)
    said = [line.split() for line in killed.stdout.splitlines()]
    reserved, settled = ([attempt for what, attempt in said if what == word] for word in ("reserved", "settled"))
    found = {entry.id: entry for entry in ledger.entries("default", place.state)}
    assert set(reserved) <= set(found)
    assert all(found[attempt].final for attempt in settled)
    unknown = [entry.id for entry in found.values() if not entry.final]
    assert len(unknown) <= 1
    assert list(ledger.reconcile("default", lambda entry: None, place.state)) == unknown
    again = spend(place, place.environment)
    assert again.returncode == 0, again.stderr
    after = ledger.entries("default", place.state)
    assert [entry.id for entry in after[: len(found)]] == list(found)
    assert len(after) == len(found) + 6
    assert all(entry.final for entry in after)
    names = {path.name for path in place.state.rglob("*") if path.is_file()}
    assert names == {"default.jsonl", "default.lock"}
    assert list(place.temporary.iterdir()) == []
