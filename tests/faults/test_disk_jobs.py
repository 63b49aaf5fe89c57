"""Promise: a job whose disk is full or not ours ends in a clear line, costs nothing of what was there before, and goes
on from where it stood once the disk is in order."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import stage
from tests.faults.kit import picture
from tests.faults.test_disk import BLOCK, Machine

pytestmark = pytest.mark.faults  # each trains
OUTPUTS = (
    *("data/models/pretrain", "metrics/pretrain/loss.csv", "metrics/pretrain/train.json"),
    *("data/predictions/pretrain/baseline.jsonl", "data/predictions/pretrain/evaluate.jsonl"),
    *("metrics/pretrain/baseline.json", "metrics/pretrain/evaluate.json"),
    *(f"metrics/pretrain/evidence/{name}.json" for name in ("train", "baseline", "evaluate")),
)
MIB = 1 << 20
JOBS = ("baseline", "train", "evaluate")
SCORES = ("baseline", "evaluate")


@pytest.fixture(scope="module")
def trained(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small project, its base model scored, trained and evaluated, with its one checkpoint at the last step."""
    project = shutil.copytree(small, tmp_path_factory.mktemp("trained") / "project", symlinks=True)
    path = project / "protocols/embedded.yaml"
    path.write_text(path.read_text().replace("save_steps: 2\n", "save_steps: 8\n"))
    for name in JOBS:
        done = stage(name, "pretrain", cwd=project)
        assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def machine(trained: Path, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, trained)
    yield made
    made.disk.close()


def results(machine: Machine) -> dict[str, object]:
    return picture(machine.disk.view(machine.project), *OUTPUTS)


def fails(machine: Machine, name: str, said: str, bound: bool = False) -> str:
    """Run a stage that cannot end well; what it printed. The prior outputs stand, and nothing is beside them."""
    before = machine.content()
    done = machine.run("-m", f"stages.{name}", "pretrain", bound=bound)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert lines
    assert lines[-1] == done.stderr.splitlines()[-1]
    assert any(re.search(said, line) for line in lines), done.stderr
    state = str(machine.disk.view(machine.project / "state"))
    assert {path: v for path, v in machine.content().items() if not path.startswith(state)} == {
        path: v for path, v in before.items() if not path.startswith(state)
    }
    return done.stdout


def succeeds(machine: Machine, name: str) -> str:
    done = machine.run("-m", f"stages.{name}", "pretrain")
    assert done.returncode == 0, done.stderr
    assert list(machine.disk.view(machine.project / "state/local").iterdir()) == []
    return done.stdout


FULL = "No space left on device; free some space and run it again"
# What is free: nothing; too little for the checkpoint's weights, its optimizer, the export.
POINTS = {"job": 0, "weights": 1 * MIB, "optimizer": 4 * MIB, "export": 7 * MIB}


@pytest.mark.parametrize("point", POINTS)
def test_training_on_a_full_disk(point: str, machine: Machine) -> None:
    expected = results(machine)
    machine.disk.fill(POINTS[point])
    said = fails(machine, "train", FULL)
    assert ("step 8/8" in said) == (point != "job")
    machine.disk.free()
    again = succeeds(machine, "train")
    assert ("resuming from step 8" in again) == (point == "export")
    assert results(machine) == expected


@pytest.mark.parametrize("name", SCORES)
def test_scoring_on_a_full_disk(name: str, machine: Machine) -> None:
    """The job's input and records fit, its predictions do not."""
    expected = results(machine)
    rows = machine.disk.view(machine.project / "data/inputs/pretrain-test.jsonl").stat().st_size
    machine.disk.fill((-(-rows // BLOCK) + 3) * BLOCK)
    fails(machine, name, FULL)
    machine.disk.free()
    succeeds(machine, name)
    assert results(machine) == expected


@pytest.mark.parametrize("name", JOBS)
def test_a_job_without_inodes(name: str, machine: Machine) -> None:
    """There are some for the job's folder, none for what is made of it."""
    expected = results(machine)
    machine.disk.take_inodes(16)
    fails(machine, name, FULL)
    machine.disk.free()
    succeeds(machine, name)
    assert results(machine) == expected


@pytest.mark.parametrize("name", JOBS)
def test_a_read_only_disk_is_found_out_before_the_worker_starts(name: str, machine: Machine) -> None:
    machine.disk.lock()
    said = fails(machine, name, "Read-only file system; choose a folder that can be written")
    assert "step" not in said


def test_a_training_whose_model_may_not_be_put_in_its_place_is_not_lost(machine: Machine) -> None:
    expected = results(machine)
    models = machine.disk.view(machine.project / "data/models")
    models.chmod(0o555)
    said = fails(machine, "train", "data/models/pretrain: Permission denied; allow it or choose another folder", True)
    assert "step 8/8" in said
    models.chmod(0o755)
    again = succeeds(machine, "train")
    assert "step" not in again  # the output was whole: it is placed, and nothing is trained again
    assert results(machine) == expected


@pytest.mark.parametrize("name", SCORES)
def test_predictions_that_may_not_be_put_in_their_place_are_not_lost(name: str, machine: Machine) -> None:
    expected = results(machine)
    folder = machine.disk.view(machine.project / "data/predictions/pretrain")
    folder.chmod(0o555)
    said = f"data/predictions/pretrain/{name}.jsonl: Permission denied; allow it or choose another folder"
    fails(machine, name, said, True)
    folder.chmod(0o755)
    succeeds(machine, name)
    assert results(machine) == expected
