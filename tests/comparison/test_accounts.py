"""Promise: a campaign's failed attempts are paid once, by whose they are, and a late bill counts as a timely one."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.command import ParityError
from stages.comparison.accounts import read
from stages.comparison.compare import Comparison, build, document
from stages.comparison.tables import markdown
from stages.evidence.digests import write_json
from stages.publish import documents
from tests.comparison.build import START, branch, commit
from tests.comparison.judge import HOUR, claim, found, in_evidence, set_in
from tests.conftest import run

CAMPAIGN = Path("metrics/campaign.json")


def entry(number: int, job: str | None, charge: str | None, **values: Any) -> dict[str, Any]:
    fields = {"platform": "nodus", "task": "sft", "stage": "train", "role": "failed", "held_usd": "1.00", "final": True}
    return {"id": f"nodus-sft-train-{number}", "job": job, "charge_usd": charge} | fields | values


def export(*entries: dict[str, Any], path: Path = CAMPAIGN, name: str = "default") -> Path:
    """A campaign's export in the workspace, as no branch that DVC made holds one."""
    budget = {"name": name, "authorization_usd": "5.00", "cap_usd": "1.00", "reserve_usd": "1.00"}
    write_json(path, {"version": 1, **budget, "attempts": list(entries), "recorded_usd": "0"})
    return path


def job(name: str, stage: str = "train", task: Any = "sft") -> str | None:
    (run,) = read([name])
    return run.tasks[task].evidence[stage].job.id


def runs(repo: Path) -> None:
    """Three runs on one platform, each of 0.30 USD a task, and one on another."""
    for seed in (1, 2, 3):
        branch(repo, f"n{seed}", platform="nodus", seed=seed, charge="0.10", start=START + HOUR * seed)
    branch(repo, "m", platform="modal", charge="0.20")


def including(comparison: Comparison) -> dict[str, str]:
    return {side.label: str(side.including_failed("sft")) for side in comparison.sides}


def test_a_failed_attempt_is_the_run_whose_job_it_was_of(repo: Path) -> None:
    runs(repo)
    export(entry(1, job("n1"), "0.50"), entry(2, job("n1"), "0.10", role="headline_successful_attempt"))
    assert including(build(read(["n1", "n2"]))) == {"n1": "0.80", "n2": "0.30"}


def test_one_of_another_job_is_shared_once(repo: Path) -> None:
    runs(repo)
    export(entry(1, "f" * 64, "0.50"), entry(2, None, "0.05"))
    comparison = build(read(["n1", "n2", "n3", "m"]), "run")
    shared = Decimal("0.30") + Decimal("0.55") / 3
    costs = [Decimal(cost) for cost in including(comparison).values()]
    assert costs[0].quantize(Decimal("1e-20")) == shared.quantize(Decimal("1e-20"))
    assert sum(costs).quantize(Decimal("1e-20")) == Decimal("0.30") * 3 + Decimal("0.60") + Decimal("0.55")
    together = build(read(["n1", "n2", "n3", "m"]))
    assert {side.label: side.failures("sft") for side in together.sides} == {"nodus": 2, "modal": 0}
    assert [account.name for account in together.campaigns] == ["default"]


def test_one_that_a_receipt_lists_is_in_its_charge_already(repo: Path) -> None:
    tries = [{"outcome": "failed", "charge_usd": "0.04"}, {"outcome": "succeeded", "charge_usd": "0.06"}]
    branch(repo, "a", charge="0.10", platform="nodus", edit=in_evidence(set_in("receipt", "attempts", value=tries)))
    export(entry(1, job("a"), "0.04"))
    (side,) = build(read(["a"])).sides
    assert (str(side.charges("sft")[0].usd), str(side.including_failed("sft"))) == ("0.18", "0.30")
    assert side.attempts("sft") == 6


def test_a_rehearsal_has_no_part_in_what_was_paid_for_the_same_job(repo: Path) -> None:
    branch(repo, "paid", platform="nodus", charge="0.10")
    rehearsal = in_evidence(set_in("rehearsal", value=True))
    branch(repo, "free", platform="nodus", charge="0.10", start=START + HOUR, edit=rehearsal)
    assert job("paid") == job("free")
    export(entry(1, job("paid"), "0.50"))
    assert including(build(read(["paid", "free"]))) == {"nodus": "0.80", "nodus (rehearsal)": "0.30"}


def test_attempts_are_counted_per_run(repo: Path) -> None:
    """Three stages in each run; what the campaign has beside them is shared."""
    runs(repo)
    assert found(build(read(["n1", "n2", "m"])), "attempts") is None
    export(entry(1, job("n1"), "0.50"), entry(2, job("n2"), "0.10", role="headline_successful_attempt"))
    deviation = found(build(read(["n1", "n2", "m"])), "attempts")
    assert deviation
    assert (deviation.task, deviation.values) == ("sft", {"nodus": "3.5", "modal": "3"})


