"""Promise: a hundred runs of evidence compare in under five seconds."""

import sys

import pytest

from tests.conftest import ROOT, run


@pytest.mark.slow
def test_a_hundred_runs_compare_in_time() -> None:
    """The benchmark itself, which exits with 1 where it took longer."""
    done = run(sys.executable, "-m", "bench.compare_bench", cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert "100 runs compared in" in done.stdout
