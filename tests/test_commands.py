"""Promise: a user's mistake is one clear line on stderr and exit code 2 or 1; no traceback, nothing half-written."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.evidence.digests import whole
from tests.conftest import ROOT, run, stage

STAGES = (
    *("check", "sources", "prepare", "baseline", "train", "evaluate", "gate", "report"),
    *("show", "plan", "compare", "publish", "campaign", "audit", "worker"),
)
WITH_TASK = ("prepare", "baseline", "train", "evaluate", "gate")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with sources and inputs in place."""
    from tests.conftest import clone

    project = clone(tmp_path_factory.mktemp("commands") / "project")
    for name in ("check", "sources"):
        assert stage(name, cwd=project).returncode == 0
    for task in ("sft", "pretrain"):
        assert stage("prepare", task, cwd=project).returncode == 0
    return project


def complains(done: "subprocess.CompletedProcess[str]", code: int, *said: str) -> None:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    last = done.stderr.strip().splitlines()[-1]
    for words in said:
        assert words in last


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", WITH_TASK)
def test_a_missing_or_unknown_task_is_a_usage_error(name: str) -> None:
    complains(stage(name, cwd=ROOT), 2, "the following arguments are required: task")
    complains(stage(name, "rlhf", cwd=ROOT), 2, "invalid choice: 'rlhf' (choose from", "sft", "pretrain")


@pytest.mark.parametrize("name", STAGES)
def test_help_is_there_and_light(name: str) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['{name}', '--help']\n"
        "try:\n"
        f"    runpy.run_module('stages.{name}', run_name='__main__')\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(*sorted({'torch', 'transformers', 'trl', 'datasets', 'modal', 'nodus', 'scipy'} & set(sys.modules)))\n"
    )
    done = run(sys.executable, "-c", code, cwd=ROOT)
    assert f"python -m stages.{name}" in done.stdout
    assert done.stdout.splitlines()[-1] == ""


def test_submitting_imports_nothing_heavy() -> None:
    code = (
        "import sys, stages.delivery, stages.platforms as p\n"
        "[p.load(name) for name in p.names()]\n"
        "print(*sorted({'torch', 'transformers', 'trl', 'datasets', 'modal', 'nodus'} & set(sys.modules)))"
    )
    assert run(sys.executable, "-c", code, cwd=ROOT).stdout.strip() == ""


@pytest.mark.parametrize(
    ("task", "line", "said"),
    [
        ("sft", b'{"completion": " positive", "prompt": "a', "sft-train.jsonl:2: not valid JSON"),
        ("sft", b'{"completion": " positive"}\n', "sft-train.jsonl:2: found ['completion'], expected the keys"),
        ("pretrain", b'{"text": "\xff\xfe"}\n', "pretrain-train.jsonl:2: not UTF-8 at byte 10"),
    ],
)
def test_a_bad_row_is_named_before_a_job_is_made_and_nothing_is_left(
    prepared: Path, task: str, line: bytes, said: str
) -> None:
    path = prepared / "data/inputs" / f"{task}-train.jsonl"
    before = path.read_bytes()
    path.write_bytes(before.splitlines(keepends=True)[0] + line)
    try:
        done = stage("train", task, cwd=prepared)
    finally:
        path.write_bytes(before)
    complains(done, 1, f"error: data/inputs/{said}")
    assert done.stderr.count("\n") == 1
    assert not (prepared / "data/models").exists()
    assert not list((prepared / "metrics" / task).glob(".*"))


def test_a_missing_input_says_which_stage_makes_it(prepared: Path, tmp_path: Path) -> None:
    path = prepared / "data/inputs/sft-test.jsonl"
    path.rename(tmp_path / "away")
    try:
        complains(
            stage("baseline", "sft", cwd=prepared), 1, "data/inputs/sft-test.jsonl: not found; run `dvc repro prepare`"
        )
    finally:
        (tmp_path / "away").rename(path)


def test_evaluating_without_a_model_says_so(prepared: Path) -> None:
    said = "data/models/sft/model.safetensors: not found; run `dvc repro train@sft`"
    complains(stage("evaluate", "sft", cwd=prepared), 1, said)


def test_running_outside_the_project_says_so(tmp_path: Path) -> None:
    done = stage("train", "sft", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    complains(done, 1, "params.yaml: not found; run from the project's folder")


def test_a_missing_metrics_file_is_named(prepared: Path, tmp_path: Path) -> None:
    (prepared / "metrics/sft").rename(tmp_path / "away") if (prepared / "metrics/sft").exists() else None
    complains(stage("gate", "sft", cwd=prepared), 1, "metrics/sft/baseline.json: not found")


def test_a_file_where_a_folder_should_be_is_named(prepared: Path, tmp_path: Path) -> None:
    inputs = prepared / "data/inputs"
    inputs.rename(tmp_path / "away")
    inputs.touch()
    try:
        complains(stage("prepare", "sft", cwd=prepared), 1, "data/inputs: File exists")
    finally:
        inputs.unlink()
        (tmp_path / "away").rename(inputs)


def test_an_interrupt_is_not_a_crash() -> None:
    code = "from stages import command\ndef main(): raise KeyboardInterrupt\ncommand.run(main)"
    complains(run(sys.executable, "-c", code, cwd=ROOT, check=False), 130, "error: interrupted")


def test_a_bug_keeps_its_traceback() -> None:
    code = "from stages import command\ndef main(): raise TypeError('a bug')\ncommand.run(main)"
    done = run(sys.executable, "-c", code, cwd=ROOT, check=False)
    assert "TypeError: a bug" in done.stderr
    assert "Traceback" in done.stderr


def test_a_write_that_fails_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="target") as caught, whole(tmp_path / "target"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.errno == errno.ENOSPC
    assert listing(tmp_path) == []