def test_two_machines_may_have_given_the_same_name_to_an_attempt(repo: Path) -> None:
    branch(repo, "here", platform="nodus", seed=1, charge="0.10")
    branch(repo, "there", platform="nodus", seed=2, charge="0.10")
    attempts = [entry(1, job("here"), "0.50"), entry(1, job("there"), "0.20")]
    for name, attempt in zip(("here", "there"), attempts, strict=True):
        branch_export(repo, name, attempt)
    assert including(build(read(["here", "there"]))) == {"here": "0.80", "there": "0.50"}
    (account,) = build(read(["here", "there"])).campaigns
    assert account.recorded_usd == "0.70"


def branch_export(repo: Path, name: str, *entries: dict[str, Any]) -> None:
    run("git", "checkout", "--quiet", name, cwd=repo)
    export(*entries)
    commit(repo, "export")
    run("git", "checkout", "--quiet", "main", cwd=repo)


# Late bills.


def late(repo: Path, **values: Any) -> list[dict[str, Any]]:
    """A run on Modal whose receipts came before its bill, and what the campaign booked of its six jobs."""
    branch(repo, "a", platform="nodus", charge="0.10")
    branch(repo, "b", platform="modal", charge=None, final=False, start=START + HOUR)
    booked = {"platform": "modal", "role": "headline_successful_attempt"} | values
    stages = [(task, stage) for task in ("sft", "pretrain") for stage in ("baseline", "train", "evaluate")]
    return [
        entry(1, job("b", stage, task), "0.20", **({"id": f"modal-{task}-{stage}-1", "task": task} | booked))
        for task, stage in stages
    ]


def test_a_late_bill_counts_and_is_said_to_be_late(repo: Path) -> None:
    entries = late(repo)
    assert claim(build(read(["a", "b"])), "cost")[1] == "modal has no charge recorded for sft"
    export(*entries)
    comparison = build(read(["a", "b"]))
    assert claim(comparison, "cost") == (True, "sft 0.30 against 0.60 USD; pretrain 0.30 against 0.60 USD")
    deviation = found(comparison, "late_bills")
    assert deviation
    assert deviation.values["modal"].startswith("sft baseline, sft train, sft evaluate, pretrain baseline")
    assert found(comparison, "receipts_not_final") is None
    assert "| 0.60 USD | final; baseline + train + evaluate from the campaign |" in markdown(comparison)
    told = document(comparison)["sides"][1]["runs"][0]["tasks"]["sft"]
    assert (told["charge_usd"], told["charge_final"]) == ("0.60", True)
    assert told["charge_from_campaign"] == ["baseline", "train", "evaluate"]
    assert documents(["a", "b"])["results.json"]["stages"][0]["successful_attempt_charge_reduction_percent"] == 50.0  # type: ignore[index]


@pytest.mark.parametrize("values", [{"final": False}, {"charge_usd": None}, {"job": "f" * 64}, {"platform": "nodus"}])
def test_a_bill_that_is_not_final_or_of_another_job_does_not(repo: Path, values: dict[str, Any]) -> None:
    entries = late(repo)
    export(*({**each, **values} for each in entries))
    comparison = build(read(["a", "b"]))
    assert claim(comparison, "cost") == (False, "modal has no charge recorded for sft")
    assert found(comparison, "receipts_not_final")


def test_a_late_bill_of_a_failed_attempt_is_no_part_of_the_headline(repo: Path) -> None:
    entries = late(repo)
    failed = {**entries[1], "id": "modal-sft-train-0", "role": "failed", "charge_usd": "0.07"}
    export(failed, *entries)
    modal = build(read(["a", "b"])).sides[1]
    assert str(modal.charges("sft")[0].usd) == "0.60"
    assert str(modal.including_failed("sft")) == "0.67"


def test_a_campaign_can_be_named_and_has_to_be_there(repo: Path, tmp_path: Path) -> None:
    entries = late(repo)
    with pytest.raises(ParityError, match=r"elsewhere\.json: no such file; `python -m stages\.campaign export --out"):
        read(["a", "b"], tmp_path / "elsewhere.json")
    elsewhere = export(*entries, path=tmp_path / "elsewhere.json")
    assert claim(build(read(["a", "b"], elsewhere)), "cost")[0]


def test_an_export_on_a_branch_is_brought_up_to_date_by_a_later_one(repo: Path) -> None:
    entries = late(repo)
    branch_export(repo, "b", *({**each, "final": False, "charge_usd": None} for each in entries))
    assert not claim(build(read(["a", "b"])), "cost")[0]
    export(*entries)
    assert claim(build(read(["a", "b"])), "cost")[0]
