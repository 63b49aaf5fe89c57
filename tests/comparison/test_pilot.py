"""Promise: from `reference/` alone, every derived figure of the published pilot comes out to its last digit."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.comparison.accounts import merged
from stages.comparison.compare import Comparison, build
from stages.comparison.publication import two_sides
from stages.comparison.runs import read_runs
from stages.comparison.tables import markdown
from stages.publish import documents

PILOT = ["pilot:nodus", "pilot:modal"]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return build(read_runs(PILOT))


@pytest.mark.parametrize(
    ("task", "key", "expected"),
    [
        ("sft", "charge_usd", "66.9785002206587"),
        ("pretrain", "charge_usd", "42.54984357250415"),
        ("sft", "trainer_seconds", "35.37581474656912"),
        ("pretrain", "trainer_seconds", "15.312226042603584"),
    ],
)
def test_reductions_come_out_to_the_last_printed_digit(
    comparison: Comparison, task: Any, key: str, expected: str
) -> None:
    assert Decimal(repr(comparison.pairs[0].tasks[task].differences[key].reduction_percent)) == Decimal(expected)


def test_the_campaign_comes_out_with_its_failed_attempt(comparison: Comparison) -> None:
    (account,) = comparison.campaigns
    assert sum(Decimal(entry.charge_usd or "") for entry in account.attempts) == Decimal("1.19670630")
    assert len(account.attempts) == 8
    nodus = comparison.sides[0]
    assert nodus.including_failed("sft") == Decimal("0.111004")
    assert nodus.including_failed("pretrain") == Decimal("0.121164")
    found = comparison.pairs[0].tasks["sft"].failed_reduction_percent
    assert Decimal(repr(found)) == Decimal("24.726495779817608")


def test_claims_gates_and_matching_evidence_are_the_published_ones(comparison: Comparison, pilot: Path) -> None:
    published = json.loads((pilot / "results.json").read_text())
    (pair,) = comparison.pairs
    assert {claim.name: claim.holds for claim in pair.claims} == published["claims"]
    for stage in published["stages"]:
        matching = {name: match.equal for name, match in pair.tasks[stage["stage"]].matching.items()}
        assert matching == stage["matching_evidence"]
        assert all(verdict.passed for verdict in pair.tasks[stage["stage"]].gates.values())


def test_the_published_deviations_that_figures_can_show_are_found(comparison: Comparison) -> None:
    found = {(deviation.item, deviation.task) for deviation in comparison.deviations}
    assert {
        ("cpu_limits", "sft"),
        ("gpu_memory", "sft"),
        ("attempts", "sft"),
        ("overlap", None),
        ("order", "sft"),
        ("order", "pretrain"),
    } <= found
    assert ("gpu_memory", "pretrain") not in found
    assert "versions_off_pins" not in {item for item, _ in found}


def differences(published: Any, ours: Any, path: str = "") -> dict[str, Any]:
    """Leaves of `published` that `ours` has not, or has differently."""
    if isinstance(published, dict):
        keys = published if isinstance(ours, dict) else {}
        pairs = {f"{path}/{key}": (value, ours.get(key)) for key, value in keys.items()}
    elif isinstance(published, list) and isinstance(ours, list) and len(published) == len(ours):
        pairs = {f"{path}/{i}": pair for i, pair in enumerate(zip(published, ours, strict=True))}
    else:
        return {} if published == ours else {path: published}
    return {k: v for where, pair in pairs.items() for k, v in differences(*pair, where).items()}


# Sentences, which are this project's own words, and what no figure can tell. Everything else has to be equal.
PROSE = {
    "results.json": """
        /title /scope /cost_scope /campaign/credits /cleanup/allocation_detail_limitation /provenance/sanitization
        /timing_definitions/trainer /timing_definitions/nodus_delivery /timing_definitions/modal_delivery
        /timing_definitions/native_charge_segment_seconds
    """,
    "execution-record.json": """
        /purpose /warmup_note /deviations /limits
        /execution/nodus /execution/modal /execution/native_internal_benchmark_access
        /data_preparation/normalization /data_preparation/sft/selection /data_preparation/sft/loss
        /data_preparation/pretrain/selection /data_preparation/pretrain/evaluation_selection
        /data_preparation/input_serialization /data_preparation/base_pretraining_contamination
        /evaluation/baseline /evaluation/sft/method /evaluation/pretrain/method /evaluation/pretrain/nll
        /evaluation/pretrain/perplexity /evaluation/quality_gates/pretraining /evaluation/quality_gates/finetuning
        /evaluation/quality_gates/pretraining_gate /evaluation/quality_gates/finetuning_gate
        /evaluation/quality_gates/test_policy
        /resource_controls/nodus/effective_cpu_limit /resource_controls/modal/cpu_units
        /timing_definitions/trainer /timing_definitions/nodus_delivery /timing_definitions/modal_delivery
        /timing_definitions/native_charge_segment_seconds
    """,
}


@pytest.mark.parametrize("name", PROSE)
def test_publishing_the_reference_gives_the_published_documents_but_for_their_prose(name: str, pilot: Path) -> None:
    published = json.loads((pilot / name).read_text())
    found = differences(published, documents(PILOT)[name])
    assert found.keys() == set(PROSE[name].split())


def test_the_two_sides_of_a_publication_have_neutral_names() -> None:
    subject, other = two_sides(read_runs(PILOT))
    assert (subject.label, other.label) == ("nodus", "modal")
    assert [account.name for account in merged([*subject.runs, *other.runs])] == ["pilot"]


def test_the_report_of_the_published_runs_reads_as_it_did(comparison: Comparison) -> None:
    """Remake with `python -m stages.compare pilot:nodus pilot:modal --markdown`, after looking at what changed."""
    golden = Path(__file__).with_name("golden") / "pilot.md"
    assert f"{markdown(comparison)}\n" == golden.read_text()
