"""Publish a comparison of two platforms: `execution-record.json` and `results.json`, cleared and validated.

    python -m stages.publish REV REV [REV ...] --out DIR [--owner NAME] [--campaign FILE]

An allowlist decides what leaves; a value that no rule allows stops the publication with its path.
"""

import re
from pathlib import Path

from stages import command
from stages.command import ParityError
from stages.comparison.accounts import add_campaign, read
from stages.comparison.execution import record
from stages.comparison.publication import results, two_sides, validated
from stages.comparison.runs import Run
from stages.evidence.digests import filling, indented, replacing

OWNER = re.compile(r"[A-Z][A-Za-z0-9]*( [A-Za-z0-9&]+){0,5}")


def documents(revisions: list[str], owner: str | None = None, campaign: Path | None = None) -> dict[str, object]:
    """File name -> document, as they would be published."""
    return of_runs(read(revisions, campaign), owner)


def of_runs(runs: list[Run], owner: str | None = None) -> dict[str, object]:
    if owner and not OWNER.fullmatch(owner):
        raise ParityError(f"--owner: found {owner!r}, expected a name in plain words, such as 'Example Labs'")
    subject, other = two_sides(runs)
    made = {"results": results(subject, other, owner), "execution-record": record(subject, other)}
    return {f"{name}.json": validated(name, document) for name, document in made.items()}


def main() -> None:
    arguments = command.parser("stages.publish", __doc__)
    arguments.add_argument("revisions", metavar="REV", nargs="+", help="the runs of both platforms")
    arguments.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments.add_argument("--owner", metavar="NAME", help="who measured; left out unless given")
    add_campaign(arguments)
    given = arguments.parse_args()
    made = documents(given.revisions, given.owner, given.campaign)
    with replacing(*(given.out / name for name in made)) as partials:
        for partial, document in zip(partials, made.values(), strict=True):
            with filling(partial) as stream:
                stream.write(indented(document))
    print("\n".join(f"{given.out / name}: written" for name in made))


if __name__ == "__main__":
    command.run(main)
