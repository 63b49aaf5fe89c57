"""Where two sides were not treated alike, found in their evidence. A sentence says what; the values say how."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from stages.command import TASKS
from stages.comparison.machine import cpus, memory, shown, size
from stages.comparison.records import Evidence
from stages.comparison.runs import Run, TaskRun, protocol_digest
from stages.comparison.schedule import Deviation, order, overlaps
from stages.comparison.sides import Side

NOT_RECORDED = "not recorded"


class Fact(NamedTuple):
    """Something that should be the same on every side."""

    item: str
    sentence: str
    of: Callable[[TaskRun], str | None]


def training(get: Callable[[Evidence], object]) -> Callable[[TaskRun], str | None]:
    """A fact of the training job, as text; None where it is not recorded."""

    def found(run: TaskRun) -> str | None:
        value = get(run.training) if run.training else None
        return None if value is None or value == "" else str(value)

    return found


def listed(values: dict[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)


def resources(evidence: Evidence, word: str) -> dict[str, object]:
    known = evidence.receipt.resources if evidence.receipt else {}
    return {key: value for key, value in known.items() if word in key}


def gpu(key: str) -> Callable[[Evidence], object]:
    return lambda evidence: getattr(evidence.environment.gpu, key, None)


def gpu_memory(evidence: Evidence) -> str | None:
    found = gpu("memory_bytes")(evidence)
    return size(found) if isinstance(found, int) else None


def cache(evidence: Evidence) -> object:
    """`warm` or `cold`; None where the platform does not tell."""
    return evidence.receipt.resources.get("cache") if evidence.receipt else None


FACTS = (
    Fact(
        "cpu_limits",
        "The CPUs that the jobs had or were limited to are not shown to be equal.",
        training(lambda e: shown(cpus(e))),
    ),
    Fact("memory_limits", "The memory limits are not shown to be equal.", training(lambda e: shown(memory(e), size))),
    Fact("device", "Training ran on different kinds of device.", training(lambda evidence: evidence.device)),
    Fact("gpu", "The GPU models differ.", training(gpu("name"))),
    Fact("gpu_memory", "The GPUs report different amounts of memory.", training(gpu_memory)),
    Fact("gpu_driver", "The GPU drivers are not shown to be equal.", training(gpu("driver"))),
    Fact(
        "versions",
        "The packages that ran differ in version.",
        training(lambda evidence: listed(dict(sorted(evidence.environment.versions.items())))),
    ),
    Fact("cache", "The caches were not equally warm.", training(cache)),
    Fact("worker_code", "The jobs ran different code.", training(lambda evidence: evidence.job.code)),
    Fact(
        "delivery_clock",
        "The delivery times are bounded by different events.",
        training(lambda e: f"{e.timings.delivery_clock or NOT_RECORDED}; covers {', '.join(e.covered)}"),
    ),
    Fact("protocol", "The runs followed different protocols.", training(lambda evidence: evidence.protocol.name)),
    Fact("protocol_content", "The protocols differ in content.", training(lambda evidence: evidence.protocol.sha256)),
)


def unequal(sides: list[Side]) -> Iterator[Deviation]:
    for task, fact in itertools.product(TASKS, FACTS):
        found = {side.label: {fact.of(run) for run in side.of(task)} for side in sides if side.of(task)}
        if len(set().union(*found.values())) > 1:
            shown = {label: " / ".join(sorted(v or NOT_RECORDED for v in values)) for label, values in found.items()}
            yield Deviation(fact.item, task, fact.sentence, shown)


def off_pins(sides: list[Side]) -> Iterator[Deviation]:
    """Versions that are not the protocol's; a build suffix such as +cu126 is no deviation."""
    for task in TASKS:
        found = {}
        for side in sides:
            wrong = sorted({text for run in side.of(task) for e in run.evidence.values() for text in unpinned(e)})
            if wrong:
                found[side.label] = ", ".join(wrong)
        if found:
            yield Deviation("versions_off_pins", task, "Packages ran that the protocol does not pin.", found)


def unpinned(evidence: Evidence) -> list[str]:
    ran, pins = evidence.environment.versions, evidence.job.stack
    return [
        f"{name} {ran.get(name, NOT_RECORDED)}, pinned {pin}"
        for name, pin in pins.items()
        if ran.get(name, "").split("+")[0] != pin.split("+")[0]
    ]


