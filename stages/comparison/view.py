"""A comparison as sentences and tables of text, which the terminal, Markdown and the page show alike."""

from stages.command import TASKS, Task
from stages.comparison.bills import campaign_table, segment_table
from stages.comparison.cells import MISSING, Table, brief, number, percent
from stages.comparison.claims import Claim
from stages.comparison.compare import Comparison, Match, Pair, TaskPair, cross_gates, estimates, gate_verdicts
from stages.comparison.gates import Verdict
from stages.comparison.records import Evidence
from stages.comparison.schedule import Deviation
from stages.comparison.sides import CHARGE, QUALITY, Quantity, Side, quantities
from stages.comparison.statistics import NOT_ESTIMATED, Difference, Estimate

TASK_NAMES: dict[Task, str] = {"sft": "Fine-tuning", "pretrain": "Continued pretraining"}
CLAIM_NAMES = {
    "observed_successful_attempt_cost_advantage": "the successful attempts cost less",
    "identical_model_weights_per_stage": "the weights are identical",
    "run_variance_estimated": "the spread between runs is estimated",
    "algorithmic_speedup_established": "training itself is faster",
    "general_platform_superiority_established": "one platform is better in general",
}


def shown(found: Estimate | None, quantity: Quantity) -> str:
    if found is None:
        return MISSING
    if found.sd is None:
        return number(found.mean, quantity.decimals, quantity.unit)
    middle, sd, low, high = (
        number(float(value or 0), quantity.decimals) for value in (found.mean, found.sd, found.low, found.high)
    )
    return f"{middle} ± {sd} {quantity.unit}".rstrip() + f" [{low} to {high}], n = {found.n}"


def change(difference: Difference | None, quantity: Quantity) -> str:
    """A difference in words that need no sign rule: percent of the other, points for shares."""
    if difference is None:
        return MISSING
    interval = NOT_ESTIMATED
    if difference.low is not None and difference.high is not None:
        low, high = (number(value, quantity.decimals) for value in (difference.low, difference.high))
        interval = f"95 %: {low} to {high} ({difference.method})"
    gap = f"{difference.difference:+,.{quantity.decimals}f}" if difference.difference else "0"
    relative = "" if difference.reduction_percent is None else f", {percent(-difference.reduction_percent)}"
    return f"{gap}{relative}; interval {interval}"


def answer(pair: Pair) -> list[str]:
    """What a reader wants to know first of two sides, from the claims and the charges."""
    subject, other = pair.subject.label, pair.other.label
    lines = []
    for task, found in pair.tasks.items():
        lines.append(f"{TASK_NAMES[task]}: {price(found, pair)}")
    for claim in pair.claims:
        verdict = "yes" if claim.holds else "no"
        lines.append(f"{subject} against {other}, {CLAIM_NAMES[claim.name]}: {verdict} ({claim.reason}).")
    return lines


def price(found: TaskPair, pair: Pair) -> str:
    """The headline charges against each other, or why they are not set so."""
    subject, other, difference = pair.subject.label, pair.other.label, found.differences.get(CHARGE.key)
    if difference is None or difference.reduction_percent is None:
        why = found.unpriced or f"{other} charged nothing"
        return f"the charges of {subject} and {other} are not set against each other: {why}."
    words = "less" if difference.reduction_percent >= 0 else "more"
    figures = f"{difference.subject} against {difference.other} USD"
    return f"{subject} charged {abs(difference.reduction_percent):.2f} % {words} than {other}: {figures}."


def compared(found: TaskPair, quantity: Quantity) -> str:
    if quantity is CHARGE and found.unpriced:
        return "not compared"
    return change(found.differences.get(quantity.key), quantity)


def task_table(comparison: Comparison, task: Task) -> Table:
    """One row per quantity, one column per side, and the difference where there is one pair."""
    present = [side for side in comparison.sides if side.of(task)]
    single = comparison.pairs[0] if len(comparison.pairs) == 1 and task in comparison.pairs[0].tasks else None
    found = {side.label: estimates(side, task) for side in present}
    rows = [[f"base {q.label}", *(base(side, task, q) for side in present)] for q in QUALITY[task]]
    for row in rows:
        row += [""] if single else []
    for q in quantities(task):
        cells = [shown(found[side.label].get(q.key), q) for side in present]
        rows.append([q.label, *cells, *([compared(single.tasks[task], q)] if single else [])])
    rows.append(["charge with failed attempts", *(number(side.including_failed(task), 8, "USD") for side in present)])
    rows[-1] += [percent_with_failed(single, task)] if single else []
    rows.append(["seeds", *(", ".join(seeds(side, task)) for side in present), *([""] if single else [])])
    header = [side.label for side in present] + ([f"{single.subject.label} - {single.other.label}"] if single else [])
    return Table(TASK_NAMES[task], ["", *header], rows)


def percent_with_failed(pair: Pair, task: Task) -> str:
    found = pair.tasks[task].failed_reduction_percent
    return "" if found is None else f"{percent(-found)} of {pair.other.label}'s headline charge"


def seeds(side: Side, task: Task) -> list[str]:
    return sorted({MISSING if run.seed is None else str(run.seed) for run in side.of(task)})


def base(side: Side, task: Task, quantity: Quantity) -> str:
    values = {run.number("baseline", quantity.key) for run in side.of(task)}
    return " / ".join(number(value, quantity.decimals, quantity.unit) for value in values)


