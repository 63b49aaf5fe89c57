"""What all comparisons share: taking turns, ratios with their spread, growth, and a part's record.

A part (`bench/<part>.py`) has `measure(given) -> Record`; its record goes to `bench/results/<device>/<part>.json`.
"""

import importlib.metadata
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.delivery import git
from stages.evidence.digests import write_json
from stages.evidence.environment import probe
from stages.jobs import PROJECT

TOOLS = ("lm-eval", "dvc", "modal", "nodus")  # beside what a worker's environment names
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
        self.rates: dict[str, float] = {}  # of `bench.limits` alone
        self.profile: dict[str, dict[str, Any]] = {}

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
            middle = {"ours": statistics.median(seconds[ours]), "other": statistics.median(seconds[other])}
            rates = {name: amount / found for name, found in middle.items()}
            goal = (goals or {}).get(other)
            self.lines.append(
                {"case": case, "other": other, "unit": unit, "rates": rates, "ratio": spread, "goal": goal}
                | {"seconds": {"ours": list(seconds[ours]), "other": list(seconds[other])}}
                | more
            )

    def grow(self, case: str, unit: str, works: Mapping[int, Callable[[], Any]], rounds: int) -> None:
        """Seconds of the work of each size, the best of `rounds`, and the exponent that fits them."""
        taken, _ = interleaved({str(size): work for size, work in works.items()}, rounds)
        self.grown(case, unit, {size: min(taken[str(size)]) for size in works})

    def grown(self, case: str, unit: str, seconds: Mapping[int, float]) -> None:
        if len(seconds) < 2:
            return  # scaled down until all sizes are one
        sizes, found = list(seconds), list(seconds.values())
        grown = {"case": case, "unit": unit, "sizes": sizes, "seconds": found}
        self.growth.append(grown | {"exponent": exponent(sizes, found)})

    def save(self, part: str, given: Namespace, limits: Mapping[str, float]) -> dict[str, Any]:
        """Write the record with the limits of its own run; one of less than the whole goes where nothing is kept."""
        also = {"commit": git("rev-parse", "HEAD"), "scale": given.scale, "limits": dict(limits)}
        also |= {"tools": {name: importlib.metadata.version(name) for name in TOOLS if found(name)}}
        record = {"part": part, "device": given.device, "environment": probe(), **vars(self), **also}
        del record["rates"]
        folder = RESULTS / given.device if whole(given) else scratch("results")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{part}.json", record)
        return record


def whole(given: Namespace) -> bool:
    return bool(given.scale == 1 and not given.models)


def found(package: str) -> bool:
    return bool(list(importlib.metadata.distributions(name=package)))


def interleaved(works: Mapping[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of each work per round, all in turn so that they meet the same machine; and what each gave last.

    Each round begins with another one, so that none is always the one that comes after the same.

    A work that gives {"seconds": ...} has timed itself, in a process of its own.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    values: dict[str, Any] = {}
    names = list(works)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            started = time.perf_counter()
            values[name] = works[name]()
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


def profiled(device: str, work: Callable[[], Any], most: int = 5) -> dict[str, Any]:
    """Where a work's time goes: the operations with most of it, and of the processor's time the kernel's part.

    The kernel's part is for memory that is used for the first time, a page fault each.
    """
    from torch.profiler import ProfilerActivity, profile

    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    own = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]) as profiler:
        work()
    times = {event.key: getattr(event, own) for event in profiler.key_averages()}
    total = sum(times.values())
    shares = [(key, times[key] / total) for key in sorted(times, key=lambda key: -times[key])[:most]]
    return {"operations": shares, "kernel": kernel / (user + kernel), "faults": after.ru_minflt - before.ru_minflt}


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
