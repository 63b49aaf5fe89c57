"""Print the workspace's metrics as a table: what every run here measured, and which gates it met.

python -m stages.show
"""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stages import command, layout
from stages.command import Task
from stages.comparison.records import Evidence, Gates, Metrics
from stages.evidence.digests import read_json
from stages.validation import validate

# Label, metric, decimals; the columns are the base model and the trained one.
QUALITY = {
    "sft": [("accuracy", "accuracy", 4), ("format validity", "format_validity", 4)],
    "pretrain": [("NLL", "nll", 4), ("perplexity", "perplexity", 2)],
}
RUN = [
    ("train loss", "train_loss", 4),
    ("training tokens", "num_tokens", 0),
    ("FLOPs", "total_flos", 0),
    ("trainer seconds", "trainer_seconds", 1),
    ("delivery seconds", "delivery_seconds", 1),
    ("charge, USD", "charge_usd", 6),
]


def number(values: dict[str, Any], key: str, decimals: int) -> str:
    return f"{values[key]:,.{decimals}f}" if key in values else "-"


def add_task(table: Table, task: Task) -> None:
    paths = [layout.metrics(task, stage) for stage in ("baseline", "train", "evaluate")]
    baseline, train, final = (validate(Metrics, read_json(path), path).root for path in paths)
    gates = validate(Gates, read_json(layout.metrics(task, "gate")), layout.metrics(task, "gate")).root
    for label, key, decimals in QUALITY[task]:
        table.add_row(task, label, number(baseline, key, decimals), number(final, key, decimals))
    for label, key, decimals in RUN:
        table.add_row(task, label, "", number(train, key, decimals))
    for name, gate in gates.items():
        verdict = "[green]met[/]" if gate.passed else "[bold red]FAILED[/]"
        table.add_row(task, f"gate {escape(name)} ({gate.threshold:.4g})", "", f"{gate.value:.4f} {verdict}")
    table.add_section()


def title() -> str:
    """What ran, where, with which seed."""
    path = layout.evidence("sft", "train")
    record = validate(Evidence, read_json(path), path)
    platform = record.receipt.platform if record.receipt else "unknown"
    seed = record.job.training.seed if record.job.training else "unknown"
    return f"{record.protocol.name} on {platform}, seed {seed}"


def build() -> Table:
    table = Table("task", "metric", "base", "trained", title=escape(title()))
    for column in table.columns[2:]:
        column.justify = "right"
    for task in command.TASKS:
        add_task(table, task)
    return table


def main() -> None:
    command.parser("stages.show", __doc__).parse_args()
    Console().print(build())


if __name__ == "__main__":
    command.run(main)
