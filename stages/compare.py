"""Compare runs: git revisions, DVC experiments, `.` for the workspace, `pilot:nodus` and `pilot:modal`.

    python -m stages.compare [REV ...] [--json | --markdown] [--html FILE] [--by platform|run] [--campaign FILE]

Runs of one platform are taken together as repeats; without REV, the revisions nodus and modal are compared. Reductions
are the first side's against the second. The working tree is not touched, and read for `.` and the campaign alone: bills
that came after a run are taken from FILE, or from what `python -m stages.campaign export` wrote to the workspace.
"""

import json
import sys
from pathlib import Path

from stages import command
from stages.comparison.accounts import add_campaign, read
from stages.comparison.compare import Comparison, build, document

DEFAULT = ["nodus", "modal"]


def show(comparison: Comparison) -> None:
    from rich.console import Console

    from stages.comparison import tables

    tables.show(comparison, Console())


def main() -> None:
    arguments = command.parser("stages.compare", __doc__)
    arguments.add_argument("revisions", metavar="REV", nargs="*", default=DEFAULT)
    shape = arguments.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print everything as JSON, unrounded")
    shape.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    arguments.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    arguments.add_argument(
        "--by", choices=("platform", "run"), help="what makes a side; default: platform, or run for two"
    )
    add_campaign(arguments)
    given = arguments.parse_args()
    comparison = build(read(given.revisions, given.campaign), given.by)
    if given.html:
        from stages.comparison.page import write

        write(comparison, given.html)
        print(f"{given.html}: written", file=sys.stderr)
    if given.json:
        print(json.dumps(document(comparison), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False))
    elif given.markdown:
        from stages.comparison.tables import markdown

        print(markdown(comparison))
    elif not given.html:
        show(comparison)


if __name__ == "__main__":
    command.run(main)
