"""Promise: DVC's own commands do what DVC's documentation says of them, and run nothing that has not changed."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from tests.conftest import clone, read, run, stage

TASKS = ("sft", "pretrain")


def shorten(project: Path) -> None:
    """The embedded protocol with a few steps, so that a run takes its imports and little more."""
    path = project / "protocols/embedded.yaml"
    text = path.read_text().replace("max_steps: 800", "max_steps: 4").replace("max_steps: 80", "max_steps: 4")
    path.write_text(re.sub(r"logging_steps: \d+", "logging_steps: 2", text))


def commit(project: Path, message: str) -> None:
    run("git", "add", "-A", cwd=project)
    run("git", "commit", "--quiet", "-m", message, cwd=project)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose pipeline has run once, committed."""
    folder = clone(tmp_path_factory.mktemp("pipeline") / "a project")
    for path in (folder / "metrics", folder / "dvc.lock"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shorten(folder)
    run("dvc", "repro", cwd=folder)
    commit(folder, "the first run")
    return folder


def ran(output: str) -> set[str]:
    return set(re.findall(r"Running stage '([^']+)'", output))


def repro(project: Path) -> set[str]:
    return ran(run("dvc", "repro", cwd=project).stdout)


def edit(project: Path, name: str, before: str, after: str, count: int = 1) -> None:
    path = project / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, count))


def restore(project: Path) -> None:
    run("git", "checkout", "--quiet", ".", cwd=project)
    run("dvc", "checkout", "--quiet", cwd=project)


def test_a_run_leaves_metrics_in_git_data_in_dvc_and_evidence_beside_the_metrics(project: Path) -> None:
    tracked = run("git", "ls-files", "metrics", "data", cwd=project).stdout.split()
    expected = {f"metrics/{task}/{stage}.json" for task in TASKS for stage in ("baseline", "train", "evaluate", "gate")}
    expected |= {f"metrics/{t}/evidence/{s}.json" for t in TASKS for s in ("baseline", "train", "evaluate")}
    expected |= {f"metrics/{task}/loss.csv" for task in TASKS} | {"metrics/sources.json", "metrics/report.html"}
    assert set(tracked) == expected
    for task in TASKS:
        record = read(project / f"metrics/{task}/evidence/train.json")
        assert record["receipt"]["platform"] == "local"
        assert record["receipt"]["charge_usd"] is None
        assert record["job"]["training"]["seed"] == 11
        assert set(record["environment"]["versions"]) == set(record["job"]["stack"])
        assert len(record["model_weights_sha256"]) == len(record["training_tokens_sha256"]) == 64
        assert record["output"]["model/model.safetensors"]["sha256"] == record["model_weights_sha256"]
        assert "charge_usd" not in read(project / f"metrics/{task}/train.json")


def test_nothing_changed_runs_nothing(project: Path) -> None:
    assert repro(project) == set()
    assert run("git", "status", "--porcelain", cwd=project).stdout == ""
    assert "up to date" in run("dvc", "status", cwd=project).stdout


def test_the_learning_rate_of_one_task_retrains_that_task_alone(project: Path) -> None:
    edit(project, "protocols/embedded.yaml", "learning_rate: 2.0e-3", "learning_rate: 1.5e-3")  # sft stands first
    try:
        assert repro(project) == {"check", "train@sft", "evaluate@sft", "gate@sft", "report"}
    finally:
        restore(project)


def test_a_scorers_batch_size_trains_nothing(project: Path) -> None:
    edit(project, "protocols/embedded.yaml", "scoring_stride: 64, batch_size: 16", "scoring_stride: 64, batch_size: 8")
    try:
        found = repro(project)
    finally:
        restore(project)
    # The gate follows only where a metric has changed, which the seconds always have.
    assert found == {"check", "baseline@pretrain", "evaluate@pretrain", "gate@pretrain", "report"}


def test_a_gate_and_a_comment_run_no_job(project: Path) -> None:
    edit(project, "protocols/embedded.yaml", "accuracy_at_least: 0.8", "accuracy_at_least: 0.7")
    edit(project, "protocols/embedded.yaml", "version: 1", "# a comment\nversion: 1")
    try:
        assert repro(project) == {"check", "gate@sft", "report"}
    finally:
        restore(project)


