"""Write what the last `make faults` has tried, and what failed, into the table of docs/reliability.md.

    python -m tests.faults.counts

A test counts as what it recorded as `tried`, such as the documents that it made, else as one. A row whose tests did not
run keeps its counts.
"""

import re
import xml.etree.ElementTree as Xml
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
REPORT = ROOT / "build/faults.xml"
TABLE = ROOT / "docs/reliability.md"
# | fault | promised | `tests/file.py::test`, ... | tried | failed |
ROW = re.compile(r"^(\|.*\|.*\|(?P<tests>[^|]*`tests/[^|]*)\|)[^|]*\|[^|]*\|$")


def names(row: str) -> list[str]:
    """The tests that a row of the table names, as `tests/file.py::test`."""
    found = ROW.match(row)
    return re.findall(r"`(tests/[\w/]+\.py::\w+)`", found["tests"]) if found else []


def counted(report: Path) -> tuple[Counter[str], Counter[str]]:
    """How much each test has tried, and how many of its cases failed; skipped ones tried nothing."""
    tried: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for case in Xml.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').split('[')[0]}"
        if case.find("skipped") is None:
            recorded = case.find("properties/property[@name='tried']")
            tried[name] += 1 if recorded is None else int(recorded.get("value", "1"))
            failed[name] += case.find("failure") is not None or case.find("error") is not None
    return tried, failed


def recounted(table: str, tried: Counter[str], failed: Counter[str]) -> str:
    lines = []
    for line in table.splitlines():
        tests = names(line)
        if tests and all(test in tried for test in tests):
            counts = [f"{sum(kind[test] for test in tests):,}" for kind in (tried, failed)]
            line = ROW.sub(rf"\g<1> {counts[0]} | {counts[1]} |", line)
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(recounted(TABLE.read_text(), *counted(REPORT)))
