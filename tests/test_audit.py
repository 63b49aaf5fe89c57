"""Promise: an audit makes everything again that can be made again, and names what was altered, byte by byte."""

import json
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.audit import audit, check_publication
from stages.comparison.audited import Line
from stages.evidence import ledger
from stages.evidence.digests import write_json
from stages.protocol import Campaign
from stages.publish import documents
from tests.comparison.build import Builder, commit, indented, lock, repository
from tests.conftest import ROOT, stage

BUDGET = Campaign(name="audited", authorization_usd="5.00", cap_usd="1.00", reserve_usd="1.00")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is whole: rows, model, predictions, metrics, evidence, dvc.lock, campaign."""
    root = repository(tmp_path_factory.mktemp("audit") / "project")
    Builder(root, platform="nodus", charge="0.10").write()
    lock(root)
    write_json(root / "metrics/campaign.json", account().model_dump())
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
    ):
        assert any(told in what for what in equal), told
    unknown = {line.what: line.recomputed for line in lines if line.outcome == "cannot be recomputed here"}
    assert unknown["sft train: data/inputs/sft-train.jsonl"].endswith("neither in the DVC cache nor in the workspace")


def test_a_revision_is_audited_from_the_cache(project: Path) -> None:
    assert not differing("HEAD")
    (project / "data/models/sft/model.safetensors").write_bytes(b"altered")
    assert not differing("HEAD")
    assert any("model.safetensors" in line.what for line in differing("."))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(path: Path, change: Callable[[Any], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_bytes(indented(document))


def digit(*keys: str) -> Callable[[Any], None]:
    """Change the last digit of a number or text in a document."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        text = str(document[keys[-1]])
        altered = text[:-1] + ("1" if text[-1] != "1" else "2")
        document[keys[-1]] = altered if isinstance(document[keys[-1]], str) else type(document[keys[-1]])(altered)

    return change


def test_one_flipped_byte_of_the_model_is_named(project: Path) -> None:
    flip(project / "data/models/pretrain/model.safetensors")
    found = differing()
    assert {line.what for line in found} == {
        "data/models/pretrain/model.safetensors",
        "pretrain train: model/model.safetensors",
    }
    assert all(line.recorded != line.recomputed for line in found)


def test_one_flipped_byte_of_an_input_is_named(project: Path) -> None:
    path = project / "data/inputs/sft-train.jsonl"
    path.parent.mkdir()
    path.write_text('{"prompt": "a"}\n')
    lock(project)
    named = {line.what for line in differing()}
    assert named == {"sft train: data/inputs/sft-train.jsonl"}  # no such rows give the protocol's pin
    flip(path)
    assert "data/inputs/sft-train.jsonl" in {line.what for line in differing()}


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


def test_one_edited_digit_in_the_ledger_or_an_exported_attempt_is_named(project: Path) -> None:
    path = project / "metrics/campaign.json"
    edit(path, lambda found: digit("charge_usd")(found["attempts"][0]))
    found = {line.what: line for line in differing()}
    assert found["attempt nodus-sft-train-1: charge"][2:] == ("0.21", "0.25")
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


def test_a_published_claim_or_figure_that_was_edited_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names = ["pilot:nodus", "pilot:modal"]
    for name, document in documents(names).items():
        write_json(tmp_path / name, document)
    assert {line.outcome for line in check_publication(names, tmp_path, None)} == {"recomputed and equal"}
    claim = "algorithmic_speedup_established"
    edit(tmp_path / "results.json", lambda found: found["claims"].update({claim: True}))
    edit(tmp_path / "execution-record.json", digit("inputs", 0, "sha256"))  # type: ignore[arg-type]
    found = {line.what: line for line in check_publication(names, tmp_path, None) if line.outcome == "differs"}
    assert found.keys() == {f"results.json/claims/{claim}", "execution-record.json/inputs/0/sha256"}
    assert found[f"results.json/claims/{claim}"][2:] == ("True", "False")
