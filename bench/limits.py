"""What this machine can do at most: FP32 products, copies in memory, SHA-256, starts of Python.

A line's `work`, by the same names, gives the shortest time that these rates allow for it.
"""

import hashlib
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from bench.measure import Record, synchronized

SIZES = (256, 512, 1024, 2048)
FLOATS = 1 << 26  # 256 MiB, above any cache
BLOCK = 1 << 24


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
    block = bytes(BLOCK)
    record.limits = {  # type: ignore[attr-defined]
        "flop": max(rates.values()),
        "bytes": copied,  # read and written, both counted
        "hashed": BLOCK / best(lambda: hashlib.sha256(block)),
        "starts": 1 / best(lambda: subprocess.run([sys.executable, "-c", ""], check=True)),
    }
    record.notes.append(
        "Products of " + ", ".join(f"{size}: {rate / 1e9:,.0f} GFLOP/s" for size, rate in rates.items()) + "."
    )
    return record
