"""Stage `report`: the workspace's run as one page to open, `metrics/report.html`.

    python -m stages.report

The same page as `compare --html`, of this run alone; a pure function of metrics and evidence.
"""

from pathlib import Path

from stages import command
from stages.comparison.compare import build
from stages.comparison.page import write
from stages.comparison.revisions import WORKSPACE
from stages.comparison.runs import read_runs

REPORT = Path("metrics/report.html")


def main() -> None:
    command.parser("stages.report", __doc__).parse_args()
    write(build(read_runs([WORKSPACE])), REPORT)
    print(f"open {REPORT}")


if __name__ == "__main__":
    command.run(main)
