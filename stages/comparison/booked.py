"""The check of an exported campaign: its total, its budget, and every attempt against this machine's own ledger."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from stages.command import ParityError
from stages.comparison.audited import Audited, Line, same, unknown
from stages.comparison.runs import CAMPAIGN, Reader
from stages.evidence import chain, ledger
from stages.evidence.ledger import Account, Entry
from stages.validation import parse_yaml

BUDGET = ("authorization_usd", "cap_usd", "reserve_usd")


def check_campaign(run: Audited) -> Iterator[Line]:
    reader = Reader(run.name, run.files)
    account = reader.model(Account, CAMPAIGN, 1)
    if account is None:
        broken = Line(CAMPAIGN, "differs", "a campaign", "; ".join(reader.problems))
        yield broken if reader.problems else unknown(CAMPAIGN, "none")
        return
    total = sum((Decimal(entry.charge_usd) for entry in account.attempts if entry.charge_usd), Decimal(0))
    yield same(f"{CAMPAIGN}: total", Decimal(account.recorded_usd), total)
    yield from check_budget(run, account)
    if not ledger.path(account.name).is_file():
        yield unknown(f"ledger of {account.name}", "it is not on this machine")
        return
    try:
        known = {entry.id: entry for entry in ledger.entries(account.name)}
    except ParityError as error:
        yield Line(f"ledger of {account.name}", "differs", "an unbroken chain", str(error))
        return
    exported = {entry.id: entry for entry in account.attempts}
    for attempt in {**exported, **known}:
        yield from check_attempt(run, account.name, attempt, exported.get(attempt), known.get(attempt))


def check_budget(run: Audited, account: Account) -> Iterator[Line]:
    """Against `params.yaml` of the same revision, where that is the same campaign's."""
    found = campaign_of(run)
    for key in BUDGET:
        what = f"{CAMPAIGN}: {key}"
        if found.get("name") == account.name and key in found:
            yield same(what, getattr(account, key), found[key])
        else:
            yield unknown(what, f"params.yaml says nothing of the campaign {account.name}")


def campaign_of(run: Audited) -> dict[str, Any]:
    try:
        section = parse_yaml(run.files.read("params.yaml") or b"", "params.yaml").get("campaign")
    except ParityError:
        return {}
    return section if isinstance(section, dict) else {}


def check_attempt(
    run: Audited, campaign: str, attempt: str, exported: Entry | None, known: Entry | None
) -> Iterator[Line]:
    """Field by field; one that only either has is a difference, but for what was begun after the run had ended."""
    what = f"attempt {attempt}"
    if exported and known:
        for key, value in known.model_dump().items():
            yield same(f"{what}: {key.removesuffix('_usd')}", getattr(exported, key), value)
    elif exported:
        yield Line(what, "differs", told(exported), "not in the ledger")
    elif known and begun(campaign, attempt) > last(run):
        yield unknown(what, "it was begun after this run, and is on the ledger only; a later export has it")
    elif known:
        yield Line(what, "differs", "not in the export", told(known))


def told(entry: Entry) -> str:
    return f"{entry.role}, {entry.charge_usd or 'no charge'}"


def begun(campaign: str, attempt: str) -> str:
    events = chain.lines(ledger.path(campaign))
    return next(line.at for line in events if (line.event, line.id) == ("reserve", attempt))


def last(run: Audited) -> str:
    """When the run's last job was done, in UTC; the end of time where that is not recorded."""
    times = (found["timings"] for found in run.evidence.values())
    return max((time["verified_utc"] or time["worker_finished_utc"] or "9" for time in times), default="9")