def difference_table(comparison: Comparison, task: Task) -> Table | None:
    """Every pair's differences, where there is more than one pair."""
    pairs = [pair for pair in comparison.pairs if task in pair.tasks]
    if len(comparison.pairs) < 2 or not pairs:
        return None
    rows = [
        [f"{pair.subject.label} - {pair.other.label}"] + [compared(pair.tasks[task], q) for q in quantities(task)]
        for pair in pairs
    ]
    return Table(f"{TASK_NAMES[task]}: differences", ["", *(q.label for q in quantities(task))], rows)


def gate_table(comparison: Comparison) -> Table:
    rows = []
    for task in comparison.tasks:
        for side in comparison.sides:
            for run in side.runs:
                rows += [gate_row(f"{run.name}, {task}", *item) for item in gate_verdicts(run, task).items()]
        for pair in comparison.pairs:
            for subject, other in ((pair.subject, pair.other), (pair.other, pair.subject)):
                found = cross_gates(subject, other, task).items() if task in pair.tasks else ()
                rows += [gate_row(f"{subject.label} against {other.label}, {task}", *item) for item in found]
    return Table("Quality against the gates", ["", "gate", "value", "threshold", "verdict"], rows)


def gate_row(who: str, name: str, verdict: Verdict) -> list[str]:
    met = "met" if verdict.passed else "FAILED"
    value = round(verdict.value, 9)  # a difference of means can be a rounding error away from zero
    return [who, name.replace("_", " "), f"{value:.6g}", f"{verdict.threshold:.6g}", met]


def matching_table(comparison: Comparison) -> Table:
    rows = [
        [f"{pair.subject.label} and {pair.other.label}, {task}", *(match(found) for found in each.matching.values())]
        for pair in comparison.pairs
        for task, each in pair.tasks.items()
    ]
    columns = ["", "model revision", "inputs", "versions", "training tokens", "weights"]
    return Table("Matching evidence", columns, rows)


def digest_table(comparison: Comparison) -> Table:
    """What identifies each run's work and its result; `--json` and the evidence have the digests whole."""
    rows = [
        [f"{run.name}, {task}", *identity(found.training)]
        for side in comparison.sides
        for run in side.runs
        for task, found in run.tasks.items()
    ]
    return Table("What was run, by digest", ["", "job", "protocol", "training tokens", "weights"], rows)


def identity(evidence: Evidence | None) -> list[str]:
    if evidence is None:
        return [MISSING] * 4
    digests = evidence.job.id, evidence.protocol.sha256, evidence.training_tokens_sha256, evidence.model_weights_sha256
    return [brief(digest) if digest else MISSING for digest in digests]


def match(found: Match) -> str:
    if found.equal is None:
        return f"{MISSING} on every side"
    return "equal" if found.equal else f"differ: {', '.join(found.differing)}"


def claim_table(comparison: Comparison) -> Table:
    rows = [
        [f"{pair.subject.label} against {pair.other.label}", *claim_cells(claim)]
        for pair in comparison.pairs
        for claim in pair.claims
    ]
    return Table("Claims, computed", ["", "claim", "holds", "why"], rows)


def claim_cells(claim: Claim) -> list[str]:
    return [claim.name.replace("_", " "), str(claim.holds).lower(), claim.reason]


def timing_table(comparison: Comparison) -> Table:
    """When each training job ran, and which two events bound its delivery time."""
    rows = [
        [f"{run.name}, {task}", *clock(found.training)]
        for side in comparison.sides
        for run in side.runs
        for task, found in run.tasks.items()
    ]
    return Table("Timings", ["", "worker started, UTC", "worker finished, UTC", "delivery", "its clock"], rows)


def clock(evidence: Evidence | None) -> list[str]:
    if evidence is None:
        return [MISSING] * 4
    times = evidence.timings
    ends = [(time or MISSING)[:19].replace("T", " ") for time in (times.worker_started_utc, times.worker_finished_utc)]
    return [*ends, number(times.delivery_seconds, 2, "s"), times.delivery_clock or MISSING]


def deviation_rows(deviation: Deviation) -> str:
    task = f"{TASK_NAMES[deviation.task]}: " if deviation.task else ""
    values = "; ".join(f"{label}: {brief(value)}" for label, value in deviation.values.items())
    return f"{task}{deviation.sentence} {values}"


def limits(comparison: Comparison) -> list[str]:
    """What this comparison cannot tell, from what it holds."""
    found = []
    counts = [len(side.of(task)) for side in comparison.sides for task in TASKS if side.of(task)]
    if counts and min(counts) < 2:
        found.append(f"With one run on a side, the spread between runs is {NOT_ESTIMATED} and there is no interval.")
    if any(side.rehearsal for side in comparison.sides):
        found.append("A rehearsal shows that the path works; it says nothing of a platform's price or speed.")
    if not all(account.other_costs_final for account in comparison.campaigns):
        found.append("Charges that no job shows, such as storage, may follow.")
    found.append("Equal GPU models do not make equal machines: times compare offers, not trainers.")
    return found


def tables(comparison: Comparison) -> list[Table]:
    """Every table, in reading order; empty ones left out."""
    found = [table for task in comparison.tasks for table in of_task(comparison, task)]
    builders = (gate_table, matching_table, claim_table, digest_table, segment_table, timing_table)
    found += [build(comparison) for build in builders]
    found += [campaign_table(account) for account in comparison.campaigns]
    return [table for table in found if table.rows]


def of_task(comparison: Comparison, task: Task) -> list[Table]:
    extra = difference_table(comparison, task)
    return [task_table(comparison, task), *([extra] if extra else [])]
