"""Runs in, a comparison out: everything that the tables, the page and the published documents show."""

from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from typing import Any, NamedTuple

from stages.command import TASKS, Task
from stages.comparison.accounts import merged
from stages.comparison.claims import Claim, claims, differ, not_chargeable, shared_tasks, unlike
from stages.comparison.deviations import deviations, distinct
from stages.comparison.gates import Verdict, cross_verdicts, verdicts
from stages.comparison.records import Evidence
from stages.comparison.runs import Run, TaskRun
from stages.comparison.schedule import Deviation
from stages.comparison.sides import CHARGE, Grouping, Side, quantities, sides
from stages.comparison.statistics import Difference, Estimate, estimate, reduction
from stages.evidence.ledger import Account

PAIRS = 10  # of sides; with more, the first is held against each of the others


class Match(NamedTuple):
    """Whether a digest or version is equal on both sides; None where a side has not recorded it."""

    equal: bool | None
    differing: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskPair:
    differences: dict[str, Difference]  # of charges only where these compare
    unpriced: str | None  # why they do not
    failed_reduction_percent: float | None  # of the charge including failed attempts, against the other's headline
    gates: dict[str, Verdict]  # the subject's final quality against the other's
    matching: dict[str, Match]


@dataclass(frozen=True)
class Pair:
    """Two sides; reductions are the subject's against the other."""

    subject: Side
    other: Side
    tasks: dict[Task, TaskPair]
    claims: list[Claim]


@dataclass(frozen=True)
class Comparison:
    sides: list[Side]
    pairs: list[Pair]
    deviations: list[Deviation]
    campaigns: list[Account]
    problems: dict[str, tuple[str, ...]]

    @property
    def tasks(self) -> list[Task]:
        return [task for task in TASKS if any(side.of(task) for side in self.sides)]


def gate_verdicts(run: Run, task: Task) -> dict[str, Verdict]:
    """The single-platform gates of a run; empty where the protocol or a metric is missing."""
    found = run.tasks.get(task)
    if not (found and run.protocol):
        return {}
    try:
        return verdicts(run.protocol, task, found.metrics["baseline"], found.metrics["evaluate"])
    except (KeyError, TypeError):
        return {}


def cross_gates(subject: Side, other: Side, task: Task) -> dict[str, Verdict]:
    protocol = next((run.protocol for run in subject.runs if run.protocol), None)
    finals, others = ([run.metrics.get("evaluate", {}) for run in side.of(task)] for side in (subject, other))
    try:
        return cross_verdicts(protocol, task, finals, others) if protocol and not unlike(subject, other) else {}
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return {}


def matching(subject: Side, other: Side, task: Task) -> dict[str, Match]:
    """Whether both sides worked from and to the same bytes. Every run of both has to."""
    runs = [*subject.of(task), *other.of(task)]
    return {
        "model_revision": one_value(shared_digests([revision(run.training) for run in runs])),
        "input_hashes": one_value([run.inputs or None for run in runs]),
        "versions": one_value([run.training.environment.versions if run.training else None for run in runs]),
        "training_tokens_sha256": one_value([tokens(run.training) for run in runs]),
        "model_weights_sha256": weights_match(subject, other, task),
    }


def revision(evidence: Evidence | None) -> dict[str, str] | None:
    """The base model by its revision, the protocol's pins and, where they do not cover it, the weights as loaded."""
    if evidence is None:
        return None
    loaded = {"model.safetensors": evidence.loaded_weights_sha256} if evidence.loaded_weights_sha256 else {}
    return {"revision": evidence.job.model.revision, **loaded, **evidence.job.model.sha256}


def shared_digests(found: list[dict[str, str] | None]) -> list[dict[str, str] | None]:
    """Models by what all of them record: a revision says which files there are, a digest of each is more than that."""
    keys = set.intersection(*(set(each) for each in found if each)) if any(found) else set()
    return [each and {key: value for key, value in each.items() if key in keys} for each in found]


def tokens(evidence: Evidence | None) -> dict[str, str] | None:
    found = evidence.training_tokens_sha256 if evidence else None
    return {"digest": found} if found else None


def one_value(found: list[dict[str, str] | None]) -> Match:
    """Whether all mappings are the same; which of their keys differ. A key that one of them lacks is not recorded."""
    known = [each for each in found if each is not None]
    keys = sorted({key for each in known for key in each})
    values = {key: {each.get(key) for each in known} for key in keys}
    if differing := tuple(key for key in keys if len(values[key] - {None}) > 1):
        return Match(False, differing)
    complete = len(known) == len(found) and not any(None in each for each in values.values())
    return Match(True if complete else None)


