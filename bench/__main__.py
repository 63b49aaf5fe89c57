"""Measure this machine: preparing at growing sizes, start-up of every command, scoring against the plain loop.

python -m bench [prepare|start|score]... [--rows N,N,...]
"""

import argparse
import importlib

from rich.console import Console

MEASURES = ("start", "prepare", "score")


def main() -> None:
    arguments = argparse.ArgumentParser("python -m bench", description=__doc__)
    arguments.add_argument("what", nargs="*", choices=[[], *MEASURES], help="all of them by default")
    arguments.add_argument("--rows", default="67349,1000000,10000000", help="train rows to prepare from")
    given = arguments.parse_args()
    for name in given.what or MEASURES:
        module = importlib.import_module(f"bench.{name}")
        Console().print(module.measure([int(rows) for rows in given.rows.split(",")]))


if __name__ == "__main__":
    main()