def not_final(sides: list[Side]) -> Iterator[Deviation]:
    found = {side.label: stages(side, still_open) for side in sides}
    if any(found.values()):
        values = {label: text for label, text in found.items() if text}
        yield Deviation("receipts_not_final", None, "Charges may still change.", values)


def late_bills(sides: list[Side]) -> Iterator[Deviation]:
    found = {side.label: stages(side, lambda run: run.charge.booked) for side in sides}
    if any(found.values()):
        sentence = "Bills came after the receipts; these charges are the campaign's, as it booked them."
        yield Deviation("late_bills", None, sentence, {label: text for label, text in found.items() if text})


def still_open(run: TaskRun) -> Iterable[str]:
    final = run.charge.booked
    return [e.stage for name, e in run.evidence.items() if e.receipt and not e.receipt.final and name not in final]


def stages(side: Side, of: Callable[[TaskRun], Iterable[str]]) -> str:
    """The stages of a side's runs that `of` names."""
    named = (f"{task} {stage}" for task in TASKS for run in side.of(task) for stage in of(run))
    return ", ".join(dict.fromkeys(named))


def attempts(sides: list[Side]) -> Iterator[Deviation]:
    for task in TASKS:
        counts = {side.label: side.attempts(task) for side in sides if side.of(task)}
        if len(set(counts.values())) > 1:
            sentence = "Attempts are not recorded on every side."
            sentence = sentence if None in counts.values() else "One side made more attempts than the other."
            found = {label: NOT_RECORDED if n is None else f"{n:g}" for label, n in counts.items()}
            yield Deviation("attempts", task, sentence, found)


def edited(sides: list[Side]) -> Iterator[Deviation]:
    """Protocols whose file is no longer what the evidence says was run."""
    found = {}
    for run in (run for side in sides for run in side.runs):
        recorded = {evidence.protocol.sha256 for evidence in run.evidence} - {None}
        if run.protocol and recorded and recorded != {now := protocol_digest(run.protocol)}:
            was = ", ".join(sorted(f"{digest:.12}" for digest in recorded if digest))
            found[run.name] = f"ran {was}, stands {now:.12}"
    if found:
        yield Deviation("protocol_edited", None, "The protocol was edited since the run.", found)


def unlike_tasks(sides: list[Side]) -> Iterator[Deviation]:
    found = {side.label: ", ".join(task for task in TASKS if side.of(task)) or "none" for side in sides}
    if len(set(found.values())) > 1:
        yield Deviation("tasks", None, "Not every side ran both tasks; only shared ones are compared.", found)


def flags(sides: list[Side]) -> Iterator[Deviation]:
    dirty = {run.name: "dirty" for side in sides for run in side.runs if any(e.dirty for e in run.evidence)}
    if dirty:
        yield Deviation("dirty", None, "Code or protocols had changes that no commit holds.", dirty)
    rehearsed = {side.label: "emulator" for side in sides if side.rehearsal}
    if rehearsed:
        yield Deviation("rehearsal", None, "Charges and timings of a rehearsal are the emulator's.", rehearsed)


def twice(sides: list[Side], dropped: dict[str, str]) -> Iterator[Deviation]:
    if dropped:
        yield Deviation("same_run", None, "The same run under several names counts once.", dropped)


def distinct(runs: list[Run]) -> tuple[list[Run], dict[str, str]]:
    """Runs without those that are another's very evidence, and what each of these is the same as."""
    kept: dict[tuple[object, ...], Run] = {}
    dropped = {}
    for run in runs:
        trained = [found.training for found in run.tasks.values() if found.training]
        key = tuple((run.platform, e.job.id, e.timings.submitted_utc, e.timings.worker_started_utc) for e in trained)
        if key and key in kept:
            dropped[run.name] = f"same as {kept[key].name}"
        kept.setdefault(key or (run.name,), run)
    return list(kept.values()), dropped


def deviations(sides: list[Side], dropped: dict[str, str] | None = None) -> list[Deviation]:
    """Everything above, in the order in which a reader should weigh it."""
    checks = (unlike_tasks, unequal, off_pins, not_final, late_bills, attempts, edited, flags, overlaps, order)
    found = [deviation for check in checks for deviation in check(sides)]
    return [*found, *twice(sides, dropped or {})]
