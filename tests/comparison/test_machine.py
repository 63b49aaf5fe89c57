"""Promise: equal machines are found equal however a platform words it, and unequal ones are named."""

from pathlib import Path
from typing import Any

import pytest

from stages.comparison.compare import build
from stages.comparison.runs import read_runs
from tests.comparison.build import START, branch
from tests.comparison.judge import HOUR

# What each platform's receipt holds where a job asks for four CPUs, 48 GiB and one L4.
NODUS = {"gpu": {"count": 1, "type": ["L4"]}, "cpu": "4", "memory": "48Gi"}
MODAL = {
    "gpu": "L4",
    "gpus": 1,
    "cpus": 4,
    "memory_gib": 48,
    "timeout_seconds": 2400,
    "charge_usd_by_resource": {"gpu": "0.1"},
}
PUBLISHED_NODUS = {"cpu_minimum": 4, "memory_minimum_gib": 48}
PUBLISHED_MODAL = {"cpu_request": 4, "cpu_limit": 4, "memory_request_mib": 49152, "memory_limit_mib": 49152}
UNLIMITED = {"cpu": {"cgroup_limit": None, "affinity": 64, "effective": 64}, "memory": {"cgroup_limit_bytes": None}}


def unlike(
    repo: Path, nodus: dict[str, Any], modal: dict[str, Any], inside: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The machines' deviations of fine-tuning; `inside` is what Modal's worker saw, where that is not the same."""

    def edit(path: str, found: dict[str, Any]) -> None:
        if "evidence" in path:
            on_modal = found["receipt"]["platform"] == "modal"
            found["receipt"]["resources"] = modal if on_modal else nodus
            for part, values in (inside or {}).items() if on_modal else ():
                found["environment"][part] |= values

    branch(repo, "a", platform="nodus", charge="0.10", start=START, edit=edit)
    branch(repo, "b", platform="modal", charge="0.20", start=START + HOUR, edit=edit)
    found = build(read_runs(["a", "b"])).deviations
    return {d.item: d.values for d in found if d.item in ("cpu_limits", "memory_limits") and d.task == "sft"}


@pytest.mark.parametrize(
    ("nodus", "modal"), [(NODUS, MODAL), (PUBLISHED_NODUS, PUBLISHED_MODAL), (NODUS, PUBLISHED_MODAL)]
)
def test_equal_requests_and_limits_deviate_in_nothing(repo: Path, nodus: dict[str, Any], modal: dict[str, Any]) -> None:
    assert unlike(repo, nodus, modal) == {}


def test_a_limit_that_only_the_platform_knows_is_one(repo: Path) -> None:
    """Modal's sandbox shows a worker the host's CPUs and memory; its limit holds all the same."""
    host = UNLIMITED | {"memory": {"cgroup_limit_bytes": None, "total_bytes": 412316860416}}
    assert unlike(repo, NODUS, MODAL, host) == {}


@pytest.mark.parametrize(
    ("change", "item", "nodus", "modal"),
    [
        ({"cpus": 8}, "cpu_limits", "request 4, limit 4", "request 8, limit 4"),
        ({"cpus": 2}, "cpu_limits", "request 4, limit 4", "request 2, limit 2"),
        ({"cpus": None}, "cpu_limits", "request 4, limit 4", "limit 4"),
        ({"memory_gib": 24}, "memory_limits", "request 48 GiB, limit 48 GiB", "request 24 GiB, limit 24 GiB"),
    ],
)
def test_unequal_ones_are_named_with_both_values(
    repo: Path, change: dict[str, Any], item: str, nodus: str, modal: str
) -> None:
    assert unlike(repo, NODUS, MODAL | change) == {item: {"nodus": nodus, "modal": modal}}


def test_a_machine_without_a_limit_is_as_large_as_its_worker_saw(repo: Path) -> None:
    found = unlike(repo, NODUS, NODUS, UNLIMITED)
    assert found == {"cpu_limits": {"nodus": "request 4, limit 4", "modal": "request 4, limit 64"}}