def weights_match(subject: Side, other: Side, task: Task) -> Match:
    """Weights depend on the seed: equal where each seed that both sides have gave the same on both."""
    seeds: list[dict[int, set[str | None]]] = [by_seed(side.of(task)) for side in (subject, other)]
    shared = sorted(seeds[0].keys() & seeds[1].keys())
    if not shared or any(None in side[seed] for side in seeds for seed in shared):
        return Match(None)
    differing = tuple(f"seed {seed}" for seed in shared if len(seeds[0][seed] | seeds[1][seed]) > 1)
    return Match(not differing, differing)


def by_seed(runs: list[TaskRun]) -> dict[int, set[str | None]]:
    found: dict[int, set[str | None]] = {}
    for run in runs:
        if run.training and run.seed is not None:
            found.setdefault(run.seed, set()).add(run.training.model_weights_sha256)
    return found


def task_pair(subject: Side, other: Side, task: Task) -> TaskPair:
    unpriced = unlike(subject, other) or not_chargeable(subject, other, task)
    found = {q.key: differ(subject, other, task, q) for q in quantities(task) if not (unpriced and q is CHARGE)}
    differences = {key: difference for key, difference in found.items() if difference}
    charge, including = differences.get(CHARGE.key), subject.including_failed(task)
    failed = reduction(including, charge.other) if charge and including is not None and subject.failures(task) else None
    gates = cross_gates(subject, other, task)
    return TaskPair(differences, unpriced, failed, gates, matching(subject, other, task))


def pair(subject: Side, other: Side) -> Pair:
    tasks = {task: task_pair(subject, other, task) for task in shared_tasks(subject, other)}
    return Pair(subject, other, tasks, claims(subject, other))


def build(runs: list[Run], grouping: Grouping | None = None) -> Comparison:
    kept, dropped = distinct([run for run in runs if run.tasks])
    found = sides(kept, grouping)
    couples = list(combinations(found, 2)) if len(found) <= PAIRS else [(found[0], other) for other in found[1:]]
    return Comparison(
        sides=found,
        pairs=[pair(subject, other) for subject, other in couples],
        deviations=deviations(found, dropped),
        campaigns=merged(runs),
        problems={run.name: run.problems for run in runs if run.problems},
    )


def estimates(side: Side, task: Task) -> dict[str, Estimate]:
    """Mean and spread of each quantity that a side has recorded."""
    found = {q.key: [v for values in side.values(task, q).values() for v in values] for q in quantities(task)}
    return {key: estimate(values) for key, values in found.items() if values}


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON: what `--json` prints."""
    return {
        "version": 1,
        "sides": [side_document(side) for side in comparison.sides],
        "pairs": [pair_document(found) for found in comparison.pairs],
        "deviations": [plain(deviation) for deviation in comparison.deviations],
        "campaigns": [account.model_dump() for account in comparison.campaigns],
        "problems": plain(comparison.problems),
    }


def side_document(side: Side) -> dict[str, Any]:
    return {
        "label": side.label,
        "platform": side.platform,
        "rehearsal": side.rehearsal,
        "runs": [run_document(run) for run in side.runs],
        "estimates": {task: plain(estimates(side, task)) for task in TASKS if side.of(task)},
        "charge_including_failed_usd": {task: plain(side.including_failed(task)) for task in TASKS if side.of(task)},
    }


def run_document(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "protocol": run.protocol_name,
        "tasks": {
            task: {
                "seed": found.seed,
                "repeat": found.repeat,
                "metrics": found.metrics,
                "gates": plain(gate_verdicts(run, task)),
                "charge_usd": plain(found.charge.usd),
                "charge_final": found.charge.final,
                "charge_from_campaign": list(found.charge.booked),
                "charge_covers": list(found.charge.covers),
                "charge_segments": {name: part.model_dump() for name, part in found.charge.segments.items()},
                "attempts": len(found.attempts),
                "delivery": delivery_document(found.training),
                "training_tokens_sha256": found.training.training_tokens_sha256 if found.training else None,
                "model_weights_sha256": found.training.model_weights_sha256 if found.training else None,
            }
            for task, found in run.tasks.items()
        },
    }


def delivery_document(evidence: Evidence | None) -> dict[str, Any] | None:
    return evidence.timings.model_dump() if evidence else None


def pair_document(found: Pair) -> dict[str, Any]:
    return {
        "subject": found.subject.label,
        "other": found.other.label,
        "tasks": {
            task: {
                "differences": plain(each.differences),
                "charges_not_compared": each.unpriced,
                "charge_including_failed_reduction_percent": each.failed_reduction_percent,
                "gates": plain(each.gates),
                "matching_evidence": {name: plain(match) for name, match in each.matching.items()},
            }
            for task, each in found.tasks.items()
        },
        "claims": {claim.name: {"holds": claim.holds, "reason": claim.reason} for claim in found.claims},
    }


def plain(value: Any) -> Any:
    """Named tuples as objects and decimals as strings, all the way down."""
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value
