"""A comparison on the terminal and as Markdown."""

from typing import TYPE_CHECKING

from stages.comparison.cells import Table
from stages.comparison.compare import Comparison
from stages.comparison.view import answer, deviation_rows, limits, tables

if TYPE_CHECKING:
    from rich.console import Console

TITLE = "The same training job on every platform"


def sections(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """The lists of sentences around the tables: the answer before them, what weakens it behind."""
    problems = [f"{name}: {problem}" for name, found in comparison.problems.items() for problem in found]
    return [
        ("Answer", [line for pair in comparison.pairs for line in answer(pair)]),
        ("Not there or not read", problems),
        ("Deviations", [deviation_rows(deviation) for deviation in comparison.deviations]),
        ("Limits", limits(comparison)),
    ]


def show(comparison: Comparison, console: "Console") -> None:
    (first, *rest) = sections(comparison)
    show_list(console, *first)
    for table in tables(comparison):
        console.print(rich_table(table))
    for title, lines in rest:
        show_list(console, title, lines)


def show_list(console: "Console", title: str, lines: list[str]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    if lines:
        console.print(Text(title, style="bold"))
    for line in lines:
        console.print(Padding(Text(f"- {line}"), (0, 0, 0, 2)))


def rich_table(table: Table) -> object:
    from rich.table import Table as Rich
    from rich.text import Text

    made = Rich(title=table.caption, title_justify="left")
    for column, figures in zip(table.columns, table.figures, strict=True):
        made.add_column(Text(column), justify="right" if figures else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*(Text(cell, style="bold red" if cell == "FAILED" else "") for cell in row))
    return made


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def markdown_table(table: Table) -> list[str]:
    rule = ["--:" if figures else "---" for figures in table.figures]
    rows = [table.columns, rule, *([escaped(cell) for cell in row] for row in table.rows)]
    return [f"### {escaped(table.caption)}", "", *(f"| {' | '.join(row)} |" for row in rows), ""]


def markdown(comparison: Comparison) -> str:
    (title, lines), *rest = sections(comparison)
    out = [f"# {TITLE}", "", f"## {title}", "", *(f"- {escaped(line)}" for line in lines), "", "## Figures", ""]
    for table in tables(comparison):
        out += markdown_table(table)
    for title, lines in rest:
        if lines:
            out += [f"## {title}", "", *(f"- {escaped(line)}" for line in lines), ""]
    return "\n".join(out)
