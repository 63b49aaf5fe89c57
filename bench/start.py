"""Start-up of every command: what a user waits for `--help`, and what each submission pays before it begins."""

import subprocess
import sys
import time

from rich.table import Table

COMMANDS = ("check", "sources", "prepare", "baseline", "train", "evaluate", "gate", "show", "plan", "worker")


def seconds(name: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", f"stages.{name}", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def measure(_: list[int]) -> Table:
    table = Table("command", "best of 5, s", title="start-up")
    for name in COMMANDS:
        table.add_row(f"python -m stages.{name} --help", f"{min(seconds(name) for _ in range(5)):.2f}")
    return table
