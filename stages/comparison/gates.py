"""The protocol's gates: those that one platform's run is held against alone, and those between two platforms.

Source: the published execution record, `evaluation.quality_gates`.
"""

from fractions import Fraction
from typing import Any, NamedTuple

from stages.command import Task
from stages.protocol import Protocol


class Verdict(NamedTuple):
    """A metric against its threshold; `threshold` is inclusive but for `nll_below_base`."""

    value: float
    threshold: float
    passed: bool


def verdicts(protocol: Protocol, task: Task, baseline: dict[str, Any], final: dict[str, Any]) -> dict[str, Verdict]:
    """Gate name -> verdict, from the metrics of the untouched base and of the trained model."""
    if task == "sft":
        gates = protocol.gates.sft
        return {
            "accuracy": at_least(final["accuracy"], gates.accuracy_at_least),
            "format_validity": at_least(final["format_validity"], gates.format_validity_at_least),
        }
    return {"nll_below_base": Verdict(final["nll"], baseline["nll"], final["nll"] < baseline["nll"])}


def at_least(value: float, threshold: float) -> Verdict:
    return Verdict(value, threshold, value >= threshold)


def at_most(value: Fraction, threshold: float) -> Verdict:
    return Verdict(float(value), threshold, value <= exact(threshold))


def exact(recorded: float) -> Fraction:
    """A figure by the digits that it is recorded with; in floats, 2.02 would be a little more than 1 % above 2.0."""
    return Fraction(str(recorded))


def cross_verdicts(
    protocol: Protocol, task: Task, finals: list[dict[str, Any]], others: list[dict[str, Any]]
) -> dict[str, Verdict]:
    """Gate name -> verdict on the trained models of one platform against another's, by their means."""
    if task == "sft":
        below = 100 * (mean_accuracy(others) - mean_accuracy(finals))
        return {"accuracy_points_below_other": at_most(below, protocol.gates.sft.accuracy_points_below_other_at_most)}
    own, other = (sum((exact(final["nll"]) for final in each), Fraction(0)) / len(each) for each in (finals, others))
    above = 100 * (own / other - 1)
    return {"nll_percent_above_other": at_most(above, protocol.gates.pretrain.nll_percent_above_other_at_most)}


def mean_accuracy(finals: list[dict[str, Any]]) -> Fraction:
    return sum((Fraction(final["correct"], final["rows"]) for final in finals), Fraction(0)) / len(finals)
