"""Promise: an audit makes everything again that can be made again, and names what was altered, byte by byte."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from stages.audit import audit
from stages.comparison.audited import Line
from stages.evidence import chain, ledger
from stages.evidence.digests import write_json
from stages.protocol import Campaign
from tests.comparison.build import Builder, commit, inputs, lock, repository
from tests.comparison.tamper import digit, edit, flip
from tests.conftest import stage

BUDGET = Campaign(name="audited", authorization_usd="5.00", cap_usd="1.00", reserve_usd="1.00")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is whole: rows, model, predictions, metrics, evidence, dvc.lock, campaign."""
    root = repository(tmp_path_factory.mktemp("audit") / "project")
    exported = account()
    Builder(root, platform="nodus", charge="0.10", start=datetime.now(UTC)).write()
    inputs(root)
    params = root / "params.yaml"
    params.write_text(params.read_text().replace("name: default", f"name: {BUDGET.name}"))
    write_json(root / "metrics/campaign.json", exported.model_dump())
    lock(root)
    commit(root, "run")
    return root


def account() -> ledger.Account:
    """Two attempts in a ledger of this machine, exported."""
    if not ledger.path(BUDGET.name).is_file():
        for charge in ("0.25", "0.10"):
            attempt = ledger.reserve(
                BUDGET, job="a" * 64, platform="nodus", task="sft", stage="train", amount=Decimal("1.00")
            )
            role = "headline_successful_attempt"
            ledger.settle(BUDGET.name, attempt, role=role, charge_usd=Decimal(charge), final=True)
    return ledger.account(BUDGET)


