"""When jobs ran: which overlapped, and which side always came first."""

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from stages.command import TASKS, Task
from stages.comparison.records import Evidence
from stages.comparison.runs import moment
from stages.comparison.sides import Side

Starts = dict[tuple[int | None, int | None], list[datetime]]  # by seed and repeat

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
    """A side that came first, run by run or as a whole: whatever changed in between is part of the difference."""
    for task, (first, second) in itertools.product(TASKS, itertools.permutations(sides, 2)):
        ours, theirs = starts(first, task), starts(second, task)
        if always_first(ours, theirs):
            earliest = {side.label: min(map(min, found.values())) for side, found in ((first, ours), (second, theirs))}
            values = {label: f"{time:%Y-%m-%d %H:%M:%S}" for label, time in earliest.items()}
            yield Deviation("order", task, "One side always ran first, the order was not mixed.", values)


def always_first(ours: Starts, theirs: Starts) -> bool:
    """By pairs of one seed and repeat, where there are two or more; or all of one side before all of the other."""
    pairs = [max(ours[key]) < min(theirs[key]) for key in ours.keys() & theirs.keys()]
    if len(pairs) > 1 and all(pairs):
        return True
    return bool(ours and theirs) and max(map(max, ours.values())) < min(map(min, theirs.values()))


def starts(side: Side, task: Task) -> Starts:
    """When the trainings of each seed and repeat began."""
    found: Starts = {}
    for run in side.of(task):
        if run.training and (time := moment(run.training.timings.worker_started_utc)):
            found.setdefault((run.seed, run.repeat), []).append(time)
    return found
