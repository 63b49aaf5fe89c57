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

from stages.evidence.digests import sha256_file
from stages.protocol import Protocol
from stages.training.trainer import MARKER, last_checkpoint
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


@pytest.mark.parametrize("sealed", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_an_evil_optimizer_is_never_run(
    trained: Trained,
    embedded: Protocol,
    rows: Path,  # noqa: F811
    tiny_model: Path,
    tmp_path: Path,
    sealed: bool,
) -> None:
    """With a marker that names its digest, the library's own refusal to unpickle is what stands in its way."""
    folder = job_folder(embedded, rows, tiny_model, tmp_path)
    shutil.copytree(trained.state, folder / "state")
    last = folder / "state/checkpoints/checkpoint-12"
    path = last / "optimizer.pt"
    path.write_bytes(pickle.dumps(Evil(tmp_path / "evil")))
    if sealed:
        entry = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        marker(last, files=read(last / MARKER)["files"] | {"optimizer.pt": entry})
        done = subprocess.run(worker(folder), cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.strip().splitlines()[-1].startswith("error: ")
        assert "checkpoint-12" in done.stderr
    else:
        same(finish(folder), trained.result)
    assert not (tmp_path / "evil").exists()
