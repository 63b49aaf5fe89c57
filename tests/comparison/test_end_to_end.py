"""Promise: two experiments that DVC itself ran compare end to end, and `dvc metrics diff` says the same numbers."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.comparison.judge import agreed
from tests.conftest import clone, run, stage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a few training steps, and an experiment and a branch with other seeds."""
    folder = clone(tmp_path_factory.mktemp("two") / "a project")
    for path in (folder / "metrics", folder / "dvc.lock"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path = folder / "protocols/embedded.yaml"
    text = path.read_text().replace("max_steps: 800", "max_steps: 4").replace("max_steps: 80", "max_steps: 4")
    path.write_text(re.sub(r"logging_steps: \d+", "logging_steps: 2", text))
    run("git", "add", "-A", cwd=folder)
    run("git", "commit", "--quiet", "-m", "shorter", cwd=folder)
    for name, seed in (("eleven", 11), ("twelve", 12)):
        run("dvc", "exp", "run", "--name", name, "--set-param", f"seed={seed}", cwd=folder)
    run("dvc", "exp", "branch", "twelve", "twelve-branch", cwd=folder)
    return folder


def compare(project: Path, *arguments: str) -> Any:
    done = stage("compare", *arguments, cwd=project, env={"PYTHONPATH": str(project), "COLUMNS": "220"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_experiments_and_branches_compare_as_table_json_markdown_and_page(project: Path, tmp_path: Path) -> None:
    names = ("eleven", "twelve-branch")
    made = json.loads(compare(project, *names, "--json", "--html", str(tmp_path / "page.html")))
    assert [side["label"] for side in made["sides"]] == list(names)
    assert made["problems"] == {}
    pair = made["pairs"][0]["tasks"]["sft"]
    assert pair["matching_evidence"]["training_tokens_sha256"]["equal"] is True
    assert made["pairs"][0]["claims"]["run_variance_estimated"]["reason"].startswith("not estimated")
    assert "eleven - twelve-branch" in compare(project, *names)
    assert "### Fine-tuning" in compare(project, *names, "--markdown")
    assert "loss-pretrain-t" in (tmp_path / "page.html").read_text()


def test_dvc_metrics_diff_agrees_with_every_number_it_shares(project: Path) -> None:
    made = json.loads(compare(project, "eleven", "twelve", "--json"))
    told = json.loads(run("dvc", "metrics", "diff", "eleven", "twelve", "--json", "--all", cwd=project).stdout)
    numbers, compared = agreed(made, told)
    assert numbers > 30
    assert compared == 8


def test_an_audit_of_an_experiment_differs_in_nothing(project: Path) -> None:
    done = stage("audit", "twelve", "--json", cwd=project, env={"PYTHONPATH": str(project)})
    lines = json.loads(done.stdout)
    assert [line for line in lines if line["outcome"] == "differs"] == []
    assert done.returncode == 0
    equal = {line["what"] for line in lines if line["outcome"] == "recomputed and equal"}
    assert "sft evaluate: metrics from predictions: accuracy" in equal
    assert "pretrain train: model/model.safetensors" in equal
    assert "sft train: data/inputs/sft-train.jsonl" in equal
