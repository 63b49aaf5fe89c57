"""Promise: a claim holds only where it is shown, and says why where it does not."""

from pathlib import Path
from typing import Any

import pytest

from stages.comparison.compare import build
from stages.comparison.gates import cross_verdicts
from stages.comparison.page import render
from stages.comparison.runs import read_runs
from stages.comparison.tables import markdown
from stages.protocol import Protocol
from stages.publish import documents
from tests.comparison.build import START, branch
from tests.comparison.judge import HOUR, Change, claim, compared, in_evidence, repeats, set_in


def test_a_cost_advantage_needs_final_real_comparable_charges(repo: Path) -> None:
    assert claim(compared(repo), "cost_advantage") == (
        True,
        "sft 0.30 against 0.60 USD; pretrain 0.30 against 0.60 USD",
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"charge": None}, "modal has no charge recorded for sft"),
        ({"final": False}, "the receipts of modal for sft are not final"),
        ({"edit": in_evidence(set_in("rehearsal", value=True))}, "modal (rehearsal) charges nobody"),
        (
            {"edit": in_evidence(set_in("covers", value=["train", "evaluate"]))},
            "the charges for sft cover different stages",
        ),
        ({"charge": "0.05"}, "sft 0.30 against 0.15 USD"),
    ],
)
def test_no_cost_advantage_without_them(repo: Path, options: dict[str, Any], reason: str) -> None:
    holds, why = claim(compared(repo, **options), "cost_advantage")
    assert not holds
    assert why.startswith(reason)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"edit": in_evidence(set_in("rehearsal", value=True))}, "modal (rehearsal) charges nobody"),
        ({"final": False}, "the receipts of modal for sft are not final"),
        ({"edit": in_evidence(set_in("protocol", "name", value="pilot"))}, "the protocols differ: embedded and pilot"),
    ],
)
def test_no_price_is_set_against_another_without_them_anywhere(repo: Path, options: dict[str, Any], why: str) -> None:
    """Neither in the headline, nor in a table, nor on the page, nor in a publication."""
    comparison = compared(repo, **options)
    pair = comparison.pairs[0].tasks["sft"]
    assert ("charge_usd" in pair.differences, pair.failed_reduction_percent, pair.unpriced) == (False, None, why)
    text, page = markdown(comparison), render(comparison)
    assert f"are not set against each other: {why}." in text
    for told in (text, page):
        assert "% less" not in told
        assert "-50.00 %" not in told
    if "protocols" not in why:
        stage = documents(["a", "b"])["results.json"]["stages"][0]  # type: ignore[index]
        assert stage["successful_attempt_charge_reduction_percent"] is None
        assert stage["modal"]["recorded_successful_attempt_usd"] == (None if "rehearsal" in why else "0.60")


def test_a_failed_attempt_is_no_part_of_the_headline_charge(repo: Path) -> None:
    failed = [{"outcome": "failed", "charge_usd": "0.05"}, {"outcome": "succeeded", "charge_usd": "0.15"}]
    comparison = compared(repo, set_in("receipt", "attempts", value=failed))
    modal = comparison.sides[1]
    assert str(modal.charges("sft")[0].usd) == "0.45"
    assert str(modal.including_failed("sft")) == "0.60"
    unknown = [{"outcome": "failed"}, {"outcome": "succeeded"}]
    branch(repo, "c", platform="modal", charge="0.20", edit=in_evidence(set_in("receipt", "attempts", value=unknown)))
    (side,) = build(read_runs(["c"])).sides
    assert side.charges("sft")[0].usd is None
    assert str(side.including_failed("sft")) == "0.60"


def test_weights_are_compared_seed_by_seed(repo: Path) -> None:
    assert claim(compared(repo), "identical")[0]
    branch(repo, "c", platform="modal", weights="others", start=START + 2 * HOUR)
    assert claim(build(read_runs(["a", "c"])), "identical") == (False, "sft, seed 11: the digests differ")
    branch(repo, "d", platform="modal", seed=12, start=START + 3 * HOUR)
    assert "no seed of sft is recorded on both sides" in claim(build(read_runs(["a", "d"])), "identical")[1]


