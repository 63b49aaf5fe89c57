"""The append-only ledger of a campaign: every attempt at a paid job, what is held for it and what it cost.

It lies in the user's state folder, one file per campaign, so that all clones, branches and temporary workspaces share
one budget. A line is canonical JSON, chained to the one before by a digest, on disk before anything is submitted.
A hold stays until the charge is final: what is not known to be spent is taken to be.
"""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stages.command import ParityError
from stages.evidence.chain import append, lines, locked
from stages.platforms import Receipt, state_folder
from stages.protocol import Campaign
from stages.validation import Charge, Frozen, Name, plain, validate

Role = Literal[
    "in_flight",
    "headline_successful_attempt",
    "failed_before_training",
    "failed",
    "superseded",
    "software_diagnostic",
]
# Why an attempt has its role, where more is to be said. A closed list, so that a publication can hold it.
Detail = Literal[
    "export_configuration",
    "not_native_nodus",
    "never_submitted",
    "settings_corrected",
    "wrapper_failure",
    "interrupted",
]
FAILED = ("failed_before_training", "failed")


class Entry(Frozen):
    """One attempt. `final` says that the charge will not change; a final one without a charge cost nothing known."""

    id: str
    platform: Name
    task: str
    stage: str | None
    job: Name | None
    role: Role
    detail: Detail | None = None
    held_usd: Charge | None
    charge_usd: Charge | None
    final: bool

    @property
    def committed(self) -> Decimal:
        """What the budget must count: the charge once it is final, until then the larger of hold and charge."""
        charge = Decimal(self.charge_usd or 0)
        return charge if self.final else max(charge, Decimal(self.held_usd or 0))


class Account(Frozen):
    """A campaign's budget and attempts, as `campaign export` writes them and a comparison reads them."""

    version: Literal[1]
    name: str
    authorization_usd: Charge
    cap_usd: Charge
    reserve_usd: Charge
    attempts: list[Entry]
    recorded_usd: Charge
    other_costs_final: bool | None = None  # whether charges that no job shows are known to be complete


class Totals(NamedTuple):
    spent: Decimal  # final charges
    held: Decimal  # everything that is not final
    available: Decimal  # what may still be submitted


def folder(state: Path | None = None) -> Path:
    return (state or state_folder()) / "campaigns"


def path(name: str, state: Path | None = None) -> Path:
    return folder(state) / f"{name}.jsonl"


def entries(name: str, state: Path | None = None) -> list[Entry]:
    """Every attempt of a campaign in the order of their reservation, each in its latest state."""
    found: dict[str, Entry] = {}
    file = path(name, state)
    for line in lines(file):
        if line.event == "reserve":
            values = {"id": line.id, "role": "in_flight", "charge_usd": None, "final": False, **line.values}
        elif line.id in found:
            values = found[line.id].model_dump() | line.values
        else:
            raise ParityError(f"{file}: {line.event} of the attempt {line.id}, which was never reserved")
        found[line.id] = validate(Entry, values, file)
    return list(found.values())


def totals(campaign: Campaign, attempts: list[Entry]) -> Totals:
    spent = sum((entry.committed for entry in attempts if entry.final), Decimal(0))
    held = sum((entry.committed for entry in attempts if not entry.final), Decimal(0))
    authorized = Decimal(campaign.authorization_usd) - Decimal(campaign.reserve_usd)
    return Totals(spent, held, authorized - spent - held)


def reserve(
    campaign: Campaign, *, job: str, platform: str, task: str, stage: str, amount: Decimal, state: Path | None = None
) -> str:
    """Hold `amount` for an attempt that is about to be submitted; return the attempt's id.

    Raises ParityError, with the figures, where the amount does not fit what is left or is above the cap of one job.
    """
    if not 0 < amount <= Decimal(campaign.cap_usd):
        raise ParityError(f"campaign {campaign.name}: {amount} USD asked for, a job may cost 0 to {campaign.cap_usd}")
    file = path(campaign.name, state)
    with locked(file):
        attempts = entries(campaign.name, state)
        left = totals(campaign, attempts)
        if amount > left.available:
            raise ParityError(
                f"campaign {campaign.name}: {amount} USD do not fit: {left.available} left of "
                f"{campaign.authorization_usd} authorized ({campaign.reserve_usd} kept back, {left.spent} spent, "
                f"{left.held} held or not final). `python -m stages.campaign status` lists them"
            )
        stem = f"{platform}-{task}-{stage}"
        attempt = f"{stem}-{1 + sum(entry.id.rsplit('-', 1)[0] == stem for entry in attempts)}"
        values = {"job": job, "platform": platform, "task": task, "stage": stage, "held_usd": plain(amount)}
        append(file, "reserve", attempt, **values)
    return attempt


