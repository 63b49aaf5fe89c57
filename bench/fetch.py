"""Fetching and verifying a large export through each emulator against `cp` followed by `sha256sum`."""

import importlib.util
import os
import shutil
import signal
import subprocess
import time
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


def level(folder: Path, size: int) -> None:
    """The same start for all: nothing waits to be written, and the memory that will hold the copy has been in use.

    A virtual machine gets memory from its host when it first uses it, which takes as long as all the rest of a copy.
    """
    os.sync()
    with (folder / "level").open("wb") as stream:
        for _ in range(size >> 20):
            stream.write(bytes(1 << 20))
    (folder / "level").unlink()


def anew(state: Path, size: int) -> None:
    """Drop what a fetch that was broken off has brought; the job's own writing is not the next one's to pay."""
    for out in state.glob("*/*/out"):
        shutil.rmtree(out)
    level(state, size)


@contextmanager
def modal(folder: Path) -> Iterator[Fetch]:
    from tests.platforms.modal_kit import delivered, emulator, make_job, submit

    with emulator(folder / "emulator") as emulated:

        def fetch(size: int) -> dict[str, Any]:
            job = make_job(folder / f"job-{next(NUMBER)}", steps=1, size=size)
            killed, output = submit(emulated, folder / "state", job, "--kill", "fetching", seconds=600)
            if killed != -signal.SIGKILL:
                raise SystemExit(f"bench: a submit side was to be killed as it fetches:\n{output[-2000:]}")
            anew(folder / "state", size)
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
        side = Side(running, place, steps=1, mib=size >> 24, blocks=16)
        first = side.start("fetching")
        _, output = first.communicate()
        if first.returncode != -signal.SIGKILL:
            raise SystemExit(f"bench: a submit side was to be killed as it fetches:\n{output[-2000:]}")
        anew(side.state, size)
        found = side.finish()
        shutil.rmtree(place)
        return {"seconds": found["fetch_seconds"] + found["verify_seconds"], "peak_mib": found["peak_kib"] >> 10}

    try:
        yield fetch
    finally:
        running.stop()


def copied(source: Path) -> dict[str, Any]:
    target = source.with_suffix(".copy")
    level(source.parent, source.stat().st_size)
    started = time.perf_counter()
    subprocess.run(["cp", source, target], check=True)
    subprocess.run(["sha256sum", target], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    target.unlink()
    return {"seconds": seconds}


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
            works: dict[str, Callable[[], Any]] = {
                name: lambda fetch=fetch: fetch(size),
                PLAIN: lambda place=place: copied(place / "source"),
            }
            seconds, found = interleaved(works, min(given.rounds, 3))
            work = {"bytes": 2 * size, "hashed": size}  # read and written once, and held against its digest
            memory = f"peak {found[name]['peak_mib']} MiB"
            record.line(name, seconds, size / 1e6, "MB/s", {PLAIN: 1 / 1.3}, equal=memory, work=work)
            sizes = sorted({max(16 << 20, size // part >> 24 << 24) for part in (16, 4, 1)})
            grown = {part: fetch(part) for part in sizes}
            record.grown(name, "bytes", {part: each["seconds"] for part, each in grown.items()})
            peaks = ", ".join(f"{each['peak_mib']} MiB for {part >> 20}" for part, each in grown.items())
            record.notes.append(f"Peak memory of the process that fetches from {name}, by the export's MiB: {peaks}.")
        shutil.rmtree(place)
    return record
