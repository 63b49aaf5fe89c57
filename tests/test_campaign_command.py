"""Promise: `python -m stages.campaign` shows, settles and exports the campaign, as a table and as JSON alike."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.evidence import ledger
from stages.platforms.common.lock import locked
from stages.protocol import Campaign
from tests.conftest import ROOT, stage

BUDGET = Campaign(name="default", authorization_usd="5.00", cap_usd="1.00", reserve_usd="1.00")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARITY_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def reserve() -> str:
    amount = Decimal("1.00")
    return ledger.reserve(BUDGET, job="a" * 64, platform="nodus", task="sft", stage="train", amount=amount)


@pytest.fixture
def spent(state: Path) -> str:
    """A settled attempt and a hold in the campaign that params.yaml names."""
    role = "headline_successful_attempt"
    ledger.settle("default", reserve(), role=role, charge_usd=Decimal("0.25"), final=True)
    return reserve()


def command(*arguments: str) -> Any:
    return stage("campaign", *arguments, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "COLUMNS": "160"})


def test_status_shows_attempts_and_what_is_left_as_a_table_and_as_json(spent: str) -> None:
    shown = command("status").stdout
    assert "nodus-sft-train-2" in shown
    assert "0.25 USD spent, 1.00 held or not final, 1.00 kept back, 2.75 of 5.00 left" in shown
    found = json.loads(command("status", "--json").stdout)
    assert (found["available_usd"], found["held_usd"], found["recorded_usd"]) == ("2.75", "1.00", "0.25")


def test_reconcile_keeps_a_hold_that_it_cannot_explain_until_it_is_released(spent: str) -> None:
    shown = command("reconcile").stdout
    assert "Campaign default: what became of its holds" in shown
    assert f"│ {spent} │ still held: nodus: not signed in" in shown
    found = json.loads(command("reconcile", "--json").stdout)
    assert list(found) == [spent]
    assert found[spent].startswith("still held: nodus: not signed in; run `nodus login`")
    refused = command("reconcile", "--release", "nobody")
    assert refused.returncode == 1
    assert f"nobody: no such hold; held are {spent}" in refused.stderr
    assert json.loads(command("reconcile", "--release", spent, "--json").stdout) == {spent: "released: never submitted"}
    assert command("reconcile").stdout.strip() == "nothing is held"
    assert json.loads(command("reconcile", "--json").stdout) == {}


def test_reconcile_leaves_a_job_alone_that_a_process_works_on(spent: str, state: Path) -> None:
    with locked(state / "nodus" / ("a" * 64)):
        found = json.loads(command("reconcile", "--json").stdout)
    assert found == {spent: "still held: a process on this machine is working on it"}


def test_export_writes_what_a_comparison_reads_and_shows_it(spent: str, tmp_path: Path) -> None:
    out = tmp_path / "campaign.json"
    assert command("mark", "nodus-sft-train-1", "superseded", "--detail", "export_configuration").returncode == 0
    shown = command("export", "--out", str(out)).stdout
    assert "2 attempts, 0.25 USD recorded" in shown
    assert "superseded (export configuration)" in shown
    account = ledger.Account.model_validate_json(out.read_bytes())
    assert [entry.role for entry in account.attempts] == ["superseded", "in_flight"]
    assert account == ledger.account(BUDGET)
    told = command("export", "--out", str(tmp_path / "again.json"), "--json").stdout
    assert json.loads(told) == json.loads((tmp_path / "again.json").read_text()) == json.loads(out.read_text())


def test_status_as_json_is_the_account_and_what_is_left_of_it(spent: str) -> None:
    found = json.loads(command("status", "--json").stdout)
    totals = {"spent_usd": "0.25", "held_usd": "1.00", "available_usd": "2.75"}
    assert found == ledger.account(BUDGET).model_dump() | totals
