"""What may be claimed of two sides, computed: each true or false, with the reason."""

from collections.abc import Callable
from typing import NamedTuple

from stages.command import Task
from stages.comparison.deviations import deviations
from stages.comparison.machine import unrecorded_machine, unrecorded_work
from stages.comparison.records import Evidence
from stages.comparison.sides import CHARGE, DELIVERY, TRAINER, Quantity, Side
from stages.comparison.statistics import Difference, compare, mean

# Deviations under which a difference is not the platform's own doing: the work or its circumstances were not the same.
UNLIKE_WORK = ("worker_code", "versions", "versions_off_pins", "dirty", "cache", "overlap", "order")
# Under which a difference in time says nothing of the trainer itself.
UNLIKE_MACHINES = ("cpu_limits", "memory_limits", "device", "gpu", "gpu_memory", "gpu_driver")


class Claim(NamedTuple):
    name: str
    holds: bool
    reason: str


def shared_tasks(subject: Side, other: Side) -> list[Task]:
    tasks: tuple[Task, ...] = ("sft", "pretrain")
    return [task for task in tasks if subject.of(task) and other.of(task)]


def differ(subject: Side, other: Side, task: Task, quantity: Quantity) -> Difference | None:
    """The difference in a quantity; None where a side has no value."""
    ours, theirs = subject.values(task, quantity), other.values(task, quantity)
    return compare(ours, theirs) if ours and theirs else None


def unlike(subject: Side, other: Side) -> str | None:
    """Why the two sides are not known to have done the same work; None where they are."""
    names = [{run.protocol_name for run in side.runs} for side in (subject, other)]
    for side, found in zip((subject, other), names, strict=True):
        if None in found:
            return f"the protocol of {side.label} is not recorded"
    if names[0] != names[1]:
        return f"the protocols differ: {' and '.join(', '.join(sorted(map(str, each))) for each in names)}"
    digests = {run.protocol_sha256 for side in (subject, other) for run in side.runs} - {None}
    return "the protocols differ in content" if len(digests) > 1 else None


def not_chargeable(subject: Side, other: Side, task: Task) -> str | None:
    """Why two charges do not compare; None where they do."""
    for side in (subject, other):
        charges = side.charges(task)
        if side.rehearsal:
            return f"{side.label} charges nobody"
        if any(charge.usd is None for charge in charges):
            return f"{side.label} has no charge recorded for {task}"
        if not all(charge.final for charge in charges):
            return f"the receipts of {side.label} for {task} are not final"
    covers = {charge.covers for side in (subject, other) for charge in side.charges(task)}
    return f"the charges for {task} cover different stages" if len(covers) > 1 else None


def cost_advantage(subject: Side, other: Side) -> tuple[bool, str]:
    tasks = shared_tasks(subject, other)
    reasons = [unlike(subject, other), *(not_chargeable(subject, other, task) for task in tasks)]
    if found := next(filter(None, reasons), None):
        return False, found
    differences = [(task, differ(subject, other, task, CHARGE)) for task in tasks]
    parts = [f"{task} {d.subject} against {d.other} USD" for task, d in differences if d]
    lower = [d is not None and d.difference < 0 for _, d in differences]
    return bool(lower) and all(lower), "; ".join(parts) or "no task in common"


def identical_weights(subject: Side, other: Side) -> tuple[bool, str]:
    """Equal digests in every task, seed by seed."""
    tasks = shared_tasks(subject, other)
    for task in tasks:
        ours, theirs = digests(subject, task), digests(other, task)
        if not (shared := ours.keys() & theirs.keys()):
            return False, f"no seed of {task} is recorded on both sides with a weights digest"
        for seed in sorted(shared):
            if len(ours[seed] | theirs[seed]) > 1:
                return False, f"{task}, seed {seed}: the digests differ"
    return bool(tasks), f"equal digests in {' and '.join(tasks)}" if tasks else "no task in common"


def digests(side: Side, task: Task) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for run in side.of(task):
        digest = run.training.model_weights_sha256 if run.training else None
        if digest and run.seed is not None:
            found.setdefault(run.seed, set()).add(digest)
    return found


