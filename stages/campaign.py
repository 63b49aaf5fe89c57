"""The campaign in params.yaml: its budget, every attempt made under it, and what is left.

    python -m stages.campaign status [--json]
    python -m stages.campaign reconcile [--release ATTEMPT ...] [--json]
    python -m stages.campaign mark ATTEMPT ROLE [--detail WHY]
    python -m stages.campaign export [--out FILE] [--json]

`reconcile` settles what is held by the platforms' own receipts. A hold whose job cannot be found again stays until you
have looked at the platform yourself and release it. `export` writes the file that comparisons and publications read.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any, get_args

from stages import command, platforms
from stages.command import ParityError
from stages.comparison.runs import CAMPAIGN
from stages.evidence import ledger
from stages.evidence.digests import read_json, write_json
from stages.evidence.ledger import Account, Entry, Totals
from stages.platforms import ENDED, HANDLE, Handle, Receipt
from stages.protocol import Params, read_params
from stages.validation import validate

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


@contextmanager
def idle(folder: Path) -> Iterator[None]:
    """Hold a job's lock; raises ParityError where a process is working on the job."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise ParityError("a process on this machine is working on it") from None
        yield


def platform_receipt(params: Params, sections: dict[str, Any], entry: Entry) -> Receipt:
    """What the platform says of an attempt's job, found by the handle that its submission left."""
    folder = platforms.state_folder() / entry.platform / (entry.job or "")
    with idle(folder):
        path = next((folder / name for name in (HANDLE, ENDED) if (folder / name).is_file()), None)
        if not entry.job or path is None:
            raise ParityError(
                "no handle of its job is left; look at the platform's own list, and if nothing was charged "
                f"`python -m stages.campaign reconcile --release {entry.id}`"
            )
        handle = validate(Handle, read_json(path), path)
        settings = platforms.read_settings(entry.platform, sections, Path("params.yaml"))
        context = platforms.Context(params.mirror_path, Decimal(params.campaign.cap_usd))
        platform: platforms.Platform = platforms.load(entry.platform).Platform(settings, context)
        return platform.receipt(handle, folder)


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
    else:
        print("\n".join(f"{attempt}: {what}" for attempt, what in done.items()) or "nothing is held")


def mark(given: argparse.Namespace, params: Params, sections: dict[str, Any]) -> None:
    ledger.mark(params.campaign.name, given.attempt, role=given.role, detail=given.detail)


def export(given: argparse.Namespace, params: Params, sections: dict[str, Any]) -> None:
    account = ledger.account(params.campaign)
    write_json(given.out, account.model_dump())
    if given.json:
        print_json(account.model_dump())
    else:
        print(f"{given.out}: {len(account.attempts)} attempts, {account.recorded_usd} USD recorded")


def status(given: argparse.Namespace, params: Params, sections: dict[str, Any]) -> None:
    account = ledger.account(params.campaign)
    totals = ledger.totals(params.campaign, account.attempts)
    if given.json:
        print_json(account.model_dump() | {f"{key}_usd": str(value) for key, value in totals._asdict().items()})
    else:
        show(account, totals)


def show(account: Account, totals: Totals) -> None:
    from rich.console import Console

    from stages.comparison.tables import rich_table
    from stages.comparison.view import campaign_table

    console = Console()
    console.print(rich_table(campaign_table(account)))
    console.print(
        f"{totals.spent} USD spent, {totals.held} held or not final, {account.reserve_usd} kept back, "
        f"{totals.available} of {account.authorization_usd} left; no job may cost more than {account.cap_usd}",
        soft_wrap=True,
    )


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))


VERBS = {"status": status, "reconcile": reconcile, "mark": mark, "export": export}


def main() -> None:
    given = arguments().parse_args()
    params, sections = read_params()
    VERBS[given.verb](given, params, sections)


if __name__ == "__main__":
    command.run(main)
