"""When jobs ran: which overlapped, and which side always came first."""

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from stages.command import TASKS, Task
from stages.comparison.records import Evidence
from stages.comparison.runs import moment
from stages.comparison.sides import Side

SHOWN = 3  # overlapping pairs that are named; the rest are counted


class Deviation(NamedTuple):
    """`sentence` is this project's own; `values` come from the runs, by side or job."""

    item: str
    task: Task | None
    sentence: str
    values: dict[str, str]


class Window(NamedTuple):
    name: str
    start: datetime
    end: datetime


def window(name: str, evidence: Evidence) -> Window | None:
    """When a job held its machine: from submission, or from its boot as far as the bill tells, to the end."""
    times = evidence.timings
    start, end = moment(times.submitted_utc), moment(times.verified_utc) or moment(times.worker_finished_utc)
    if start is None and (started := moment(times.worker_started_utc)):
        boot = evidence.receipt.segments.get("boot") if evidence.receipt else None
        start = started - timedelta(seconds=boot.seconds if boot else 0)
    return Window(name, start, end) if start and end else None


def windows(sides: list[Side]) -> list[Window]:
    """Every distinct job's, by their start. One that several runs share stands once."""
    found: dict[tuple[str | None, ...], Window] = {}
    for side in sides:
        for run in side.runs:
            for evidence in run.evidence:
                job = evidence.job
                key = (job.id or run.name, job.task, evidence.stage, evidence.timings.worker_started_utc)
                if held := window(f"{side.label} {job.task} {evidence.stage}", evidence):
                    found.setdefault(key, held)
    return sorted(found.values(), key=lambda held: held.start)


def overlaps(sides: list[Side]) -> Iterator[Deviation]:
    """Jobs that ran at the same time, so that each may have slowed the other."""
    known, pairs = windows(sides), []
    for i, earlier in enumerate(known):
        for later in itertools.islice(known, i + 1, None):
            if later.start >= earlier.end:
                break
            pairs.append((earlier, later))
    if pairs:
        shown = {
            f"overlap {n}": f"{a.name} ran until {a.end:%Y-%m-%d %H:%M:%S}, {b.name} began {b.start:%H:%M:%S}"
            for n, (a, b) in enumerate(pairs[:SHOWN], 1)
        }
        more = {"more": str(len(pairs) - SHOWN)} if len(pairs) > SHOWN else {}
        yield Deviation("overlap", None, "Jobs overlapped in time.", shown | more)


def order(sides: list[Side]) -> Iterator[Deviation]:
    """A side whose every run came before the other's: whatever changed in between is part of the difference."""
    for first, second in itertools.permutations(sides, 2):
        shared = [task for task in TASKS if first.of(task) and second.of(task)]
        spans = [(starts(first, task), starts(second, task)) for task in shared]
        if spans and all(a and b and max(a) < min(b) for a, b in spans):
            earliest = {first.label: min(min(a) for a, _ in spans), second.label: min(min(b) for _, b in spans)}
            values = {label: f"{time:%Y-%m-%d %H:%M:%S}" for label, time in earliest.items()}
            yield Deviation("order", None, "One side always ran first, the order was not mixed.", values)


def starts(side: Side, task: Task) -> list[datetime]:
    found = (moment(run.training.timings.worker_started_utc) for run in side.of(task) if run.training)
    return [time for time in found if time]
