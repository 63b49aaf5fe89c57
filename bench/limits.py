"""What this machine can do at most: FP32 products and copies in memory."""

import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from bench.measure import Record, synchronized

SIZES = (256, 512, 1024, 2048)
FLOATS = 1 << 26  # 256 MiB, above any cache


def best(work: Callable[[], Any], seconds: float = 1.0) -> float:
    """The shortest of the runs that fit in about `seconds`."""
    work()
    found, until = [], time.perf_counter() + seconds
    while not found or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def measure(given: Namespace) -> Record:
    import torch

    record = Record("Limits")
    rates = {}
    for size in SIZES if given.device == "cpu" else (4096, 8192):
        a, b = (torch.randn(size, size, device=given.device) for _ in range(2))
        rates[size] = 2 * size**3 / best(synchronized(given.device, lambda a=a, b=b: a @ b))
    source = torch.ones(FLOATS, device=given.device)
    target = torch.empty_like(source)
    copied = 2 * 4 * FLOATS / best(synchronized(given.device, lambda: target.copy_(source)))
    record.limits = {"gemm_flop_per_s": max(rates.values()), "memory_bytes_per_s": copied}  # type: ignore[attr-defined]
    record.notes.append(
        "Products of " + ", ".join(f"{size}: {rate / 1e9:,.0f} GFLOP/s" for size, rate in rates.items()) + "."
    )
    return record
