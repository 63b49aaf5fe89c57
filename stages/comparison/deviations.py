"""Where two sides were not treated alike, found in their evidence. A sentence says what; the values say how."""

from collections.abc import Callable, Iterable, Iterator

from stages.command import TASKS
from stages.comparison.facts import FACTS, Found, evidenced, spread, text
from stages.comparison.records import Evidence
from stages.comparison.runs import Run, TaskRun, protocol_digest
from stages.comparison.schedule import Deviation, order, overlaps
from stages.comparison.sides import Side

NOT_RECORDED = "not recorded"


def unequal(sides: list[Side]) -> Iterator[Deviation]:
    """Of the training jobs. What one side has not recorded is no difference, and is said to be just that."""
    for task in TASKS:
        present = {side.label: side.of(task) for side in sides if side.of(task)}
        if missing := {label: NOT_RECORDED for label, runs in present.items() if not all(run.training for run in runs)}:
            yield Deviation("evidence", task, "Not every training job has evidence that can be read.", missing)
        known = {label: evidenced(runs) for label, runs in present.items()}
        for fact in FACTS:
            found = {label: [fact.of(evidence) for evidence in each] for label, each in known.items() if each}
            differs, complete = spread([each for side in found.values() for each in side])
            if differs or not complete:
                shown = {label: listed(each) for label, each in found.items()}
                sentence = fact.sentence if differs else f"Not recorded on every side: {fact.name}."
                yield Deviation(fact.item, task, sentence, shown)


def listed(found: list[Found]) -> str:
    return " / ".join(sorted({text(each, NOT_RECORDED) for each in found}))


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
