"""What a test spends: the driver's context as the stages make it, and what the ledger then holds."""

from pathlib import Path

from stages import delivery
from stages.evidence import ledger
from stages.jobs import PROJECT
from stages.platforms import Context
from stages.protocol import read_params


def context(platform: str, state: Path, *, cap: str = "1.00", detach: bool = False) -> Context:
    """With a budget that no test spends."""
    found = read_params(PROJECT)[0]
    campaign = found.campaign.model_copy(update={"authorization_usd": "900.00", "cap_usd": cap})
    params = found.model_copy(update={"platform": platform, "campaign": campaign})
    return delivery.budgeted(params, "train", state, detach=detach)


def booked(state: Path) -> list[tuple[str, str | None, bool]]:
    """Role, charge and finality of each attempt, in their order."""
    return [(entry.role, entry.charge_usd, entry.final) for entry in ledger.entries("default", state)]


def roles(state: Path) -> list[tuple[str, bool]]:
    return [(role, final) for role, _, final in booked(state)]
