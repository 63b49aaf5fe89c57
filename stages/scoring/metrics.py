"""A task's metrics from its predictions alone, without torch: what the worker reports and an audit recomputes."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from stages.command import Task


def label_metrics(predictions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Counts and shares of correct and of valid answers."""
    rows = list(predictions)
    correct, valid = (sum(row[key] for row in rows) for key in ("correct", "valid"))
    return {
        "rows": len(rows),
        "correct": correct,
        "valid": valid,
        "accuracy": correct / len(rows),
        "format_validity": valid / len(rows),
    }


def nll_metrics(predictions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Total NLL over total tokens, exactly summed; paragraphs are not averaged."""
    rows = list(predictions)
    tokens = sum(row["tokens"] for row in rows)
    nll = math.fsum(row["nll"] for row in rows) / tokens
    return {"rows": len(rows), "tokens": tokens, "nll": nll, "perplexity": math.exp(nll)}


OF_TASK: dict[Task, Callable[[Iterable[dict[str, Any]]], dict[str, Any]]] = {
    "sft": label_metrics,
    "pretrain": nll_metrics,
}