def variance(subject: Side, other: Side) -> tuple[bool, str]:
    counts = {
        (side.label, task): len(side.of(task)) for task in shared_tasks(subject, other) for side in (subject, other)
    }
    few = [f"{label} {task}" for (label, task), count in counts.items() if count < 2]
    if few or not counts:
        return False, f"not estimated: one run of {', '.join(few)}" if few else "no task in common"
    return True, f"from {min(counts.values())} or more runs per side and task"


def faster(subject: Side, other: Side, quantity: Quantity) -> str | None:
    """Why a lower value is not established in every task; None where it is."""
    for task in shared_tasks(subject, other):
        found = differ(subject, other, task, quantity)
        if found is None:
            return f"{task}: {quantity.label} not recorded on both sides"
        if found.low is None or found.high is None:
            return f"{task}: {quantity.label} has one run on a side, so no interval"
        if found.high >= 0:
            return (
                f"{task}: the 95 % interval of {quantity.label}, {found.low:.6g} to {found.high:.6g}, is not below zero"
            )
    return None if shared_tasks(subject, other) else "no task in common"


def confounded(subject: Side, other: Side, items: tuple[str, ...]) -> str | None:
    """What else may explain a difference; None where nothing that was recorded does."""
    found = sorted({deviation.item for deviation in deviations([subject, other])} & set(items))
    if subject.rehearsal or other.rehearsal:
        found.append("a rehearsal")
    return f"other causes are not ruled out: {', '.join(found)}" if found else None


def not_shown(subject: Side, other: Side, unrecorded: Callable[[Evidence], list[str]]) -> str | None:
    """What of the trainings is not known, so that nobody can call them alike; None where all of it is."""
    for task in shared_tasks(subject, other):
        for side in (subject, other):
            for run in side.of(task):
                if missing := unrecorded(run.training) if run.training else ["evidence"]:
                    return f"{task}: not recorded of {side.label}: {', '.join(missing)}; not shown to be alike"
    return None


def speedup(subject: Side, other: Side) -> tuple[bool, str]:
    """A shorter trainer time over repeats, with nothing but the platform to explain it."""
    reasons = (
        unlike(subject, other),
        faster(subject, other, TRAINER),
        confounded(subject, other, UNLIKE_WORK + UNLIKE_MACHINES),
        not_shown(subject, other, lambda evidence: unrecorded_machine(evidence) + unrecorded_work(evidence)),
    )
    if found := next(filter(None, reasons), None):
        return False, found
    return True, "the 95 % interval of trainer seconds is below zero in every task, on equal machines"


def superiority(subject: Side, other: Side) -> tuple[bool, str]:
    """Cheaper and delivered sooner over repeats, in every task, at equal or better quality.

    Machines may differ, as they are what a platform offers; the work and its circumstances may not.
    """
    cheap, why = cost_advantage(subject, other)
    if not cheap:
        return False, f"no cost advantage: {why}"
    for quantity in (CHARGE, DELIVERY):
        if found := faster(subject, other, quantity):
            return False, found
    for task in shared_tasks(subject, other):
        if not no_worse(subject, other, task):
            return False, f"{task}: the quality is lower"
    alike = confounded(subject, other, (*UNLIKE_WORK, "delivery_clock")), not_shown(subject, other, unrecorded_work)
    if found := next(filter(None, alike), None):
        return False, found
    return True, "charge and delivery time are lower beyond their 95 % intervals, at no lower quality"


def no_worse(subject: Side, other: Side, task: Task) -> bool:
    key, sign = ("accuracy", 1) if task == "sft" else ("nll", -1)
    means = []
    for side in (subject, other):
        values = [found for run in side.of(task) if (found := run.number("evaluate", key)) is not None]
        if not values:
            return False
        means.append(sign * float(mean(values)))
    return means[0] >= means[1]


CLAIMS: dict[str, Callable[[Side, Side], tuple[bool, str]]] = {
    "observed_successful_attempt_cost_advantage": cost_advantage,
    "identical_model_weights_per_stage": identical_weights,
    "run_variance_estimated": variance,
    "algorithmic_speedup_established": speedup,
    "general_platform_superiority_established": superiority,
}


def claims(subject: Side, other: Side) -> list[Claim]:
    return [Claim(name, *judge(subject, other)) for name, judge in CLAIMS.items()]
