"""Promise: a damaged object of DVC's cache is found and named, never worked with, and a pull or a rerun heals it."""

import re
from pathlib import Path

import pytest

from stages.audit import audit
from tests.conftest import run, stage
from tests.faults.conftest import damage, data, objects, stocked

HOWS = ("flipped", "cut", "missing")
WHAT = {
    "model": "data/models/sft/model.safetensors",
    "tokenizer": "data/models/sft/tokenizer.json",
    "listing": "data/models/pretrain",
    "rows": "data/inputs/sft-train.jsonl",
    "predictions": "data/predictions/pretrain/evaluate.jsonl",
    "base model": "data/raw/generated/tiny-qwen2/model.safetensors",
    "corpus": "data/raw/generated/sentiment",
}
SAMPLE = {("model", "flipped"), ("listing", "cut"), ("rows", "missing")}
POINTS = [
    pytest.param(what, how, marks=[] if (what, how) in SAMPLE else pytest.mark.faults) for what in WHAT for how in HOWS
]


@pytest.fixture(scope="module")
def project(ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with its own cache and a folder remote that holds all of it."""
    folder = tmp_path_factory.mktemp("cache")
    made = stocked(ran, folder / "project")
    run("dvc", "remote", "add", "--local", "-d", "store", str(folder / "store"), cwd=made)
    run("dvc", "push", "--quiet", cwd=made)
    return made


def path_of(project: Path, what: str) -> str:
    """A path of `WHAT`; of the corpus, the first file."""
    return next(path for path in sorted(objects(project)) if path.startswith(WHAT[what]))


def kept(project: Path, path: str) -> Path:
    md5 = objects(project)[path]
    return project / ".dvc/cache/files/md5" / md5[:2] / md5[2:]


def drop(project: Path) -> str:
    return run("python", "-m", "stages.cache", "--drop", cwd=project).stdout


@pytest.mark.parametrize(("what", "how"), POINTS)
def test_a_damaged_object_is_named_dropped_and_pulled_again(project: Path, what: str, how: str) -> None:
    before = data(project)
    path = path_of(project, what)
    damage(kept(project, path), how)
    own = project / path
    run("git", "clean", "-xdfq", "data", cwd=project)
    run("dvc", "checkout", cwd=project, check=False)  # which takes what is damaged, and says nothing
    found = stage("cache", cwd=project)
    assert found.returncode == 1, found.stdout + found.stderr
    named = [line for line in found.stdout.splitlines() if line.startswith(f"{path}: ")]
    assert named, found.stdout
    assert ("missing" if how == "missing" else "damaged") in named[0]
    assert "stages" not in found.stderr  # no traceback
    drop(project)
    run("dvc", "pull", cwd=project)
    assert data(project) == before
    assert own.exists()
    assert "every object is what its digest says" in run("python", "-m", "stages.cache", cwd=project).stdout
    assert "up to date" in run("dvc", "status", cwd=project).stdout


@pytest.mark.faults
def test_a_newer_file_of_the_workspace_that_nothing_could_bring_back_is_not_dropped(project: Path) -> None:
    before, path = data(project), WHAT["rows"]
    damage(kept(project, path), "missing")
    (project / path).unlink()
    (project / path).write_text("newer\n")
    done = stage("cache", "--drop", cwd=project)
    assert done.returncode == 1
    assert f"{path}: damaged or edited" in done.stdout
    assert "it stays: move it away by hand" in done.stdout
    assert (project / path).read_text() == "newer\n"
    (project / path).unlink()
    run("dvc", "pull", cwd=project)
    assert data(project) == before


@pytest.mark.faults
def test_a_damaged_list_and_a_damaged_file_that_it_names_are_found_one_after_the_other(project: Path) -> None:
    before, folder = data(project), WHAT["listing"]
    path = f"{folder}/model.safetensors"
    damage(kept(project, path), "flipped")
    damage(kept(project, folder), "cut")
    said = drop(project)
    assert f"{folder}: damaged" in said
    assert f"{path}: " not in said
    assert "run this again" in said
    run("dvc", "pull", cwd=project, check=False)
    assert f"{path}: damaged" in drop(project)
    run("dvc", "pull", cwd=project)
    assert data(project) == before
    assert "every object is what its digest says" in run("python", "-m", "stages.cache", cwd=project).stdout


@pytest.mark.parametrize("command", [("cache",), ("cache", "--remote", "store"), ("audit", ".")], ids=" ".join)
def test_a_broken_configuration_of_dvc_is_said_in_a_line(project: Path, command: tuple[str, ...]) -> None:
    config = project / ".dvc/config.local"
    before = config.read_bytes()
    config.write_bytes(before + b'["oops\n')
    try:
        done = stage(*command, cwd=project)
    finally:
        config.write_bytes(before)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if "Invalid line" in line]
    assert len(said) == 1, done.stdout + done.stderr  # of an audit, a line among its lines


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("prepare@sft", "data/inputs/sft-train.jsonl"),
        pytest.param("train@sft", WHAT["model"], marks=pytest.mark.faults),
    ],
)
def test_a_damaged_object_is_made_again_by_a_rerun(ran: Path, tmp_path: Path, target: str, path: str) -> None:
    project = stocked(ran, tmp_path / "project")
    before = data(project)
    damage(kept(project, path), "flipped")
    (project / path).unlink()
    run("dvc", "checkout", cwd=project)
    assert (project / path).read_bytes() != before[path]  # the damage is in the workspace now
    assert path in drop(project)
    done = run("dvc", "repro", target, cwd=project)
    assert f"Running stage '{target}'" in done.stdout
    assert data(project) == before


REFUSED = {
    "rows": ("train", "data/inputs/sft-train.jsonl"),
    "test rows": ("baseline", "data/inputs/sft-test.jsonl"),
    "base model": ("train", "data/raw/generated/tiny-qwen2/model.safetensors"),
    "base tokenizer": ("baseline", "data/raw/generated/tiny-qwen2/tokenizer.json"),
    "corpus": ("prepare", "corpus"),
    "model": ("evaluate", "data/models/sft/model.safetensors"),
    "model's tokenizer": ("evaluate", "data/models/sft/tokenizer.json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_stage_refuses_a_damaged_file_by_name_before_it_works(project: Path, name: str) -> None:
    script, path = REFUSED[name]
    path = path_of(project, "corpus") if path == "corpus" else path
    own = project / path
    before, metrics = own.read_bytes(), run("git", "status", "--porcelain", cwd=project).stdout
    damage(own, "flipped")
    try:
        done = stage(script, "sft", cwd=project)
    finally:
        own.write_bytes(before)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"error: {path}:")  # with its line, where the damage lets a row be none
    assert "python -m stages.cache --drop" in line or re.match(rf"error: {path}:\d+: ", line)
    assert run("git", "status", "--porcelain", cwd=project).stdout == metrics


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_model_that_lacks_a_file_is_not_scored(project: Path, name: str) -> None:
    path = f"data/models/sft/{name}"
    (project / path).rename(project / "aside")
    try:
        done = stage("evaluate", "sft", cwd=project)
    finally:
        (project / "aside").rename(project / path)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"error: {path}: not found, but training exported it")


def test_an_audit_names_a_damaged_object_that_the_workspace_does_not_show(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    path = WHAT["model"]
    before = kept(project, path).read_bytes()
    damage(kept(project, path), "flipped")
    try:
        found = [line for _, line in audit(["."]) if line.outcome == "differs"]
        revision = [line for _, line in audit(["HEAD"]) if line.outcome == "differs"]
    finally:
        kept(project, path).chmod(0o644)
        kept(project, path).write_bytes(before)
        kept(project, path).chmod(0o444)
    assert [line.what for line in found] == [f"{path} in DVC's cache"]
    assert {path, "sft train: model/model.safetensors"} <= {line.what for line in revision}
