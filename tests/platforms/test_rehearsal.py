"""Promise: the whole pipeline rehearses on either platform, and the two branches compare as two real runs would."""

import json
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.evidence import ledger
from tests.conftest import clone, run
from tests.test_pipeline import TASKS, commit, restore, shorten

PLATFORMS = ("nodus", "modal")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has run locally and rehearsed both platforms, each a branch."""
    pytest.importorskip("nodus", reason="the extra `nodus` is not installed")
    folder = clone(tmp_path_factory.mktemp("rehearsal") / "project")
    shorten(folder)
    run("dvc", "repro", cwd=folder)
    commit(folder, "local")
    for name in PLATFORMS:
        run("dvc", "exp", "run", "-n", name, "-S", f"platform={name}", "-S", "rehearse=true", cwd=folder)
        restore(folder)
        run("dvc", "exp", "branch", name, name, cwd=folder)
    return folder


def record(project: Path, revision: str, task: str, stage: str = "train") -> dict[str, object]:
    shown = run("git", "show", f"{revision}:metrics/{task}/evidence/{stage}.json", cwd=project).stdout
    found: dict[str, object] = json.loads(shown)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_weights_tokens_and_job_ids_equal_the_local_runs(project: Path, task: str) -> None:
    local, *others = (record(project, revision, task) for revision in ("HEAD", *PLATFORMS))
    for other in others:
        for key in ("model_weights_sha256", "training_tokens_sha256"):
            assert other[key] == local[key]
        assert other["job"]["id"] == local["job"]["id"]  # type: ignore[index]
        assert other["rehearsal"] is True
        assert other["receipt"]["clean"] is True  # type: ignore[index]
        assert other["receipt"]["final"] is True  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("stage", ["baseline", "train", "evaluate"])
def test_metrics_equal_the_local_runs_but_for_time_and_money(project: Path, task: str, stage: str) -> None:
    path = f"metrics/{task}/{stage}.json"
    local, *others = (json.loads(run("git", "show", f"{r}:{path}", cwd=project).stdout) for r in ("HEAD", *PLATFORMS))
    for other in others:
        assert other.pop("charge_usd") > 0
        unequal = {key for key in local.keys() | other.keys() if local.get(key) != other.get(key)}
        assert (
            {"delivery_seconds"} <= unequal <= {"delivery_seconds", "seconds", "trainer_seconds", "samples_per_second"}
        )


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_receipt_names_attempts_timings_resources_and_a_final_bill(project: Path, platform: str) -> None:
    found = record(project, platform, "sft")
    receipt: Any = found["receipt"]
    (attempt,) = receipt["attempts"]
    assert attempt["outcome"] == "succeeded"
    assert attempt["started_utc"] < attempt["ended_utc"]
    assert receipt["resources"]
    assert (receipt["final"], Decimal(receipt["charge_usd"]) > 0) == (True, True)
    timings: Any = found["timings"]
    assert timings["submitted_utc"] < timings["worker_started_utc"] < timings["verified_utc"]
    assert timings["taken_up"] is False


@pytest.mark.slow
def test_metrics_diff_of_the_local_branch_and_a_platforms_lists_both(project: Path) -> None:
    shown = run("dvc", "metrics", "diff", "HEAD", "modal", "--all", cwd=project).stdout
    for task in TASKS:
        assert re.search(rf"metrics/{task}/train.json +delivery_seconds +\d", shown)
        assert re.search(rf"metrics/{task}/train.json +charge_usd +- ", shown)


@pytest.mark.slow
def test_the_branches_differ_in_parameter_lock_metrics_and_evidence_alone(project: Path) -> None:
    for other in ("HEAD", "modal"):
        changed = run("git", "diff", "--name-only", other, "nodus", cwd=project).stdout.split()
        assert {name for name in changed if not name.startswith("metrics/")} == {"dvc.lock", "params.yaml"}
    params = run("git", "diff", "-U0", "nodus", "modal", "--", "params.yaml", cwd=project).stdout
    assert re.findall(r"^[-+](\w+: \w+)", params, re.MULTILINE) == ["platform: nodus", "platform: modal"]


@pytest.mark.slow
def test_metrics_diff_lists_quality_seconds_and_charges_of_both_tasks(project: Path) -> None:
    shown = run("dvc", "metrics", "diff", "nodus", "modal", "--all", cwd=project).stdout
    for task in TASKS:
        for key in ("trainer_seconds", "delivery_seconds", "charge_usd"):
            assert re.search(rf"metrics/{task}/train.json +{key} +\d", shown), (task, key, shown)
    assert re.search(r"metrics/sft/evaluate.json +accuracy ", shown)
    assert re.search(r"metrics/pretrain/evaluate.json +nll ", shown)


@pytest.mark.slow
def test_the_comparison_finds_equal_weights(project: Path) -> None:
    found = json.loads(run("python", "-m", "stages.compare", "nodus", "modal", "--json", cwd=project).stdout)
    (pair,) = found["pairs"]
    claims = pair["claims"]
    assert claims["identical_model_weights_per_stage"]["holds"] is True
    assert claims["observed_successful_attempt_cost_advantage"]["holds"] is False  # a rehearsal charges nobody


@pytest.mark.slow
def test_a_rehearsal_is_booked_on_a_ledger_of_its_own(project: Path) -> None:
    state = Path(os.environ["PARITY_STATE"])
    attempts = ledger.entries("default", state / "rehearsal")
    assert {(entry.platform, entry.task, entry.stage) for entry in attempts} >= {
        (platform, task, stage)
        for platform in PLATFORMS
        for task in TASKS
        for stage in ("baseline", "train", "evaluate")
    }
    assert all(entry.final and Decimal(entry.charge_usd or 0) > 0 for entry in attempts)
    assert ledger.entries("default", state) == []