def settle(
    campaign_name: str,
    attempt: str,
    *,
    role: str,
    charge_usd: Decimal | None,
    final: bool,
    detail: str | None = None,
    state: Path | None = None,
) -> None:
    """Say how an attempt ended and what it cost; its hold goes once that is final. Saying it twice changes nothing."""
    charge = None if charge_usd is None else plain(charge_usd)
    change(campaign_name, attempt, "settle", state, role=role, charge_usd=charge, final=final, detail=detail)


def mark(campaign_name: str, attempt: str, *, role: str, detail: str | None, state: Path | None = None) -> None:
    """Give an attempt the role that only its user can know, such as superseded; the money stays as it is."""
    change(campaign_name, attempt, "mark", state, role=role, detail=detail)


def change(campaign_name: str, attempt: str, event: str, state: Path | None, **values: Any) -> None:
    file = path(campaign_name, state)
    with locked(file):
        before = by_id(campaign_name, attempt, state).model_dump()
        validate(Entry, before | values, f"campaign {campaign_name}", (attempt,))
        if any(before[key] != value for key, value in values.items()):
            append(file, event, attempt, **values)


def held(campaign_name: str, *, job: str, platform: str, state: Path | None = None) -> Entry | None:
    """The latest attempt at this job that is not final, if there is one."""
    found = [e for e in entries(campaign_name, state) if (e.job, e.platform, e.final) == (job, platform, False)]
    return found[-1] if found else None


def in_flight(campaign_name: str, *, job: str, platform: str, state: Path | None = None) -> Entry | None:
    """The attempt at this job of which nothing was said yet: that of a process since killed. It may be taken up."""
    attempt = held(campaign_name, job=job, platform=platform, state=state)
    return attempt if attempt and attempt.role == "in_flight" else None


def by_id(campaign_name: str, attempt: str, state: Path | None = None) -> Entry:
    """The attempt of that id; raises ParityError with those there are."""
    known = {entry.id: entry for entry in entries(campaign_name, state)}
    if attempt not in known:
        raise ParityError(f"campaign {campaign_name}: no attempt {attempt}; there are {', '.join(known) or 'none'}")
    return known[attempt]


def settle_by(campaign_name: str, attempt: str, receipt: Receipt, state: Path | None = None) -> None:
    """Settle an attempt by its platform's receipt.

    A receipt's charge is of all attempts at the job that it lists, so what others are booked with comes off.
    """
    entry = by_id(campaign_name, attempt, state)
    job = (entry.job, entry.platform)
    others = [e for e in entries(campaign_name, state) if (e.job, e.platform) == job and e.id != attempt]
    total = None if receipt.charge_usd is None else Decimal(receipt.charge_usd)
    charge = None if total is None else total - sum((Decimal(e.charge_usd or 0) for e in others), Decimal(0))
    role = ended_as(receipt) if entry.role == "in_flight" else entry.role
    final = receipt.final
    settle(campaign_name, attempt, role=role, charge_usd=charge, final=final, detail=entry.detail, state=state)


def ended_as(receipt: Receipt) -> Role:
    """How the last attempt that a receipt lists ended."""
    if not receipt.attempts or (receipt.attempts[-1].started_utc is None and not receipt.charge_usd):
        return "failed_before_training"
    return "headline_successful_attempt" if receipt.attempts[-1].outcome == "succeeded" else "failed"


def reconcile(
    campaign_name: str, receipt_of: Callable[[Entry], Receipt | None], state: Path | None = None
) -> dict[str, str]:
    """Settle what is not final by the platform's own receipts; say of each attempt what was done.

    `receipt_of` returns None for an attempt that the platform never saw: its hold goes. It raises ParityError where
    that cannot be told, and the hold stays.
    """
    done = {}
    for entry in entries(campaign_name, state):
        if entry.final:
            continue
        try:
            receipt = receipt_of(entry)
        except ParityError as error:
            done[entry.id] = f"still held: {error}"
            continue
        if receipt is None:
            release(campaign_name, entry.id, state)
            done[entry.id] = "released: never submitted"
            continue
        settle_by(campaign_name, entry.id, receipt, state)
        now = by_id(campaign_name, entry.id, state)
        amount = "unknown" if now.charge_usd is None else f"{now.charge_usd} USD"
        done[entry.id] = f"settled: {amount}, final" if now.final else f"still held: {amount} so far, not final"
    return done


def release(campaign_name: str, attempt: str, state: Path | None = None) -> None:
    """Let go of a hold for something that was never submitted."""
    role, detail = "failed_before_training", "never_submitted"
    settle(campaign_name, attempt, role=role, charge_usd=Decimal(0), final=True, detail=detail, state=state)


def account(campaign: Campaign, state: Path | None = None) -> Account:
    """The campaign as it is published: every attempt, and the sum of what was recorded."""
    attempts = entries(campaign.name, state)
    recorded = sum((Decimal(entry.charge_usd) for entry in attempts if entry.charge_usd), Decimal(0))
    return Account(version=1, **campaign.model_dump(), attempts=attempts, recorded_usd=plain(recorded))
