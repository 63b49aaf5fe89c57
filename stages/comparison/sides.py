"""Sides of a comparison: the runs of one platform, with seeds and repeats, taken together."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple

from stages.command import Task
from stages.comparison.runs import Charge, Run, TaskRun, failures, total_of
from stages.comparison.statistics import Number
from stages.evidence.ledger import FAILED, Account, Entry

Grouping = Literal["platform", "run"]


class Quantity(NamedTuple):
    """Something that is measured once per run and compared between sides."""

    key: str
    label: str
    unit: str
    decimals: int
    lower_is_better: bool
    of: Callable[[TaskRun], Number | None]


def metric(stage: str, key: str) -> Callable[[TaskRun], Number | None]:
    return lambda run: run.number(stage, key)


def delivery(run: TaskRun) -> Number | None:
    return run.training.timings.delivery_seconds if run.training else None


TRAINER = Quantity("trainer_seconds", "trainer", "s", 4, True, metric("train", "trainer_seconds"))
DELIVERY = Quantity("delivery_seconds", "submission to verified export", "s", 2, True, delivery)
CHARGE = Quantity("charge_usd", "charge, headline attempts", "USD", 8, True, lambda run: run.charge.usd)
QUALITY: dict[Task, tuple[Quantity, ...]] = {
    "sft": (
        Quantity("accuracy", "accuracy", "", 6, False, metric("evaluate", "accuracy")),
        Quantity("format_validity", "format validity", "", 6, False, metric("evaluate", "format_validity")),
    ),
    "pretrain": (
        Quantity("nll", "NLL", "nats per token", 6, True, metric("evaluate", "nll")),
        Quantity("perplexity", "perplexity", "", 4, True, metric("evaluate", "perplexity")),
    ),
}


def quantities(task: Task) -> tuple[Quantity, ...]:
    return (*QUALITY[task], TRAINER, DELIVERY, CHARGE)


@dataclass(frozen=True)
class Side:
    label: str
    platform: str | None
    runs: tuple[Run, ...]

    @property
    def published(self) -> bool:
        return self.runs[0].published

    @property
    def rehearsal(self) -> bool:
        return any(run.rehearsal for run in self.runs)

    def of(self, task: Task) -> list[TaskRun]:
        return [run.tasks[task] for run in self.runs if task in run.tasks]

    def values(self, task: Task, quantity: Quantity) -> dict[int | None, list[Number]]:
        """What is recorded, by seed."""
        found: dict[int | None, list[Number]] = {}
        for run in self.of(task):
            if (value := quantity.of(run)) is not None:
                found.setdefault(run.seed, []).append(value)
        return found

    def charges(self, task: Task) -> list[Charge]:
        return [run.charge for run in self.of(task)]

    @property
    def attempts(self) -> list[Entry]:
        """The campaigns' attempts on this side's platform."""
        accounts = merged(self.runs)
        return [entry for account in accounts for entry in account.attempts if entry.platform == self.platform]

    def lost(self, task: Task) -> list[Entry]:
        """Failed attempts that the campaign knows and no receipt lists."""
        told = {e.job.id for run in self.of(task) for e in run.evidence.values() if e.receipt and failures(e.receipt)}
        return [
            e for e in self.attempts if e.task == task and e.role in FAILED and (e.job is None or e.job not in told)
        ]

    def including_failed(self, task: Task) -> Decimal | None:
        """The charge of an accepted run with its share of what failed attempts cost; None where a part is not known."""
        charges = [charge.with_failed_usd for charge in self.charges(task)]
        losses = [None if entry.charge_usd is None else Decimal(entry.charge_usd) for entry in self.lost(task)]
        total = total_of([*charges, *losses])
        return total / len(charges) if total is not None and charges else None

    def failures(self, task: Task) -> int:
        listed = sum(len(failures(receipt)) for run in self.of(task) for receipt in run.receipts)
        return listed + len(self.lost(task))


def merged(runs: Iterable[Run]) -> list[Account]:
    """The campaigns that the runs belong to; attempts known to several revisions stand once, in their latest state."""
    found: dict[str, Account] = {}
    for run in runs:
        if (account := run.account) is None:
            continue
        known = found.get(account.name)
        attempts = {entry.id: entry for entry in known.attempts} if known else {}
        for entry in account.attempts:
            if not (entry.id in attempts and attempts[entry.id].final):
                attempts[entry.id] = entry
        recorded = sum((Decimal(entry.charge_usd) for entry in attempts.values() if entry.charge_usd), Decimal(0))
        update = {"attempts": list(attempts.values()), "recorded_usd": str(recorded)}
        found[account.name] = account.model_copy(update=update)
    return list(found.values())


def group_key(run: Run) -> tuple[object, ...]:
    platform = run.platform or run.name  # a run without evidence stands for itself
    return platform, run.published, run.rehearsal, run.protocol_name, run.protocol_sha256


def label_of(run: Run, ambiguous: bool) -> str:
    base = run.name if run.published or run.platform is None else run.platform
    if run.rehearsal:
        base += " (rehearsal)"
    if ambiguous:
        base += f" [{run.protocol_name or 'protocol not recorded'} {(run.protocol_sha256 or '')[:8]}".rstrip() + "]"
    return base


def sides(runs: list[Run], grouping: Grouping | None = None) -> list[Side]:
    """By platform, in the order of the names given; two runs of one platform stand against each other."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(group_key(run), []).append(run)
    if grouping == "run" or (grouping is None and len(groups) == 1 and len(runs) == 2):
        return [Side(run.name, run.platform, (run,)) for run in runs]
    plain = [label_of(group[0], False) for group in groups.values()]
    return [
        Side(label_of(group[0], plain.count(label) > 1), group[0].platform, tuple(group))
        for group, label in zip(groups.values(), plain, strict=True)
    ]
