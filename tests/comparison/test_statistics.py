"""Promise: intervals are scipy's, pairs are by seed, money stays decimal, and one run estimates nothing."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stages.comparison.statistics import NOT_ESTIMATED, compare, estimate, reduction

FIGURES = st.floats(min_value=-1e6, max_value=1e6)
SAMPLES = st.lists(FIGURES, min_size=2, max_size=12).filter(lambda values: float(np.std(values)) > 1e-6)


@given(SAMPLES)
@settings(deadline=None, max_examples=60)
def test_an_interval_of_one_sample_is_scipys(values: list[float]) -> None:
    found = estimate(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=2, max_size=9))
@settings(deadline=None, max_examples=60)
def test_sides_with_the_same_seeds_are_paired_as_scipy_pairs_them(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    if float(np.std(np.subtract(ours, theirs))) < 1e-3:
        return
    found = compare(*({seed: [value] for seed, value in enumerate(side)} for side in (ours, theirs)))
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.method == f"paired by seed, {len(pairs)} pairs"
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-6)


@given(SAMPLES, SAMPLES)
@settings(deadline=None, max_examples=60)
def test_repeats_of_one_seed_are_two_samples_of_unequal_variance(ours: list[float], theirs: list[float]) -> None:
    found = compare({11: list(ours)}, {11: list(theirs)})
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert found.method.startswith("Welch")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-5, abs=1e-5)


def test_seeds_that_only_one_side_has_are_left_out_of_the_pairs() -> None:
    found = compare({1: [1.0], 2: [2.0], 3: [99.0]}, {1: [2.0], 2: [4.0]})
    assert (found.subject, found.other, found.difference) == (1.5, 3.0, -1.5)
    assert found.method == "paired by seed, 2 pairs"


def test_one_run_estimates_nothing() -> None:
    assert estimate([3.0]) == (1, 3.0, None, None, None)
    found = compare({11: [3.0]}, {11: [4.0]})
    assert (found.low, found.high, found.method) == (None, None, NOT_ESTIMATED)
    assert not found.established


def test_equal_repeats_have_an_interval_of_no_width() -> None:
    found = compare({1: [1.0], 2: [1.0]}, {1: [2.0], 2: [2.0]})
    assert (found.low, found.high, found.established) == (-1.0, -1.0, True)
    same = compare({1: [1.0, 1.0]}, {2: [1.0, 1.0]})
    assert (same.low, same.high, same.established) == (0.0, 0.0, False)


def test_money_stays_decimal_and_nothing_is_divided_by_zero() -> None:
    found = compare({1: [Decimal("0.1")], 2: [Decimal("0.2")]}, {1: [Decimal("0.3")], 2: [Decimal("0.4")]})
    assert (found.subject, found.other, found.difference) == (Decimal("0.15"), Decimal("0.35"), Decimal("-0.2"))
    assert reduction(Decimal(1), Decimal(0)) is None
    assert reduction(1.0, 0.0) is None
