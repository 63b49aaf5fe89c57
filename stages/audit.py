"""Audit runs: make again every digest, metric, gate, claim and total that can be made again, and compare.

    python -m stages.audit [REV ...] [--publication DIR [--campaign FILE]] [--json] [--all]

REV is as in `compare`; without one, the workspace. With `--publication`, the two published documents in DIR are made
again from REV REV and compared value by value. Exits with 1 where anything differs.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages import command
from stages.command import ParityError
from stages.comparison.accounts import add_campaign
from stages.comparison.audited import Audited, Line, same, unknown
from stages.comparison.checks import CHECKS
from stages.comparison.revisions import WORKSPACE, Objects, locate
from stages.evidence.digests import read_json


def audit(names: list[str]) -> Iterator[tuple[str, Line]]:
    """Every line of every run; a document too damaged for a check is a difference of its own."""
    with Objects() as objects:
        for name, files in locate(names, objects).items():
            yield from ((name, line) for line in checked(Audited(name, files)))


def checked(run: Audited) -> Iterator[Line]:
    for check in CHECKS:
        try:
            yield from check(run)
        except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, ParityError) as error:
            found = f"{type(error).__name__}: {error}"
            yield Line(check.__name__.removeprefix("check_"), "differs", "readable documents", found)
    yield from run.broken


def leaves(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(document, dict) and document:
        for key, value in document.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(document, list) and document:
        for i, value in enumerate(document):
            yield from leaves(value, f"{path}/{i}")
    else:
        yield path, document


def check_publication(
    names: list[str], folder: Path, owner: str | None, campaign: Path | None = None
) -> Iterator[Line]:
    """The published documents, claims included, against the same documents made anew."""
    from stages.publish import documents

    for name, document in documents(names, owner, campaign).items():
        recorded, made = dict(leaves(read_json(folder / name))), dict(leaves(document))
        for path in {**recorded, **made}:
            yield same(f"{name}{path}", recorded.get(path, "not there"), made.get(path, "not there"))


def show(lines: list[tuple[str, Line]], everything: bool) -> None:
    from rich.console import Console

    from stages.comparison.cells import Table
    from stages.comparison.tables import rich_table

    shown = [(name, line) for name, line in lines if everything or line.outcome != "recomputed and equal"]
    rows = [[name, line.what, line.outcome, line.recorded, line.recomputed] for name, line in shown]
    console = Console()
    if rows:
        table = Table("Audit", ["", "what", "outcome", "recorded", "recomputed, or why not"], rows)
        console.print(rich_table(table))
    counts = Counter(line.outcome for _, line in lines)
    console.print("; ".join(f"{count} {outcome}" for outcome, count in counts.items()), soft_wrap=True)


def main() -> int:
    arguments = command.parser("stages.audit", __doc__)
    arguments.add_argument("revisions", metavar="REV", nargs="*", default=[WORKSPACE])
    arguments.add_argument(
        "--publication", type=Path, metavar="DIR", help="published documents to make again from REV REV"
    )
    arguments.add_argument("--owner", metavar="NAME", help="the name that the publication was made with")
    add_campaign(arguments)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--all", action="store_true", help="show equal lines too")
    given = arguments.parse_args()
    lines = list(audit(given.revisions))
    if given.publication:
        found = check_publication(given.revisions, given.publication, given.owner, given.campaign)
        lines += [("publication", line) for line in found]
    else:
        lines.append(("publication", unknown("claims", "no publication was named; --publication DIR checks one")))
    if given.json:
        print(json.dumps([{"run": name, **line._asdict()} for name, line in lines], indent=2))
    else:
        show(lines, given.all)
    return int(any(line.outcome == "differs" for _, line in lines))


if __name__ == "__main__":
    command.run(main)
