"""Sides of a comparison: the runs of one platform, with seeds and repeats, taken together."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal, NamedTuple

from stages.command import Task
from stages.comparison.accounts import accounted
from stages.comparison.charges import Charge, failures, total_of
from stages.comparison.records import STAGES
from stages.comparison.runs import Run, Share, TaskRun
from stages.comparison.statistics import Number
from stages.evidence.ledger import FAILED

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

    def beside(self, task: Task) -> list[Share]:
        return [share for run in self.of(task) for share in run.beside]

    def attempts(self, task: Task) -> float | None:
        """How many a run of this side took, as receipts and campaign list them; None where one is not recorded."""
        runs = self.of(task)
        if not runs or any(set(STAGES) & run.metrics.keys() - run.covered for run in runs):
            return None
        count = sum(len(run.attempts) for run in runs) + sum(Fraction(1, share.runs) for share in self.beside(task))
        return float(count / len(runs))

    def lost(self, task: Task) -> list[Share]:
        """Failed attempts that the campaign knows and no receipt lists."""
        return [share for share in self.beside(task) if share.entry.role in FAILED]

    def including_failed(self, task: Task) -> Decimal | None:
        """The charge of an accepted run with its share of what failed attempts cost; None where a part is not known."""
        charges = [charge.with_failed_usd for charge in self.charges(task)]
        parts = Counter(self.lost(task))  # multiplied first: thirds of a cent would not add up to it again
        losses = [
            None if (usd := share.entry.charge_usd) is None else Decimal(usd) * n / share.runs
            for share, n in parts.items()
        ]
        total = total_of([*charges, *losses])
        return total / len(charges) if total is not None and charges else None

    def failures(self, task: Task) -> int:
        listed = sum(len(failures(receipt)) for run in self.of(task) for receipt in run.receipts)
        return listed + len(set(self.lost(task)))


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
    runs = accounted(runs)
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
