"""The campaign in params.yaml: its budget, every attempt made under it, and what is left.

    python -m stages.campaign status [--json]
    python -m stages.campaign reconcile [--release ATTEMPT ...] [--json]
    python -m stages.campaign mark ATTEMPT ROLE [--detail WHY]
    python -m stages.campaign export [--out FILE] [--json]

`reconcile` settles what is held by the platforms' own receipts; a hold whose job the platform never saw is let go.
Where a platform cannot be asked the hold stays, until you have looked yourself and release it. `export` writes the
file that comparisons and publications read.
"""

import argparse
import json
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

from stages import command, platforms
from stages.command import ParityError
from stages.comparison.bills import campaign_table
from stages.comparison.cells import Table
from stages.comparison.runs import CAMPAIGN
from stages.evidence import ledger
from stages.evidence.digests import write_json
from stages.evidence.ledger import Account, Entry, Totals
from stages.platforms import ENDED, HANDLE, Handle, Receipt
from stages.platforms.common.lock import locked
from stages.protocol import Params, read_params

ROLES = [role for role in get_args(ledger.Role) if role != "in_flight"]


def arguments() -> argparse.ArgumentParser:
    made = command.parser("stages.campaign", __doc__)
    verbs = made.add_subparsers(dest="verb", required=True, metavar="VERB")
    listed = verbs.add_parser("status", help="show attempts and what is left")
    settled = verbs.add_parser("reconcile", help="settle held attempts by the platforms' receipts")
    settled.add_argument("--release", nargs="+", default=[], metavar="ATTEMPT", help="holds that cost nothing")
    marked = verbs.add_parser("mark", help="give an attempt the role that only you know")
    marked.add_argument("attempt", metavar="ATTEMPT")
    marked.add_argument("role", choices=ROLES)
    marked.add_argument("--detail", choices=get_args(ledger.Detail), help="why it has that role")
    exported = verbs.add_parser("export", help=f"write the campaign to {CAMPAIGN}")
    exported.add_argument("--out", type=Path, default=Path(CAMPAIGN), metavar="FILE")
    for verb in (listed, settled, exported):
        verb.add_argument("--json", action="store_true")
    return made


def platform_receipt(params: Params, sections: dict[str, Any], entry: Entry) -> Receipt | None:
    """What the platform says of an attempt's job, found by its handle or its id; None for one that it never saw."""
    if not entry.job:
        raise ParityError(f"no job of it is known; `python -m stages.campaign reconcile --release {entry.id}`")
    settings = platforms.read_settings(entry.platform, sections, Path("params.yaml"))
    context = platforms.Context(params.mirror_path, Decimal(params.campaign.cap_usd))
    folder = platforms.state_folder() / entry.platform / entry.job
    try:
        with locked(folder, wait=False):
            platform: platforms.Platform = platforms.load(entry.platform).Platform(settings, context)
            handle = find(platform, entry, entry.job, folder)
            return platform.receipt(handle, folder) if handle else None
    except ConnectionError as error:
        raise ParityError(command.explain(error)) from None


def find(platform: platforms.Platform, entry: Entry, job: str, folder: Path) -> Handle | None:
    """The handle of an attempt's job: on disk, or, where its process was killed before that, by asking the platform."""
    for path in (folder / HANDLE, folder / ENDED):
        if path.is_file():
            return platforms.read_handle(path)
    reference = platform.find(job)
    if reference is None:
        return None
    submitted = reference.get("submitted_utc") or platforms.now()
    return Handle(version=1, platform=entry.platform, job=job, submitted_utc=submitted, reference=reference)


def reconcile(given: argparse.Namespace, params: Params, sections: dict[str, Any]) -> None:
    name = params.campaign.name
    known = {entry.id for entry in ledger.entries(name) if not entry.final}
    if unknown := sorted(set(given.release) - known):
        raise ParityError(f"campaign {name}: {unknown[0]}: no such hold; held are {', '.join(sorted(known)) or 'none'}")

    def receipt_of(entry: Entry) -> Receipt | None:
        return None if entry.id in given.release else platform_receipt(params, sections, entry)

    done = ledger.reconcile(name, receipt_of)
    if given.json:
        print_json(done)
    elif done:
        print_table(
            Table(f"Campaign {name}: what became of its holds", ["attempt", "now"], [list(i) for i in done.items()])
        )
    else:
        print("nothing is held")


def mark(given: argparse.Namespace, params: Params, sections: dict[str, Any]) -> None:
    ledger.mark(params.campaign.name, given.attempt, role=given.role, detail=given.detail)


def export(given: argparse.Namespace, params: Params, sections: dict[str, Any]) -> None:
    account = ledger.account(params.campaign)
    write_json(given.out, account.model_dump())
    if given.json:
        print_json(account.model_dump())
    else:
        print_table(campaign_table(account))
        print(f"{given.out}: {len(account.attempts)} attempts, {account.recorded_usd} USD recorded")


def status(given: argparse.Namespace, params: Params, sections: dict[str, Any]) -> None:
    account = ledger.account(params.campaign)
    totals = ledger.totals(params.campaign, account.attempts)
    if given.json:
        print_json(account.model_dump() | {f"{key}_usd": str(value) for key, value in totals._asdict().items()})
    else:
        show(account, totals)


def show(account: Account, totals: Totals) -> None:
    print_table(campaign_table(account))
    print(
        f"{totals.spent} USD spent, {totals.held} held or not final, {account.reserve_usd} kept back, "
        f"{totals.available} of {account.authorization_usd} left; no job may cost more than {account.cap_usd}"
    )


def print_table(table: Table) -> None:
    from rich.console import Console

    from stages.comparison.tables import rich_table

    Console().print(rich_table(table))


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))


VERBS = {"status": status, "reconcile": reconcile, "mark": mark, "export": export}


def main() -> None:
    given = arguments().parse_args()
    params, sections = read_params()
    VERBS[given.verb](given, params, sections)


if __name__ == "__main__":
    command.run(main)
