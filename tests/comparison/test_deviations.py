"""Promise: deviations are found in the evidence, with their values, and none is made up."""

from datetime import timedelta
from pathlib import Path

import pytest

from stages.comparison.compare import build
from stages.comparison.runs import read_runs
from tests.comparison.build import START, branch
from tests.comparison.judge import Change, compared, found, set_in


@pytest.mark.parametrize(
    ("item", "change", "value"),
    [
        ("cpu_limits", set_in("environment", "cpu", "cgroup_limit", value=2.0), "limit 2"),
        ("memory_limits", set_in("environment", "memory", "cgroup_limit_bytes", value=1 << 30), "limit 1 GiB"),
        ("gpu", set_in("environment", "gpu", "name", value="NVIDIA T4"), "NVIDIA T4"),
        ("gpu_memory", set_in("environment", "gpu", "memory_bytes", value=1 << 20), "1 MiB"),
        ("gpu_driver", set_in("environment", "gpu", "driver", value=None), "not recorded"),
        ("versions", set_in("environment", "versions", "trl", value="1.14.0"), "trl 1.14.0"),
        ("versions_off_pins", set_in("environment", "versions", "trl", value="1.14.0"), "trl 1.14.0, pinned 1.13.0"),
        ("receipts_not_final", set_in("receipt", "final", value=False), "sft baseline, sft train, sft evaluate"),
        ("cache", set_in("receipt", "resources", value={"cache": "warm"}), "warm"),
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