def test_a_protocol_that_is_wrong_stops_before_anything_runs(project: Path) -> None:
    edit(project, "protocols/embedded.yaml", "gates:", "gaits: {}\ngates:")
    try:
        done = run("dvc", "repro", cwd=project, check=False)
    finally:
        restore(project)
    assert done.returncode != 0
    assert ran(done.stdout) == {"check"}
    assert "protocols/embedded.yaml: gaits: unknown key; allowed here: version, name, model" in done.stderr


def test_experiments_become_branches_that_metrics_diff_compares(project: Path) -> None:
    run("dvc", "exp", "run", "-n", "a", cwd=project)
    restore(project)
    run("dvc", "exp", "run", "-n", "b", "-S", "seed=12", cwd=project)
    restore(project)
    for name in "ab":
        run("dvc", "exp", "branch", name, name, cwd=project)
    shown = run("dvc", "metrics", "diff", "a", "b", "--all", cwd=project).stdout
    for task in TASKS:
        assert re.search(rf"metrics/{task}/train.json +trainer_seconds ", shown)
        assert re.search(rf"metrics/{task}/train.json +delivery_seconds ", shown)
        assert re.search(rf"metrics/{task}/gate.json ", shown)
    assert re.search(r"metrics/sft/evaluate.json +accuracy ", shown)
    assert re.search(r"metrics/pretrain/evaluate.json +nll ", shown)
    changed = run("git", "diff", "--name-only", "a", "b", cwd=project).stdout.split()
    assert {name for name in changed if not name.startswith("metrics/")} == {"dvc.lock", "params.yaml"}
    # A baseline is scored once for all seeds.
    assert not [name for name in changed if "baseline" in name]
    records = [run("git", "show", f"{name}:metrics/sft/evidence/train.json", cwd=project).stdout for name in "ab"]
    weights = [json.loads(record)["model_weights_sha256"] for record in records]
    assert weights[0] != weights[1]
    plots = json.loads(run("dvc", "plots", "diff", "a", "b", "--json", cwd=project).stdout)["data"]
    assert set(plots) == {"Fine-tuning loss", "Continued pretraining loss"}
    assert all(plot[0]["revisions"] == ["a", "b"] for plot in plots.values())


def test_a_repeat_of_an_unchanged_run_runs_again_and_gives_the_same_weights(project: Path) -> None:
    before = read(project / "metrics/sft/evidence/train.json")
    edit(project, "params.yaml", "repeat: 1", "repeat: 2")
    try:
        assert ran(run("dvc", "repro", "evaluate@sft", cwd=project).stdout) == {"check", "train@sft", "evaluate@sft"}
        after = read(project / "metrics/sft/evidence/train.json")
    finally:
        restore(project)
    assert after["job"]["id"] != before["job"]["id"]
    assert after["model_weights_sha256"] == before["model_weights_sha256"]
    assert after["output"]["model/training_args.bin"] == before["output"]["model/training_args.bin"]


def test_weights_that_training_did_not_export_are_not_scored(project: Path) -> None:
    path = project / "data/models/sft/model.safetensors"
    before = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    done = stage("evaluate", "sft", cwd=project)
    path.write_bytes(before)
    assert done.returncode == 1
    assert "model.safetensors: sha256 " in done.stderr
    assert "training exported " in done.stderr


def states(project: Path) -> list[str]:
    return re.findall(r"\b(Queued|Running|Success|Failed)\b", run("dvc", "queue", "status", cwd=project).stdout)


@pytest.mark.slow
def test_queued_seeds_run_one_after_another(project: Path) -> None:
    run("dvc", "exp", "run", "--queue", "-S", "seed=range(21,23)", cwd=project)
    run("dvc", "queue", "start", "--jobs", "1", cwd=project)
    deadline = time.monotonic() + 600
    while {"Queued", "Running"} & set(states(project)) and time.monotonic() < deadline:
        time.sleep(2)
    assert states(project) == ["Success", "Success"]
    shown = run("dvc", "exp", "show", "--json", cwd=project).stdout
    assert {21, 22} <= {int(seed) for seed in re.findall(r'"seed": (\d+)', shown)}
