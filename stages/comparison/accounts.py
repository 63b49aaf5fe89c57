"""What campaigns know of the runs beyond their receipts: late bills, and attempts that no receipt lists.

An attempt belongs to the run whose job it was of. One of another job, such as a submission that was corrected since, is
shared by the campaign's runs on its platform: once, however the runs are put into sides.
"""

import argparse
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from stages.command import ParityError, Task
from stages.comparison.charges import Booked, failures
from stages.comparison.records import Evidence
from stages.comparison.revisions import Folder
from stages.comparison.runs import CAMPAIGN, Reader, Run, Share, TaskRun, read_runs
from stages.evidence.digests import read_json
from stages.evidence.ledger import FAILED, Account, Entry
from stages.validation import validate

ACCEPTED = ("headline_successful_attempt", "in_flight")  # what a receipt lists, or will


def add_campaign(arguments: argparse.ArgumentParser) -> None:
    text = f"a campaign's export with the attempts and late bills of the runs; default: {CAMPAIGN} in the workspace"
    arguments.add_argument("--campaign", type=Path, metavar="FILE", help=text)


def read(names: list[str], campaign: Path | None = None) -> list[Run]:
    """The runs of these names, with the campaign in `campaign`, or else the one exported to the workspace."""
    runs = read_runs(names)
    if campaign is None:
        account = Reader(".", Folder(Path())).model(Account, CAMPAIGN, 1)
    elif campaign.is_file():
        account = validate(Account, read_json(campaign), campaign)
    else:
        raise ParityError(f"{campaign}: no such file; `python -m stages.campaign export --out {campaign}` writes it")
    return [replace(run, account=latest(run, account)) for run in runs] if account else runs


def latest(run: Run, account: Account) -> Account | None:
    """A run's own campaign as far as `account` does not know more of it."""
    if run.published or run.rehearsal or run.platform not in {entry.platform for entry in account.attempts}:
        return run.account
    if run.account is None:
        return account
    return joined(run.account, account) if run.account.name == account.name else run.account


def joined(known: Account, newer: Account) -> Account:
    """Attempts that both know stand once: as the newer says, unless only the older one's charge is final."""
    attempts = {(entry.id, entry.job): entry for entry in known.attempts}
    for entry in newer.attempts:
        before = attempts.get((entry.id, entry.job))
        if before is None or entry.final or not before.final:
            attempts[entry.id, entry.job] = entry
    recorded = sum((Decimal(entry.charge_usd) for entry in attempts.values() if entry.charge_usd), Decimal(0))
    return newer.model_copy(update={"attempts": list(attempts.values()), "recorded_usd": str(recorded)})


def merged(runs: Iterable[Run]) -> list[Account]:
    """The campaigns that the runs belong to, each once."""
    found: dict[str, Account] = {}
    for account in (run.account for run in runs if run.account):
        known = found.get(account.name)
        found[account.name] = joined(known, account) if known else account
    return list(found.values())


def accounted(runs: list[Run]) -> list[Run]:
    """The runs with what their campaigns know of them."""
    accounts = merged(runs)
    entries = [entry for account in accounts for entry in account.attempts]
    runs = [with_late_bills(run, entries) for run in runs]
    shares: dict[tuple[str, Task], list[Share]] = {}
    for account in accounts:
        for entry in account.attempts:
            owners = owners_of(entry, account, runs) if entry.role not in ACCEPTED else []
            for run, task in owners:
                shares.setdefault((run.name, task), []).append(Share(entry, len(owners)))

    def beside(run: Run, found: TaskRun) -> TaskRun:
        return replace(found, beside=tuple(shares.get((run.name, found.task), [])))

    return [replace(run, tasks={t: beside(run, found) for t, found in run.tasks.items()}) for run in runs]


def with_late_bills(run: Run, entries: list[Entry]) -> Run:
    """Nobody is charged for a rehearsal, whatever was booked for the same job on an account."""
    tasks = {}
    for task, found in run.tasks.items():
        late = {} if run.rehearsal else {stage: booked(evidence, entries) for stage, evidence in found.evidence.items()}
        tasks[task] = replace(found, booked={stage: booking for stage, booking in late.items() if booking})
    return replace(run, tasks=tasks)


def owners_of(entry: Entry, account: Account, runs: list[Run]) -> list[tuple[Run, Task]]:
    """The runs that an attempt is part of the price of; none where it is in their charge already."""
    candidates = [
        (run, task, found)
        for run in runs
        for task, found in run.tasks.items()
        if (run.platform, task) == (entry.platform, entry.task) and not run.rehearsal
    ]
    own = [(run, task, found) for run, task, found in candidates if entry.job and entry.job in jobs(found)]
    if any(entry.job in charged_for_failures(found) for _, _, found in own):
        return []
    of_campaign = [each for each in candidates if each[0].account and each[0].account.name == account.name]
    return [(run, task) for run, task, _ in own or of_campaign]


def jobs(run: TaskRun) -> set[str | None]:
    return {evidence.job.id for evidence in run.evidence.values()}


def charged_for_failures(run: TaskRun) -> set[str | None]:
    """The jobs whose receipt, or late bill, counts failed attempts in."""
    listed = {e.job.id for e in run.evidence.values() if e.receipt and failures(e.receipt)}
    return listed | {run.evidence[stage].job.id for stage in run.booked}


def booked(evidence: Evidence, entries: list[Entry]) -> Booked | None:
    """The final charge of a job whose receipt came before the bill; None where the receipt or nobody has it."""
    receipt = evidence.receipt
    if evidence.job.id is None or receipt is None or (receipt.final and receipt.charge_usd is not None):
        return None
    own = [e for e in entries if (e.job, e.platform) == (evidence.job.id, receipt.platform)]
    charges = [(e.role in FAILED, Decimal(e.charge_usd)) for e in own if e.final and e.charge_usd is not None]
    if not own or len(charges) < len(own):
        return None
    lost = sum((charge for failed, charge in charges if failed), Decimal(0))
    return Booked(sum((charge for _, charge in charges), Decimal(0)), lost)
