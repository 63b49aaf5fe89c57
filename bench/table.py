"""docs/performance.md from bench/results, by python -m bench.table: a function of the records and nothing else."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from bench.measure import RESULTS
from stages.evidence.digests import read_json
from stages.jobs import PROJECT

PAGE = PROJECT / "docs" / "performance.md"
PAPER = PROJECT / "bench" / "paper.md"  # what no measurement here can show
COLUMNS = ("work", "against", "here", "there", "unit", "times as fast", "goal", "of the limit", "checked")


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def goal(line: Mapping[str, Any]) -> str:
    if line["goal"] is None:
        return "-"
    return f"{line['goal']:.3g} {'met' if line['ratio']['median'] >= line['goal'] else '**missed**'}"


def nearness(line: Mapping[str, Any], limits: Mapping[str, float]) -> str:
    """The part of our seconds that the machine's limits leave no way around."""
    if "work" not in line:
        return "-"
    return f"{sum(amount / limits[name] for name, amount in line['work'].items()) / line['seconds']:.0%}"


def row(line: Mapping[str, Any], limits: Mapping[str, float]) -> list[str]:
    ratio, rates = line["ratio"], line["rates"]
    spread = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
    cells = [line["case"], line["other"], number(rates["ours"]), number(rates["other"]), line["unit"], spread]
    return [*cells, goal(line), nearness(line, limits), line.get("equal", "")]


def rich_table(record: Mapping[str, Any], limits: Mapping[str, float]) -> Table:
    table = Table(*COLUMNS, title=record["title"], caption="\n".join(growth(record)))
    for line in record["lines"]:
        table.add_row(*(cell.replace("**", "") for cell in row(line, limits)))
    return table


def growth(record: Mapping[str, Any]) -> Iterator[str]:
    for grown in record["growth"]:
        sizes = ", ".join(f"{size:,.0f}" for size in grown["sizes"])
        seconds = ", ".join(f"{s:.3g}" for s in grown["seconds"])
        yield f"{grown['case']}: {sizes} {grown['unit']} in {seconds} s, exponent {grown['exponent']:.2f}"


def markdown(rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{' --- |' * len(COLUMNS)}"
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def section(record: Mapping[str, Any], limits: Mapping[str, float]) -> Iterator[str]:
    yield f"## {record['title']}"
    yield ""
    yield from markdown([row(line, limits) for line in record["lines"]])
    yield ""
    for note in record["notes"]:
        yield from (note, "")
    if found := list(growth(record)):
        yield "Growth: " + "; ".join(found) + "."
        yield ""
    for case, shares in record["profile"].items():
        said = ", ".join(f"`{name}` {share:.0%}" for name, share in shares)
        yield f"Where the time of {case} goes, by operation: {said}."
        yield ""


def machine(record: Mapping[str, Any]) -> str:
    environment, limits = record["environment"], record["limits"]
    what = environment["gpu"]["name"] if record["device"] == "cuda" else f"{environment['cpu']['model']} CPU"
    cores = f", {environment['cpu']['effective']:g} cores" if record["device"] == "cpu" else ""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    return (
        f"Measured on: {what}{cores}, Python {environment['python']}, {versions}. Its limits, measured: "
        f"{limits['flop'] / 1e9:,.0f} GFLOP/s in FP32 products, {limits['bytes'] / 1e9:,.1f} GB/s of copying, "
        f"{limits['hashed'] / 1e9:,.2f} GB/s of SHA-256, {1e3 / limits['starts']:,.0f} ms to start Python."
    )


def page(records: Mapping[str, Mapping[str, Any]], paper: str) -> str:
    """The page from the parts' records, in the order of `records`, and from what is reasoned on paper."""
    limits = records["limits"]
    lines = [
        "<!-- Written by `python -m bench.table` from bench/results/*.json and bench/paper.md. -->",
        "# Performance",
        "",
        "This project against what one would use instead, in one process tree on one machine, in turn. *times as fast* "
        "is the other's seconds over this project's, the median of the rounds with the lowest and the highest; a goal "
        "is a ratio to reach. *Of the limit* is the least time that the machine's own limits allow for the work, as a "
        "share of this project's. Ratios count, seconds are this machine's. `make bench` measures all of it anew, "
        "`python -m bench nll --device cuda` one part on a GPU.",
        "",
        machine(limits),
        *limits["notes"],
        "",
    ]
    for name, record in records.items():
        if name != "limits":
            lines += section(record, limits["limits"])
    return "\n".join([*lines, paper])


def read() -> tuple[dict[str, Any], str]:
    order = ("limits", "nll", "labels", "training", "prepare", "fetch", "latency")
    paths = [RESULTS / f"{name}.json" for name in order]
    return {path.stem: read_json(path) for path in paths if path.is_file()}, PAPER.read_text()


def main() -> None:
    records, paper = read()
    if "limits" in records:
        PAGE.write_text(page(records, paper))


if __name__ == "__main__":
    main()
