"""What this machine can do at most: products, copies in memory, SHA-256, starts of Python.

A line's `work`, by the same names, gives the shortest time that these rates allow for it.
"""

import hashlib
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from bench.measure import Record, synchronized

SIZES = (256, 512, 1024, 2048)
INNER = (32, 128, 896)
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


def products(device: str, rows: int, inner: int, columns: int, dtype: Any = None) -> float:
    """FLOP per second of [rows, inner] by [inner, columns]."""
    import torch

    a, b = torch.randn(rows, inner, device=device, dtype=dtype), torch.randn(inner, columns, device=device, dtype=dtype)
    return 2 * rows * inner * columns / best(synchronized(device, lambda: a @ b))


def listed(rates: Mapping[int, float]) -> str:
    return ", ".join(f"{size}: {rate / 1e9:,.0f}" for size, rate in rates.items())


def measure(given: Namespace) -> Record:
    import torch

    record = Record("Limits")
    sizes = SIZES if given.device == "cpu" else (4096, 8192)
    rates = {size: products(given.device, size, size, size) for size in sizes}
    halves = max(products(given.device, size, size, size, torch.bfloat16) for size in sizes[-2:])
    rows = {"cpu": 512, "cuda": 4096}[given.device]
    tiles = {inner: products(given.device, rows, inner, rows) for inner in INNER}
    source = torch.ones(FLOATS)
    target = torch.empty_like(source)
    copied = 2 * 4 * FLOATS / best(lambda: target.copy_(source))
    block = bytes(BLOCK)
    record.rates = {
        "flop": max(rates.values()),
        "bfloat16": halves,
        "bytes": copied,  # read and written, both counted
        "hashed": BLOCK / best(lambda: hashlib.sha256(block)),
        "starts": 1 / best(lambda: subprocess.run([sys.executable, "-c", ""], check=True)),
    }
    record.notes.append(
        f"In GFLOP/s, squares of {listed(rates)}; {rows} rows by {rows} columns, as of a tile of the vocabulary, over "
        f"{listed(tiles)} values each, the hidden sizes of the models below."
    )
    return record
