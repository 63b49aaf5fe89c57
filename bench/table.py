"""docs/performance.md from bench/results, by python -m bench.table: a function of the records and nothing else.

Of another device than the CPU, docs/performance-<device>.md.
"""

import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from bench.measure import RESULTS
from stages.evidence.digests import read_json
from stages.jobs import PROJECT

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
    least = sum(amount / limits[name] for name, amount in line["work"].items())
    return f"{least / statistics.median(line['seconds']['ours']):.0%}"


def row(line: Mapping[str, Any], limits: Mapping[str, float]) -> list[str]:
    ratio, rates = line["ratio"], line["rates"]
    once = len(line["seconds"]["ours"]) == 1
    among = "one round" if once else f"{ratio['low']:.2f} to {ratio['high']:.2f}"
    spread = f"{ratio['median']:.2f} ({among})"
    cells = [line["case"], line["other"], number(rates["ours"]), number(rates["other"]), line["unit"], spread]
    return [*cells, goal(line), nearness(line, limits), line.get("equal", "")]


def rich_table(record: Mapping[str, Any]) -> Table:
    table = Table(*COLUMNS, title=record["title"], caption="\n".join(growth(record)))
    for line in record["lines"]:
        table.add_row(*(cell.replace("**", "") for cell in row(line, record["limits"])))
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


def section(record: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {record['title']}"
    yield ""
    yield from markdown([row(line, record["limits"]) for line in record["lines"]])
    yield ""
    for note in record["notes"]:
        yield from (note, "")
    if found := list(growth(record)):
        yield "Growth: " + "; ".join(found) + "."
        yield ""
    if record["profile"]:
        yield "| where the time goes | by operation | in the kernel | page faults |"
        yield "| --- | --- | --- | --- |"
        for case, found in record["profile"].items():
            said = ", ".join(f"`{name}` {share:.0%}" for name, share in found["operations"])
            yield f"| {case} | {said} | {found['kernel']:.0%} | {found['faults']:,} |"
        yield ""


def machine(record: Mapping[str, Any]) -> str:
    environment, limits = record["environment"], record["limits"]
    what = environment["gpu"]["name"] if record["device"] == "cuda" else f"{environment['cpu']['model']} CPU"
    cores = f", {environment['cpu']['effective']:g} cores" if record["device"] == "cpu" else ""
    packages = environment["versions"] | record["tools"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    return (
        f"Measured on: {what}{cores}, Python {environment['python']}, {versions}. Its limits, measured: "
        f"{limits['flop'] / 1e9:,.0f} GFLOP/s in products in FP32, {limits['bfloat16'] / 1e9:,.0f} in bfloat16, "
        f"{limits['bytes'] / 1e9:,.1f} GB/s of copying in the machine's memory, {limits['hashed'] / 1e9:,.2f} GB/s of "
        f"SHA-256, {1e3 / limits['starts']:,.0f} ms to start Python."
    )


def page(records: Mapping[str, Mapping[str, Any]], paper: str) -> str:
    """The page from the parts' records, in the order of `records`, and from what is reasoned on paper."""
    limits = records["limits"]
    lines = [
        "<!-- Written by `python -m bench.table` from bench/results/cpu/*.json and bench/paper.md. -->",
        "# Performance",
        "",
        "This project against what one would use instead, in one process tree on one machine, in turn. *times as fast* "
        "is the other's seconds over this project's, round by round, the median with the lowest and the highest; a "
        "goal is a ratio to reach. *here* and *there* are of each one's median round. *Of the limit* is the least time "
        "that the machine's own limits, as measured with this part, allow for the work, as a share of this project's. "
        "Ratios count, seconds are this machine's. `make bench` measures all of it anew, "
        "`python -m bench nll --device cuda` one part on a GPU.",
        "",
        machine(limits),
        *limits["notes"],
        "",
    ]
    for name, record in records.items():
        if name != "limits":
            lines += section(record)
    return "\n".join([*lines, paper])


def read(device: str = "cpu") -> tuple[dict[str, Any], str]:
    order = ("limits", "nll", "labels", "training", "prepare", "fetch", "latency")
    paths = [RESULTS / device / f"{name}.json" for name in order]
    records = {path.stem: read_json(path) for path in paths if path.is_file()}
    return records, PAPER.read_text() if device == "cpu" else ""


def write(device: str) -> None:
    records, paper = read(device)
    if "limits" in records:
        name = "performance.md" if device == "cpu" else f"performance-{device}.md"
        (PROJECT / "docs" / name).write_text(page(records, paper))


if __name__ == "__main__":
    write(*(sys.argv[1:] or ["cpu"]))
