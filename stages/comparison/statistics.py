"""Means, spreads and intervals over repeats. With one run there is a value and nothing else."""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

Number = float | Decimal
CONFIDENCE = 0.95
NOT_ESTIMATED = "not estimated"


class Estimate(NamedTuple):
    """A mean; spread and interval are None where fewer than two runs give none."""

    n: int
    mean: Number
    sd: float | None
    low: float | None
    high: float | None


class Difference(NamedTuple):
    """Subject minus other, with the interval of that difference where repeats allow one."""

    subject: Number
    other: Number
    difference: Number
    reduction_percent: float | None
    low: float | None
    high: float | None
    method: str

    @property
    def established(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def mean(values: Sequence[Number]) -> Number:
    """Money stays a decimal; floats are summed without rounding in between."""
    if all(isinstance(value, Decimal) for value in values):
        return sum((Decimal(value) for value in values), Decimal(0)) / len(values)
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The sample's standard deviation, n - 1 below."""
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def quantile(degrees: float) -> float:
    """How many standard errors the interval reaches on either side."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


def estimate(values: Sequence[Number]) -> Estimate:
    middle, floats = mean(values), [float(value) for value in values]
    if len(values) < 2:
        return Estimate(len(values), middle, None, None, None)
    sd = deviation(floats)
    reach = quantile(len(floats) - 1) * sd / math.sqrt(len(floats))
    return Estimate(len(values), middle, sd, float(middle) - reach, float(middle) + reach)


def reduction(subject: Number, other: Number) -> float | None:
    """By how many percent of the other the subject is lower; None where the other is zero."""
    if not other:
        return None
    if isinstance(subject, Decimal) and isinstance(other, Decimal):
        return float((other - subject) / other * 100)
    return (1 - float(subject) / float(other)) * 100


def compare(subject: dict[int | None, list[Number]], other: dict[int | None, list[Number]]) -> Difference:
    """Values by seed on two sides: paired where two seeds or more are on both, else as two samples (Welch)."""
    ours, theirs = ([value for values in side.values() for value in values] for side in (subject, other))
    shared = sorted(seed for seed in subject.keys() & other.keys() if seed is not None)
    if len(shared) >= 2:
        pairs = [(mean(subject[seed]), mean(other[seed])) for seed in shared]
        interval = paired([float(a) - float(b) for a, b in pairs])
        first, second = (mean([pair[side] for pair in pairs]) for side in (0, 1))
        return difference(first, second, interval, f"paired by seed, {len(shared)} pairs")
    if len(ours) >= 2 and len(theirs) >= 2:
        interval = welch([float(value) for value in ours], [float(value) for value in theirs])
        return difference(mean(ours), mean(theirs), interval, f"Welch, {len(ours)} and {len(theirs)} runs")
    return difference(mean(ours), mean(theirs), None, NOT_ESTIMATED)


def difference(subject: Number, other: Number, interval: tuple[float, float] | None, method: str) -> Difference:
    low, high = interval or (None, None)
    exact = isinstance(subject, Decimal) and isinstance(other, Decimal)
    gap: Number = subject - other if exact else float(subject) - float(other)  # type: ignore[operator]
    return Difference(subject, other, gap, reduction(subject, other), low, high, method)


def paired(differences: list[float]) -> tuple[float, float]:
    found = estimate(differences)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def welch(first: list[float], second: list[float]) -> tuple[float, float]:
    """The interval of two independent samples' difference, their variances not taken to be equal."""
    parts = [deviation(values) ** 2 / len(values) for values in (first, second)]
    gap, total = float(mean(first)) - float(mean(second)), math.fsum(parts)
    if total == 0:
        return gap, gap
    degrees = total**2 / math.fsum(p**2 / (len(v) - 1) for p, v in zip(parts, (first, second), strict=True))
    reach = quantile(degrees) * math.sqrt(total)
    return gap - reach, gap + reach