def test_repeats_establish_a_speed_up_on_equal_machines_and_the_spread(repo: Path) -> None:
    comparison = repeats(repo, 50.0, 100.0)
    assert [len(side.runs) for side in comparison.sides] == [3, 3]
    for name in ("variance", "speedup", "superiority"):
        assert claim(comparison, name)[0], claim(comparison, name)
    assert comparison.pairs[0].tasks["sft"].differences["trainer_seconds"].method == "paired by seed, 3 pairs"


def test_no_speed_up_where_there_is_none(repo: Path) -> None:
    comparison = repeats(repo, 100.0, 100.0)
    assert claim(comparison, "variance")[0]
    assert not claim(comparison, "speedup")[0]
    assert not claim(comparison, "superiority")[0]


def forget(*parts: str) -> Change:
    """Take these out of what the worker saw of its machine."""

    def change(found: dict[str, Any]) -> None:
        for part in parts:
            found["environment"][part] = None

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (set_in("environment", "gpu", "name", value="NVIDIA T4"), "gpu"),
        (set_in("environment", "gpu", "driver", value="560.1.1"), "gpu_driver"),
        (set_in("environment", "memory", "cgroup_limit_bytes", value=1 << 30), "memory_limits"),
        (set_in("receipt", "resources", value={"cpus": 2}), "cpu_limits"),
        (set_in("job", "code", value="4" * 64), "worker_code"),
        (set_in("dirty", value=True), "dirty"),
        (set_in("receipt", "resources", value={"cache": "warm"}), "cache"),
        (set_in("environment", "versions", "trl", value="1.14.0"), "versions, versions_off_pins"),
    ],
)
def test_what_else_may_explain_a_shorter_time_is_not_ruled_out(repo: Path, change: Change, why: str) -> None:
    holds, reason = claim(repeats(repo, 50.0, 100.0, edit=in_evidence(change)), "speedup")
    assert (holds, reason) == (False, f"other causes are not ruled out: {why}")


def test_no_speed_up_on_machines_of_which_nothing_is_recorded(repo: Path) -> None:
    """Equal because unknown is not equal."""
    change = in_evidence(forget("cpu", "memory"))
    for seed, platform, seconds in ((1, "nodus", 50.0), (1, "modal", 100.0), (2, "modal", 101.0), (2, "nodus", 51.0)):
        start = START + HOUR * (2 * seed + (platform == ("modal", "nodus")[seed - 1]))
        options = {"charge": "0.10", "seconds": seconds, "start": start, "edit": change}
        branch(repo, f"{platform}-{seed}", platform=platform, seed=seed, **options)
    comparison = build(read_runs(["nodus-1", "modal-1", "nodus-2", "modal-2"]))
    assert comparison.deviations == []
    why = "sft: not recorded of nodus: CPU limit, memory limit; not shown to be alike"
    assert claim(comparison, "speedup") == (False, why)


def test_a_gpu_has_to_be_recorded_where_one_trained(repo: Path) -> None:
    def change(found: dict[str, Any]) -> None:
        found["device"] = "cuda"
        found["environment"]["gpu"] |= {"memory_bytes": None, "driver": None}

    names = []
    for i, (seed, platform) in enumerate(((1, "nodus"), (1, "modal"), (2, "modal"), (2, "nodus"))):
        options = {"seconds": 50.0 + seed + 50 * (platform == "modal"), "start": START + HOUR * i}
        branch(repo, f"{platform}-{seed}", platform=platform, seed=seed, edit=in_evidence(change), **options)
        names.append(f"{platform}-{seed}")
    holds, reason = claim(build(read_runs(names)), "speedup")
    assert (holds, reason.split(";")[0]) == (False, "sft: not recorded of nodus: GPU memory, GPU driver")


