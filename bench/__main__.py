"""Measure this project side by side with what one would use instead; see docs/performance.md.

python -m bench [limits|nll|labels|training|prepare|fetch|latency]... [--device cuda] [--rounds N] [--scale X]

Each part leaves bench/results/<device>/<part>.json, and docs/performance.md is written anew from all of them; what is
less than a whole part is only shown.
"""

import argparse
import importlib
import os

from rich.console import Console

from bench import table
from bench.measure import whole
from bench.models import CASES

PARTS = ("limits", "nll", "labels", "training", "prepare", "fetch", "latency")


def main() -> None:
    arguments = argparse.ArgumentParser("python -m bench", description=__doc__)
    arguments.add_argument("what", nargs="*", choices=[[], *PARTS], help="all of them by default")
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments.add_argument("--rounds", type=int, default=5, help="turns that each takes")
    arguments.add_argument("--scale", type=float, default=1.0, help="of the work, for a quick look")
    arguments.add_argument("--models", nargs="*", choices=CASES, help="for nll and labels: of these alone")
    given = arguments.parse_args()
    # Nothing here is of the hub, and libraries that draw bars would be measured drawing them.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    limits: dict[str, float] = {}
    for name in ("limits", *(name for name in given.what or PARTS if name != "limits")):
        record = importlib.import_module(f"bench.{name}").measure(given)
        limits = limits or record.rates
        Console().print(table.rich_table(record.save(name, given, limits)))
        if whole(given):
            table.write(given.device)


if __name__ == "__main__":
    main()
