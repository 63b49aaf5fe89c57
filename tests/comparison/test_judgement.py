"""Promise: deviations are found in the evidence with their values, and a claim holds only when it is shown."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stages.comparison.compare import Comparison, build
from stages.comparison.gates import cross_verdicts
from stages.comparison.runs import read_runs
from stages.comparison.schedule import Deviation
from stages.protocol import Protocol
from tests.comparison.build import START, branch

HOUR = timedelta(hours=1)
Change = Callable[[dict[str, Any]], None]


def in_evidence(change: Change) -> Callable[[str, dict[str, Any]], None]:
    return lambda path, found: change(found) if "evidence" in path else None


def compared(repo: Path, change: Change | None = None, **options: Any) -> Comparison:
    """Two platforms that differ in `change`, or in the options of the second."""
    branch(repo, "a", platform="nodus", charge="0.10", start=START)
    edit = in_evidence(change) if change else lambda path, found: None
    branch(repo, "b", **({"platform": "modal", "charge": "0.20", "start": START + HOUR, "edit": edit} | options))
    return build(read_runs(["a", "b"]))


def found(comparison: Comparison, item: str) -> Deviation | None:
    return next((deviation for deviation in comparison.deviations if deviation.item == item), None)


def set_in(*keys: str, value: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("item", "change", "value"),
    [
        ("cpu_limits", set_in("environment", "cpu", "cgroup_limit", value=2.0), "cgroup_limit 2.0"),
        ("memory_limits", set_in("environment", "memory", "cgroup_limit_bytes", value=1 << 30), str(1 << 30)),
        ("gpu", set_in("environment", "gpu", "name", value="NVIDIA T4"), "NVIDIA T4"),
        ("gpu_memory", set_in("environment", "gpu", "memory_bytes", value=1), "1"),
        ("gpu_driver", set_in("environment", "gpu", "driver", value=None), "not recorded"),
        ("versions", set_in("environment", "versions", "trl", value="1.14.0"), "trl 1.14.0"),
        ("versions_off_pins", set_in("environment", "versions", "trl", value="1.14.0"), "trl 1.14.0, pinned 1.13.0"),
        ("receipts_not_final", set_in("receipt", "final", value=False), "sft baseline, sft train, sft evaluate"),
        ("cache", set_in("receipt", "resources", value={"cache": "warm"}), "cache warm"),
        ("attempts", set_in("receipt", "attempts", value=[{"outcome": "preempted"}, {"outcome": "succeeded"}]), "6"),
        ("protocol_edited", set_in("protocol", "sha256", value="3" * 64), "ran 333333333333, stands "),
        ("dirty", set_in("dirty", value=True), "dirty"),
        ("rehearsal", set_in("rehearsal", value=True), "emulator"),
        ("worker_code", set_in("job", "code", value="4" * 64), "4" * 64),
        ("delivery_clock", set_in("timings", "delivery_clock", value="by the sun"), "by the sun; covers train"),
        ("order", set_in("dirty", value=False), "2026-11-01 09:"),
    ],
)
def test_each_deviation_is_found_with_its_values(repo: Path, item: str, change: Change, value: str) -> None:
    deviation = found(compared(repo, change), item)
    assert deviation is not None
    assert any(value in each for each in deviation.values.values()), deviation


def test_like_runs_deviate_in_nothing_but_their_order(repo: Path) -> None:
    assert {deviation.item for deviation in compared(repo).deviations} == {"order"}


def test_a_build_suffix_is_no_deviation_from_a_pin(repo: Path) -> None:
    assert not found(
        compared(repo, set_in("environment", "versions", "torch", value="2.14.0+cu126")), "versions_off_pins"
    )


def test_jobs_that_overlap_are_named_and_a_shared_job_does_not_overlap_itself(repo: Path) -> None:
    deviation = found(compared(repo, start=START + timedelta(seconds=30)), "overlap")
    assert deviation is not None
    assert deviation.values["overlap 1"].startswith(
        "nodus sft baseline ran until 2026-11-01 08:01:50, modal sft baseline"
    )
    assert deviation.values["more"] == "8"


def test_the_same_run_under_two_names_counts_once(repo: Path) -> None:
    branch(repo, "a")
    (repo / "x").write_text("")
    comparison = build(read_runs(["a", "a^{}"]))
    assert found(comparison, "same_run") == (
        "same_run",
        None,
        "The same run under several names counts once.",
        {"a^{}": "same as a"},
    )
    assert [len(side.runs) for side in comparison.sides] == [1]


def claim(comparison: Comparison, name: str) -> tuple[bool, str]:
    return next((c.holds, c.reason) for c in comparison.pairs[0].claims if name in c.name)


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


def repeats(repo: Path, fast: float, slow: float) -> Comparison:
    """Three seeds on each of two like platforms, taken in turns."""
    names = []
    for i, seed in enumerate((1, 2, 3)):
        for j, (platform, seconds, charge) in enumerate((("nodus", fast, "0.10"), ("modal", slow, "0.20"))):
            first = (i + j) % 2
            start = START + HOUR * (4 * i + 2 * first)
            name = f"{platform}-{seed}"
            branch(repo, name, platform=platform, seed=seed, seconds=seconds + i, charge=charge, start=start)
            names.append(name)
    return build(read_runs(names))


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
    assert cross_verdicts(embedded, "pretrain", [{"nll": 2.0199}], [{"nll": 2.0}])["nll_percent_above_other"].passed
    assert not cross_verdicts(embedded, "pretrain", [{"nll": 2.0201}], [{"nll": 2.0}])["nll_percent_above_other"].passed
