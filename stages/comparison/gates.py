"""The protocol's gates that one platform's run can be held against alone.

Source: the published execution record, `evaluation.quality_gates`.
"""

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
