"""What a task's jobs cost, by their receipts and by what the campaign booked after them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from stages.comparison.records import STAGES, Evidence
from stages.platforms import Attempt, Receipt, Segment

# How an attempt ends whose work is part of the result; any other ending is a failure.
GOOD_ENDINGS = ("succeeded", "preempted")


class Booked(NamedTuple):
    """What the campaign booked of a job, with and of its failed attempts."""

    total: Decimal
    lost: Decimal


@dataclass(frozen=True)
class Charge:
    """What a task's jobs cost. `covers` says which stages they did: charges compare only where it is equal."""

    usd: Decimal | None
    final: bool
    covers: tuple[str, ...]
    with_failed_usd: Decimal | None  # the same with the failed attempts that the receipts list
    segments: dict[str, Segment]
    booked: tuple[str, ...] = ()  # stages whose charge is the campaign's, which came after the receipt


def charge(evidence: Mapping[str, Evidence], booked: Mapping[str, Booked]) -> Charge:
    """The charges of a task's jobs in one sum; None as soon as one of them is not known."""
    paid = {stage: found for stage, found in evidence.items() if found.receipt}
    totals = [booked[stage].total if stage in booked else total(found.receipt) for stage, found in paid.items()]
    losses = [booked[stage].lost if stage in booked else failed(found.receipt) for stage, found in paid.items()]
    whole, lost = total_of(totals) if totals else None, total_of(losses)
    own = {stage: found.receipt for stage, found in paid.items() if stage not in booked}
    return Charge(
        usd=None if whole is None or lost is None else whole - lost,
        with_failed_usd=whole,
        final=bool(paid) and all(receipt.final for receipt in own.values() if receipt),
        covers=tuple(stage for stage in STAGES if any(stage in found.covered for found in paid.values())),
        segments=joined(receipt.segments for receipt in own.values() if receipt),
        booked=tuple(stage for stage in paid if stage in booked),
    )


def total(receipt: Receipt | None) -> Decimal | None:
    return None if receipt is None or receipt.charge_usd is None else Decimal(receipt.charge_usd)


def failures(receipt: Receipt) -> list[Attempt]:
    return [attempt for attempt in receipt.attempts if attempt.outcome not in GOOD_ENDINGS]


def failed(receipt: Receipt | None) -> Decimal | None:
    """What a job's failed attempts cost; None where there were some and the platform bills them with the others."""
    lost = failures(receipt) if receipt else []
    return total_of(None if attempt.charge_usd is None else Decimal(attempt.charge_usd) for attempt in lost)


def total_of(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """The sum, or None where an amount is not known."""
    total = Decimal(0)
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def joined(segments: Iterable[dict[str, Segment]]) -> dict[str, Segment]:
    found: dict[str, Segment] = {}
    for each in segments:
        for name, new in each.items():
            old = found.get(name, Segment(seconds=0, usd="0"))
            usd = str(Decimal(old.usd) + Decimal(new.usd))
            found[name] = Segment(seconds=old.seconds + new.seconds, usd=usd)
    return found
