"""Stage `report`: the workspace's run as one page to open, `metrics/report.html`.

    python -m stages.report

The same page as `compare --html`, of this run alone; a pure function of metrics and evidence. The campaign is no part
of it: an export is no output of a stage, so DVC could not tell when the page is out of date.
"""

from dataclasses import replace
from pathlib import Path

from stages import command
from stages.comparison.compare import build
from stages.comparison.page import write
from stages.comparison.revisions import WORKSPACE
from stages.comparison.runs import read_runs

REPORT = Path("metrics/report.html")


def main() -> None:
    command.parser("stages.report", __doc__).parse_args()
    runs = [replace(run, account=None) for run in read_runs([WORKSPACE])]
    write(build(runs), REPORT)
    print(f"open {REPORT}")


if __name__ == "__main__":
    command.run(main)
