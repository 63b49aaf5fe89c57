"""How long a hundred runs take to compare: `python -m bench.compare_bench`.

Makes a repository with 100 branches (ten seeds on two platforms, five repeats), each with both tasks' metrics and
evidence, and times the comparison of all of them, from the command to its JSON. The promise is under 5 s.
"""

import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from stages.jobs import PROJECT
from tests.comparison.build import START, branch, repository

RUNS = 100
LIMIT = 5.0


def fill(root: Path) -> list[str]:
    names = []
    for n in range(RUNS):
        options = {"platform": ("nodus", "modal")[n % 2], "seed": n // 2 % 10, "repeat": 1 + n // 20}
        start = START + timedelta(hours=n)
        branch(root, f"run-{n}", **options, charge=f"0.1{n:03}", seconds=60 + n % 7, start=start)
        names.append(f"run-{n}")
    return names


def main() -> int:
    identity = {
        f"GIT_{who}_{what}": "bench@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    os.environ |= identity
    with tempfile.TemporaryDirectory() as folder:
        root = repository(Path(folder) / "project")
        names = fill(root)
        command = [sys.executable, "-m", "stages.compare", *names, "--json", "--html", "page.html"]
        began = time.perf_counter()
        environment = os.environ | {"PYTHONPATH": str(PROJECT)}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True)
        seconds = time.perf_counter() - began
    print(f"{RUNS} runs compared in {seconds:.2f} s, {len(done.stdout):,} bytes of JSON; the promise is {LIMIT:g} s")
    return int(seconds > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