@pytest.fixture
def project(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to alter, entered."""
    root = shutil.copytree(whole, tmp_path / "project")
    monkeypatch.chdir(root)
    return root


def differing(name: str = ".") -> list[Line]:
    return [line for _, line in audit([name]) if line.outcome == "differs"]


def test_a_whole_run_differs_in_nothing_and_says_what_it_cannot_tell(project: Path) -> None:
    lines = [line for _, line in audit(["."])]
    assert [line for line in lines if line.outcome == "differs"] == []
    equal = [line.what for line in lines if line.outcome == "recomputed and equal"]
    for told in (
        "job id",
        "sealed report",
        "metrics from predictions: accuracy",
        "gates",
        "total",
        "model.safetensors",
        "sft train: data/inputs/sft-train.jsonl",
        "data/models/sft/",
        "data/models/sft, as evaluate read it",
        "metrics/campaign.json: authorization_usd",
        "attempt nodus-sft-train-2: role",
    ):
        assert any(told in what for what in equal), told
    assert [line for line in lines if line.outcome == "cannot be recomputed here"] == []
    (project / "data/inputs/sft-train.jsonl").unlink()
    unknown = {line.what: line.recomputed for _, line in audit(["."]) if line.outcome == "cannot be recomputed here"}
    assert unknown["sft train: data/inputs/sft-train.jsonl"].endswith("neither in the DVC cache nor in the workspace")


def test_a_revision_is_audited_from_the_cache(project: Path) -> None:
    assert not differing("HEAD")
    (project / "data/models/sft/model.safetensors").write_bytes(b"altered")
    assert not differing("HEAD")
    assert any("model.safetensors" in line.what for line in differing("."))


def test_one_flipped_byte_of_the_model_is_named(project: Path) -> None:
    flip(project / "data/models/pretrain/model.safetensors")
    found = differing()
    assert {line.what for line in found} == {
        "data/models/pretrain/model.safetensors",
        "pretrain train: model/model.safetensors",
    }
    assert all(line.recorded != line.recomputed for line in found)


@pytest.mark.parametrize(
    ("name", "readers"),
    [
        ("sft-train.jsonl", ["sft train"]),
        ("pretrain-test.jsonl", ["pretrain baseline", "pretrain evaluate"]),
    ],
)
def test_one_flipped_byte_of_an_input_is_named(project: Path, name: str, readers: list[str]) -> None:
    flip(project / "data/inputs" / name)
    found = {line.what for line in differing()}
    assert found == {f"data/inputs/{name}", *(f"{reader}: data/inputs/{name}" for reader in readers)}


@pytest.mark.parametrize("cached", [True, False])
def test_one_flipped_digit_of_a_folders_digest_is_named(project: Path, cached: bool) -> None:
    """Without the cache the folder itself is all that there is to go by; at a revision, what others read of it."""
    path = project / "dvc.lock"
    text = path.read_text()
    digest = str(yaml.safe_load(text)["stages"]["evaluate"]["deps"][0]["md5"])
    altered = ("0" if digest[0] != "0" else "1") + digest[1:]
    path.write_text(text.replace(digest, altered, 1))
    if not cached:
        shutil.rmtree(project / ".dvc")
    found = {line.what: line for line in differing()}
    assert found["data/models/pretrain/"][2:] == (altered, digest)
    assert "dvc.lock: data/models/pretrain, as evaluate read it" in found
    commit(project, "altered")
    assert {"dvc.lock: data/models/pretrain, as evaluate read it"} <= {line.what for line in differing("HEAD")}
    path.write_text(text.replace(digest, altered))
    assert [line.what for line in differing()] == ["data/models/pretrain/"]


def test_one_edited_prediction_is_named_and_gives_other_metrics(project: Path) -> None:
    path = project / "data/predictions/sft/evaluate.jsonl"
    path.write_text(path.read_text().replace('"correct":true', '"correct":false', 1))
    named = {line.what: line for line in differing()}
    accuracy = named["sft evaluate: metrics from predictions: accuracy"]
    assert (accuracy.recorded, accuracy.recomputed) == ("0.95", "0.925")
    assert {"data/predictions/sft/evaluate.jsonl", "sft evaluate: predictions.jsonl"} <= named.keys()


EVIDENCE = "metrics/sft/evidence/train.json"


@pytest.mark.parametrize(
    ("path", "keys", "named"),
    [
        ("metrics/sft/evaluate.json", ("accuracy",), "sft evaluate: metrics from predictions: accuracy"),
        ("metrics/pretrain/evaluate.json", ("nll",), "pretrain evaluate: metrics from predictions: nll"),
        ("metrics/sft/train.json", ("trainer_seconds",), "sft train: metrics and environment"),
        ("metrics/sft/train.json", ("delivery_seconds",), "sft train: delivery seconds"),
        ("metrics/sft/train.json", ("charge_usd",), "sft train: charge"),
        ("metrics/sft/gate.json", ("accuracy", "threshold"), "sft: gates"),
        (EVIDENCE, ("environment", "gpu", "memory_bytes"), "sft train: metrics and environment"),
        (EVIDENCE, ("job", "training", "seed"), "sft train: job id"),
        (EVIDENCE, ("job", "inputs", "sft-train.jsonl"), "sft train: pin of sft-train.jsonl"),
        (EVIDENCE, ("job", "code"), "sft train: worker code"),
        (EVIDENCE, ("protocol", "sha256"), "sft train: protocol"),
        (EVIDENCE, ("training_tokens_sha256",), "sft train: metrics and environment"),
        (EVIDENCE, ("model_weights_sha256",), "sft: weights digest"),
        (EVIDENCE, ("loaded_weights_sha256",), "sft train: metrics and environment"),
        (EVIDENCE, ("output", "model/config.json", "sha256"), "sft train: model/config.json"),
        (EVIDENCE, ("timings", "worker_seconds"), "sft train: metrics and environment"),
        (EVIDENCE, ("timings", "delivery_seconds"), "sft train: delivery clock"),
        (EVIDENCE, ("receipt", "charge_usd"), "sft train: charge"),
        (EVIDENCE, ("receipt", "segments", "running", "usd"), "sft train: sum of segments"),
        ("metrics/campaign.json", ("recorded_usd",), "metrics/campaign.json: total"),
    ],
)
def test_one_edited_digit_is_named(project: Path, path: str, keys: tuple[str, ...], named: str) -> None:
    edit(project / path, digit(*keys))
    found = [line.what for line in differing()]
    assert any(what.startswith(named) for what in found), found


def test_one_edited_digit_in_the_loss_curve_or_the_protocol_is_named(project: Path) -> None:
    (project / "metrics/sft/loss.csv").write_text("step,epoch,loss\n2,0.5,1.4\n4,1.0,0.5\n")
    assert "sft train: log_history.csv (metrics/sft/loss.csv)" in {line.what for line in differing()}
    path = project / "protocols/embedded.yaml"
    path.write_text(path.read_text().replace("accuracy_at_least: 0.8", "accuracy_at_least: 0.7"))
    assert {"sft train: protocol", "sft: gates"} <= {line.what for line in differing()}


def test_one_edited_digit_in_the_reference_is_named(project: Path) -> None:
    edit(project / "reference/pilot/nodus/sft/train.json", digit("trainer_seconds"))
    assert {line.what for line in differing()} == {"reference/pilot/nodus/sft/train.json"}


@pytest.mark.parametrize(
    ("key", "value", "was"),
    [
        ("charge", "0.21", "0.25"),
        ("held", "2.00", "1.00"),
        ("role", "superseded", "headline_successful_attempt"),
        ("detail", "interrupted", None),
        ("final", False, True),
        ("job", "b" * 64, "a" * 64),
        ("platform", "modal", "nodus"),
    ],
)
def test_one_edit_of_an_exported_attempt_is_named(project: Path, key: str, value: Any, was: Any) -> None:
    name = f"{key}_usd" if key in ("charge", "held") else key
    edit(project / "metrics/campaign.json", lambda found: found["attempts"][0].update({name: value}))
    found = {line.what: line for line in differing()}
    assert found[f"attempt nodus-sft-train-1: {key}"][2:] == (str(value), str(was))


@pytest.mark.parametrize("key", ["authorization_usd", "cap_usd", "reserve_usd"])
def test_one_edited_digit_of_the_budget_is_named(project: Path, key: str) -> None:
    edit(project / "metrics/campaign.json", digit(key))
    assert f"metrics/campaign.json: {key}" in {line.what for line in differing()}


def test_an_attempt_that_is_gone_from_the_export_or_not_in_the_ledger_is_named(project: Path) -> None:
    path = project / "metrics/campaign.json"
    before = path.read_bytes()
    edit(path, lambda found: found["attempts"].pop())
    found = {line.what: line for line in differing()}
    told = ("not in the export", "headline_successful_attempt, 0.10")
    assert found["attempt nodus-sft-train-2"][2:] == told
    path.write_bytes(before)
    edit(path, lambda found: found["attempts"].append({**found["attempts"][0], "id": "nodus-sft-train-7"}))
    found = {line.what: line for line in differing()}
    assert found["attempt nodus-sft-train-7"].recomputed == "not in the ledger"


def test_an_attempt_that_was_begun_after_the_run_is_no_difference(project: Path, monkeypatch: Any) -> None:
    """The campaign goes on, the revision does not."""
    file = ledger.path(BUDGET.name)
    before = file.read_bytes()
    later = datetime.now(UTC) + timedelta(days=1)
    monkeypatch.setattr(chain, "datetime", SimpleNamespace(now=lambda zone: later))
    try:
        job, amount = "c" * 64, Decimal("1.00")
        ledger.reserve(BUDGET, job=job, platform="nodus", task="sft", stage="train", amount=amount)
        assert [line for line in differing() if line.what.startswith("attempt")] == []
        lines = {line.what: line for _, line in audit(["."])}
        assert "a later export has it" in lines["attempt nodus-sft-train-3"].recomputed
    finally:
        file.write_bytes(before)


def test_one_edited_digit_in_the_ledger_is_named(project: Path) -> None:
    file = ledger.path(BUDGET.name)
    before = file.read_bytes()
    file.write_bytes(before.replace(b'"0.25"', b'"0.35"'))
    try:
        assert any("audited.jsonl:2: altered" in line.recomputed for line in differing())
    finally:
        file.write_bytes(before)


def test_a_damaged_document_is_a_difference_and_no_crash(project: Path) -> None:
    (project / EVIDENCE).write_text("{")
    assert EVIDENCE in {line.what for line in differing()}
    (project / EVIDENCE).write_text('{"protocol": 3}')
    assert any(line.recorded == "readable documents" for line in differing())


def test_the_command_exits_with_1_on_a_difference_only(project: Path) -> None:
    env = {"PYTHONPATH": str(project), "COLUMNS": "250"}
    sound = stage("audit", "HEAD", cwd=project, env=env)
    assert sound.returncode == 0, sound.stdout
    flip(project / "data/models/sft/model.safetensors")
    found = stage("audit", cwd=project, env=env)
    assert found.returncode == 1
    assert "data/models/sft/model.safetensors" in found.stdout
    listed = json.loads(stage("audit", "--json", cwd=project, env=env).stdout)
    assert {line["outcome"] for line in listed} == {"recomputed and equal", "differs", "cannot be recomputed here"}