def test_nothing_is_claimed_of_runs_of_which_nobody_knows_when_they_were(repo: Path) -> None:
    """They may have overlapped, or come one after the other."""

    def change(found: dict[str, Any]) -> None:
        found["timings"] |= {"worker_started_utc": None, "submitted_utc": None}

    comparison = repeats(repo, 50.0, 100.0, edit=in_evidence(change))
    for name in ("speedup", "superiority"):
        assert claim(comparison, name) == (False, "sft: not recorded of modal: start; not shown to be alike")


def test_nothing_is_claimed_where_one_platform_always_came_first(repo: Path) -> None:
    """In every pair, though the pairs themselves are mixed."""
    comparison = repeats(repo, 50.0, 100.0, in_turns=False)
    assert {deviation.task for deviation in comparison.deviations if deviation.item == "order"} == {"sft", "pretrain"}
    for name in ("speedup", "superiority"):
        assert claim(comparison, name) == (False, "other causes are not ruled out: order")


def test_no_superiority_at_lower_quality(repo: Path) -> None:
    better = repeats(repo, 50.0, 100.0, good=39)
    assert claim(better, "superiority") == (False, "sft: the quality is lower")
    assert claim(better, "speedup")[0]


def test_no_superiority_where_jobs_overlapped(repo: Path) -> None:
    comparison = repeats(repo, 50.0, 5000.0)
    assert "overlap" in claim(comparison, "superiority")[1]
    assert not claim(comparison, "superiority")[0]


def test_two_runs_of_one_platform_stand_against_each_other_and_three_are_repeats(repo: Path) -> None:
    for seed in (1, 2, 3):
        branch(repo, f"s{seed}", seed=seed, start=START + HOUR * seed)
    assert [side.label for side in build(read_runs(["s1", "s2"])).sides] == ["s1", "s2"]
    three = build(read_runs(["s1", "s2", "s3"]))
    assert [(side.label, len(side.runs)) for side in three.sides] == [("local", 3)]
    assert len(build(read_runs(["s1", "s2", "s3"]), "run").pairs) == 3


def test_a_users_own_run_compares_with_the_published_one(repo: Path) -> None:
    branch(repo, "mine", platform="modal", charge="0.20")
    comparison = build(read_runs(["mine", "pilot:modal"]))
    assert [side.label for side in comparison.sides] == ["modal", "pilot:modal"]
    assert comparison.pairs[0].tasks["sft"].matching["input_hashes"].equal is False
    assert "protocol" in {deviation.item for deviation in comparison.deviations}


def test_cross_platform_gates_are_exact_at_their_edge(embedded: Protocol) -> None:
    def accuracy(correct: int) -> list[dict[str, Any]]:
        return [{"correct": correct, "rows": 100}]

    assert cross_verdicts(embedded, "sft", accuracy(58), accuracy(60))["accuracy_points_below_other"].passed
    assert not cross_verdicts(embedded, "sft", accuracy(57), accuracy(60))["accuracy_points_below_other"].passed

    def nll(value: float) -> list[dict[str, Any]]:
        return [{"nll": value}]

    for own, other, met in (
        (2.02, 2.0, True),  # exactly 1 %
        (2.020000000000001, 2.0, False),
        (2.0199999999999996, 2.0, True),
        (3.03, 3.0, True),
        (2.0, 2.02, True),
        (2.1, 2.0, False),
    ):
        verdict = cross_verdicts(embedded, "pretrain", nll(own), nll(other))["nll_percent_above_other"]
        assert (verdict.passed, verdict.threshold) == (met, 1.0), (own, other)
    means = cross_verdicts(embedded, "pretrain", nll(2.01) + nll(2.03), nll(2.0))["nll_percent_above_other"]
    assert (means.value, means.passed) == (1.0, True)
