"""Figures as text, and the tables that they stand in."""

import re
from decimal import Decimal
from typing import NamedTuple

from stages.comparison.statistics import Number

MISSING = "not recorded"
FIGURE = re.compile(rf"[+-]?\d[^a-z]*( [A-Za-z]{{1,5}})?( per token)?$|[+-]?\d.*( ± |; interval )|{MISSING}$|\d.*of ")
DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")  # shown by its beginning; --json has all of it


class Table(NamedTuple):
    """Cells are text; the first column names the row."""

    caption: str
    columns: list[str]
    rows: list[list[str]]

    @property
    def figures(self) -> list[bool]:
        """Whether each column holds figures alone, which then stand to the right."""
        columns = [[row[i] for row in self.rows if row[i]] for i in range(len(self.columns))]
        return [i > 0 and all(FIGURE.match(cell) for cell in column) for i, column in enumerate(columns)]


def number(value: Number | None, decimals: int, unit: str = "") -> str:
    """Money as it was recorded, other figures rounded; missing is said."""
    if value is None:
        return MISSING
    text = str(value) if isinstance(value, Decimal) and unit == "USD" else f"{value:,.{decimals}f}"
    return f"{text} {unit}".rstrip()


def brief(text: str) -> str:
    return DIGEST.sub(r"\1…", text)


def percent(value: float | None) -> str:
    """With its sign, and zero without one."""
    return MISSING if value is None else f"{value:+.2f} %" if round(value, 2) else "0.00 %"
