"""What all comparisons share: taking turns, ratios with their spread, growth, and a part's record.

A part (`bench/<part>.py`) has `measure(given) -> Record`; its record goes to `bench/results/<part>.json`.
"""

import json
import math
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.evidence.digests import write_json
from stages.evidence.environment import probe
from stages.jobs import PROJECT

RESULTS = PROJECT / "bench" / "results"
PEAK = r"""
import json, re
from pathlib import Path
def peak(): return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # KiB, since exec
"""


class Record:
    """A part's results: lines of the table, growth, and what has to be said beside them."""

    def __init__(self, title: str):
        self.title = title
        self.lines: list[dict[str, Any]] = []
        self.growth: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.profile: dict[str, list[tuple[str, float]]] = {}

    def line(
        self,
        case: str,
        seconds: Mapping[str, Sequence[float]],
        amount: float,
        unit: str,
        goals: Mapping[str, float] | None = None,
        **more: Any,
    ) -> None:
        """Ours, the first of `seconds`, against each of the others; `goals` are ratios to reach, by the other's name.

        `more` may hold `work`, what has to be done at least in the units of `bench.limits`, and `equal`: what shows
        that the same was done.
        """
        ours, *others = seconds
        for other in others:
            ratios = [b / a for a, b in zip(seconds[ours], seconds[other], strict=True)]
            spread = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
            rates = {"ours": amount / min(seconds[ours]), "other": amount / min(seconds[other])}
            goal = (goals or {}).get(other)
            self.lines.append(
                {"case": case, "other": other, "unit": unit, "rates": rates, "ratio": spread, "goal": goal}
                | {"rounds": len(ratios), "seconds": min(seconds[ours])}
                | more
            )

    def grow(self, case: str, unit: str, works: Mapping[int, Callable[[], Any]], rounds: int) -> None:
        """Seconds of the work of each size, the best of `rounds`, and the exponent that fits them."""
        if len(works) < 2:
            return  # scaled down until all sizes are one
        sizes = list(works)
        taken, _ = interleaved({str(size): work for size, work in works.items()}, rounds)
        seconds = [min(each) for each in taken.values()]
        grown = {"case": case, "unit": unit, "sizes": sizes, "seconds": seconds}
        self.growth.append(grown | {"exponent": exponent(sizes, seconds)})

    def save(self, part: str, device: str) -> dict[str, Any]:
        record = {"part": part, "device": device, "environment": probe(), **vars(self)}
        RESULTS.mkdir(exist_ok=True)
        write_json(RESULTS / f"{part}.json", record)
        return record


def interleaved(works: Mapping[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of each work per round, all in turn so that they meet the same machine; and what each gave last.

    A work that gives {"seconds": ...} has timed itself, in a process of its own.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    values: dict[str, Any] = {}
    for _ in range(rounds):
        for name, work in works.items():
            started = time.perf_counter()
            values[name] = work()
            taken = time.perf_counter() - started
            own = values[name].get("seconds") if isinstance(values[name], dict) else None
            seconds[name].append(taken if own is None else own)
    return seconds, values


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log seconds over log size: 1 is linear."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(s) for s in seconds]).slope


def child(code: str, *arguments: str, **options: Any) -> dict[str, Any]:
    """Run Python in a process of its own, so that its peak memory is its own; its last line is its answer."""
    command = [sys.executable, "-c", PEAK + code, *arguments]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"bench: a child failed:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def profiled(work: Callable[[], Any], most: int = 6) -> list[tuple[str, float]]:
    """The operations that take the most of a work's own time, with their shares."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    found = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    total = sum(found.values())
    return [(key, found[key] / total) for key in sorted(found, key=lambda key: -found[key])[:most]]


def synchronized(device: str, work: Callable[[], Any]) -> Callable[[], Any]:
    """`work` until the device has done it."""
    if device != "cuda":
        return work
    import torch

    def waited() -> Any:
        value = work()
        torch.cuda.synchronize()
        return value

    return waited


Measure = Callable[[Namespace], Record]


def scratch(name: str) -> Path:
    """A folder of the benchmark's own for what is large, below the project's ignored `build/`."""
    folder = PROJECT / "build" / "bench" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
