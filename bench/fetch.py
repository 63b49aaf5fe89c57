"""Fetching and verifying a large export through each emulator against `cp` followed by `sha256sum`."""

import importlib.util
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from bench.measure import Record, interleaved, scratch

SIZE = 1 << 30
PLAIN = "cp, then sha256sum"
NUMBER = count(1)  # every job is another

Fetch = Callable[[int], dict[str, Any]]


@contextmanager
def modal(folder: Path) -> Iterator[Fetch]:
    from tests.platforms.modal_kit import delivered, emulator, make_job, submit

    with emulator(folder / "emulator") as emulated:

        def fetch(size: int) -> dict[str, Any]:
            job = make_job(folder / f"job-{next(NUMBER)}", steps=1, size=size)
            status, output = submit(emulated, folder / "state", job, seconds=600)
            if status:
                raise SystemExit(f"bench: a job on the emulated modal failed:\n{output[-2000:]}")
            found = delivered(output)
            for path in (emulated.volume() / "files").iterdir():
                path.unlink()
            return {"seconds": found["fetch_seconds"] + found["verify_seconds"], "peak_mib": found["peak_mib"]}

        yield fetch


@contextmanager
def nodus(folder: Path) -> Iterator[Fetch]:
    from tests.platforms.nodus_setup import Emulator
    from tests.platforms.test_nodus_kills import Side

    running = Emulator(folder / "emulator")
    running.fault()

    def fetch(size: int) -> dict[str, Any]:
        place = folder / f"job-{next(NUMBER)}"
        place.mkdir()
        found = Side(running, place, steps=1, mib=size >> 24, blocks=16).finish()
        shutil.rmtree(place)
        return {"seconds": found["fetch_seconds"] + found["verify_seconds"], "peak_mib": found["peak_kib"] >> 10}

    try:
        yield fetch
    finally:
        running.stop()


def copied(source: Path) -> None:
    target = source.with_suffix(".copy")
    subprocess.run(["cp", source, target], check=True)
    subprocess.run(["sha256sum", target], check=True, stdout=subprocess.DEVNULL)
    target.unlink()


def measure(given: Namespace) -> Record:
    from tests.platforms.modal_worker import export

    record = Record("Fetching and verifying")
    size = max(16 << 20, round(SIZE * given.scale) >> 24 << 24)
    folder = scratch("fetch")
    platforms = {"modal": modal, "nodus": nodus}
    if not importlib.util.find_spec("nodus"):
        record.notes.append("Without the extra `nodus` its emulator was left out.")
        del platforms["nodus"]
    for name, running in platforms.items():
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        export(place / "source", size)
        with running(place) as fetch:
            least = fetch(16 << 20)["peak_mib"]
            works: dict[str, Callable[[], Any]] = {
                name: lambda fetch=fetch: fetch(size),
                PLAIN: lambda place=place: copied(place / "source"),
            }
            seconds, found = interleaved(works, min(given.rounds, 3))
            memory = f"peak {found[name]['peak_mib']} MiB, with 16 MiB {least}"
            record.line(name, seconds, size / 1e6, "MB/s", {PLAIN: 1 / 1.3}, equal=memory)
            sizes = [max(16 << 20, size // part >> 24 << 24) for part in (16, 4, 1)]
            record.grow(name, "bytes", {part: (lambda part=part, fetch=fetch: fetch(part)) for part in sizes}, 1)
        shutil.rmtree(place)
    return record
