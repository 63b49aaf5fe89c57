"""Promise: only a checkpoint that is whole and this job's own is resumed from; nothing in one is ever run."""

import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stages.protocol import Protocol
from stages.training.trainer import MARKER, kept, last_checkpoint
from tests.conftest import ROOT, read
from tests.test_training import finish, job_folder, rows, same, worker  # noqa: F401


class Trained(NamedTuple):
    state: Path
    result: dict[str, Any]


class Evil:
    """What makes a file when it is unpickled."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.fixture(scope="module")
def trained(
    embedded: Protocol,
    rows: Path,  # noqa: F811
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Trained:
    """A job that has run to its end, its two last checkpoints kept."""
    folder = job_folder(embedded, rows, tiny_model, tmp_path_factory.mktemp("checkpoints"))
    return Trained(folder / "state", finish(folder))


@pytest.fixture
def checkpoints(trained: Trained, tmp_path: Path) -> Path:
    return shutil.copytree(trained.state / "checkpoints", tmp_path / "checkpoints")


def marker(folder: Path, **changes: object) -> None:
    document = read(folder / MARKER)
    (folder / MARKER).write_text(json.dumps(document | changes))


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def replaced(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def linked(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def unnamed(folder: Path) -> None:
    """Weights as a pickle alone, named and with the right digest: the library would take them."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    files = read(folder / MARKER)["files"]
    marker(folder, files=files | {"pytorch_model.bin": files.pop("model.safetensors")})


def totals(folder: Path, losses: list[float]) -> None:
    marker(folder, totals=read(folder / MARKER)["totals"] | {"loss_since_log": losses})


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty folder": (emptied, "checkpoint.json: not found"),
    "a file": (replaced, "checkpoint-12: not a folder"),
    "a link": (linked, "checkpoint-12: not a folder"),
    "no marker": (lambda folder: (folder / MARKER).unlink(), "checkpoint.json: not found"),
    "empty marker": (lambda folder: (folder / MARKER).write_text(""), "not valid JSON"),
    "half a marker": (
        lambda folder: (folder / MARKER).write_text((folder / MARKER).read_text()[:200]),
        "not valid JSON",
    ),
    "marker of a list": (lambda folder: (folder / MARKER).write_text("[]"), "top level"),
    "no optimizer": (lambda folder: (folder / "optimizer.pt").unlink(), "optimizer.pt: missing"),
    "empty optimizer": (lambda folder: (folder / "optimizer.pt").write_bytes(b""), "optimizer.pt: 0 bytes, expected"),
    "flipped optimizer": (lambda folder: flipped(folder / "optimizer.pt"), "optimizer.pt: sha256"),
    "flipped weights": (lambda folder: flipped(folder / "model.safetensors"), "model.safetensors: sha256"),
    "pickled weights beside": (
        lambda folder: (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(folder.parent / "evil"))),
        "pytorch_model.bin: not of this checkpoint",
    ),
    "of another step": (lambda folder: marker(folder, step=9), "of step 9"),
    "of another job": (lambda folder: marker(folder, job="b" * 64), "of job bbbbbbbbbbbb, this is"),
    "weights that the marker does not name": (unnamed, "names no model.safetensors"),
    "of two processes": (lambda folder: totals(folder, [0.5, 0.5]), "totals of 2 processes, expected 1"),
    "of no process": (lambda folder: totals(folder, []), "totals of 0 processes, expected 1"),
    "NaN in the totals": (lambda folder: marker(folder, totals=float("nan")), "NaN is no JSON number"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_checkpoint_that_is_not_whole_is_named_and_the_one_before_it_taken(
    checkpoints: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fault, said = FAULTS[name]
    job_id = read(checkpoints / "checkpoint-12" / MARKER)["job"]
    fault(checkpoints / "checkpoint-12")
    found = last_checkpoint(checkpoints, job_id)
    assert found is not None
    assert found[0].name == "checkpoint-9"
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(("passing over", "resuming from step 9")) for line in lines] == [True, True]
    assert said in lines[0]
    assert sorted(path.name for path in checkpoints.glob("checkpoint-*")) == ["checkpoint-9"]
    assert not (checkpoints / "evil").exists()


def test_where_no_checkpoint_is_whole_training_starts_anew(checkpoints: Path) -> None:
    job_id = read(checkpoints / "checkpoint-12" / MARKER)["job"]
    for folder in checkpoints.glob("checkpoint-*"):
        emptied(folder)
    (checkpoints / "checkpoint-²").mkdir()
    assert last_checkpoint(checkpoints, job_id) is None


@pytest.mark.parametrize("size", [1, 64 << 10, 80 << 20])
def test_a_file_of_the_right_size_that_was_not_written_out_is_told_from_a_whole_one(tmp_path: Path, size: int) -> None:
    """As after a power cut: the length stands, and what follows some place is zeros."""
    path = tmp_path / "optimizer.pt"
    path.write_bytes(b"x" * size)
    whole = kept(path)
    os.truncate(path, size // 2)
    os.truncate(path, size)
    assert kept(path).bytes == whole.bytes
    assert kept(path).sha256 != whole.sha256


SEALED = {
    "optimizer.pt": lambda folder: pickle.dumps(Evil(folder)),
    "scheduler.pt": lambda folder: pickle.dumps(Evil(folder)),
    "model.safetensors": lambda folder: pickle.dumps(Evil(folder)),
    "trainer_state.json": lambda folder: b"[]",
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.faults) for name in SEALED])
def test_a_sealed_checkpoint_that_cannot_be_resumed_from_is_said_in_a_line(
    trained: Trained,
    embedded: Protocol,
    rows: Path,  # noqa: F811
    tiny_model: Path,
    tmp_path: Path,
    name: str,
) -> None:
    """With a marker that names its digest, the libraries' own refusal to unpickle is what stands in its way."""
    folder = job_folder(embedded, rows, tiny_model, tmp_path)
    shutil.copytree(trained.state, folder / "state")
    last = folder / "state/checkpoints/checkpoint-12"
    (last / name).write_bytes(SEALED[name](tmp_path / "evil"))
    marker(last, files=read(last / MARKER)["files"] | {name: kept(last / name).model_dump()})
    done = subprocess.run(worker(folder), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "checkpoint-12: cannot be resumed from; remove it and run again" in done.stderr
    assert not (tmp_path / "evil").exists()


def test_an_evil_optimizer_is_never_run(
    trained: Trained,
    embedded: Protocol,
    rows: Path,  # noqa: F811
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    folder = job_folder(embedded, rows, tiny_model, tmp_path)
    shutil.copytree(trained.state, folder / "state")
    (folder / "state/checkpoints/checkpoint-12/optimizer.pt").write_bytes(pickle.dumps(Evil(tmp_path / "evil")))
    same(finish(folder), trained.result)
    assert not (tmp_path / "evil").exists()
