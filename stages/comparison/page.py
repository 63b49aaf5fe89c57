"""A comparison as one self-contained HTML page: no script, no network, the answer first."""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, TypeVar

from stages.command import Task
from stages.comparison import charts
from stages.comparison.bills import campaign_table, segment_table
from stages.comparison.cells import MISSING, Table, number, percent
from stages.comparison.charges import Charge
from stages.comparison.charts import Bar, Curve, Mark
from stages.comparison.compare import Comparison, Pair, gate_verdicts
from stages.comparison.runs import Run, TaskRun
from stages.comparison.sides import Side
from stages.comparison.tables import TITLE, sections
from stages.comparison.view import (
    TASK_NAMES,
    claim_table,
    digest_table,
    gate_table,
    matching_table,
    of_task,
    price,
    timing_table,
)
from stages.evidence.digests import whole

R = TypeVar("R", Bar, Curve, Mark)
ANSWERED = 3  # pairs that the answer on top is about; the tables have all
WHOLE, REST, LOST = "the accepted run", "not in a segment", "failed attempts"
TEMPLATE = Path(__file__).with_name("page.html.jinja")


class Chart(NamedTuple):
    """A drawing and what its marks mean; `total` counts what there is, where not all of it is drawn."""

    title: str
    drawing: str
    legend: str
    total: int


class Figure(NamedTuple):
    """One of the large figures at the top."""

    title: str
    value: str
    text: str


class Item(NamedTuple):
    """A run of a task, in its side's colour."""

    run: Run
    task: TaskRun
    colour: int


def items(comparison: Comparison, task: Task) -> list[Item]:
    return [
        Item(run, run.tasks[task], colour)
        for colour, side in enumerate(comparison.sides)
        for run in side.runs
        if task in run.tasks
    ]


def charge_chart(comparison: Comparison, task: Task) -> Chart | None:
    """Each bar is as long as its charge with failed attempts; the same segment has the same shade on every bar."""
    found = [item for item in items(comparison, task) if item.task.charge.with_failed_usd is not None]
    parts = [charge_parts(item.task.charge) for item in found]
    seen = dict.fromkeys(name for each in parts for name in each)
    names = [name for name in seen if name not in (WHOLE, LOST)] or [WHOLE]
    names += [LOST] if LOST in seen else []
    rows = []
    for item, each in zip(found, parts, strict=True):
        lengths = [float(each.get(name, 0)) for name in names]
        if WHOLE in each:
            lengths[0] = float(each[WHOLE])
        rows.append(Bar(item.run.name, lengths, f"{item.task.charge.with_failed_usd} USD", item.colour))
    legend = "No segments are recorded." if names == [WHOLE] else f"Parts from dark to light: {', '.join(names)}."
    if WHOLE in seen and WHOLE not in names:
        legend += " A charge without segments is dark."
    return chart("charge", task, "Charge", rows, charts.bars, legend)


def charge_parts(charge: Charge) -> dict[str, Decimal]:
    """A charge by segment, and what no segment shows of it."""
    parts = {name: Decimal(part.usd) for name, part in charge.segments.items()}
    whole_charge = charge.with_failed_usd or Decimal(0)
    lost = whole_charge - charge.usd if charge.usd is not None else Decimal(0)
    rest = whole_charge - lost - sum(parts.values(), Decimal(0))
    found = {**parts, (REST if parts else WHOLE): rest, LOST: lost}
    return {name: amount for name, amount in found.items() if amount > 0}


def timing_chart(comparison: Comparison, task: Task) -> Chart | None:
    """Delivery time with the trainer's share of it in the darker shade."""
    rows = []
    for run, found, colour in items(comparison, task):
        whole_time = found.training.timings.delivery_seconds if found.training else None
        trainer = found.number("train", "trainer_seconds")
        if whole_time is not None and trainer is not None:
            text = f"{trainer:,.1f} of {whole_time:,.1f} s"
            rows.append(Bar(run.name, [trainer, max(0.0, whole_time - trainer)], text, colour))
    legend = "Dark: the trainer. Light: everything else between submission and verified export."
    return chart("time", task, "Delivery time", rows, charts.bars, legend)


def loss_chart(comparison: Comparison, task: Task) -> Chart | None:
    found = [Curve(item.run.name, item.task.loss, item.colour) for item in items(comparison, task) if item.task.loss]
    styles = ("solid", "dashed", "dotted", "dash and dot")
    legend = ", ".join(f"{curve.label} {styles[i % 4]}" for i, curve in enumerate(found[: charts.MOST]))
    return chart("loss", task, "Training loss", found, charts.curves, f"{legend}.")


def quality_chart(comparison: Comparison, task: Task) -> Chart | None:
    name, key = ("accuracy", "accuracy") if task == "sft" else ("nll_below_base", "nll")
    rows = []
    for run, found, colour in items(comparison, task):
        if verdict := gate_verdicts(run, task).get(name):
            base = found.number("baseline", key)
            rows.append(Mark(run.name, base, verdict.value, verdict.threshold, verdict.passed, colour))
    better = "higher is better" if task == "sft" else "lower is better; the gate is the base model"
    legend = f"Ring: base model. Disc: trained. Line: the gate. {better.capitalize()}."
    return chart("quality", task, "Accuracy" if task == "sft" else "NLL", rows, charts.marks, legend)


def chart(
    kind: str, task: Task, title: str, rows: Sequence[R], draw: Callable[[str, str, Sequence[R]], str], legend: str
) -> Chart | None:
    """A chart of `rows` by `draw`; None where there is nothing to draw."""
    full = f"{title}, {TASK_NAMES[task].lower()}"
    return Chart(full, draw(f"{kind}-{task}", full, rows), legend, len(rows)) if rows else None


def own_figures(side: Side) -> Iterator[Figure]:
    """The same of a side that stands alone: its quality and what became of its gates."""
    for run in side.runs[:1]:
        for task, found in run.tasks.items():
            name, key = ("accuracy", "accuracy") if task == "sft" else ("NLL", "nll")
            verdicts = gate_verdicts(run, task)
            gates = ", ".join(
                f"{gate.replace('_', ' ')} {'met' if v.passed else 'FAILED'}" for gate, v in verdicts.items()
            )
            text = f"The base model has {number(found.number('baseline', key), 4)}. Gates: {gates or MISSING}. "
            text += f"Charge: {number(found.charge.usd, 8, 'USD')}."
            yield Figure(f"{TASK_NAMES[task]}, {name} on {side.label}", number(found.number("evaluate", key), 4), text)


def figures(pair: Pair) -> Iterator[Figure]:
    """What is largest on the page: the change in charge where charges compare, else the final quality."""
    for task, found in pair.tasks.items():
        difference = found.differences.get("charge_usd")
        if difference is None or difference.reduction_percent is None:
            quality = found.differences.get("accuracy" if task == "sft" else "nll")
            value = "no charge" if quality is None else number(float(quality.subject), 4)
            name = "accuracy" if task == "sft" else "NLL"
            text = f"{name} of {pair.subject.label}; {pair.other.label} has "
            text += number(None if quality is None else float(quality.other), 4) + f". {sentence(price(found, pair))}"
            yield Figure(f"{TASK_NAMES[task]}, {name}", value, text)
        else:
            value = percent(-difference.reduction_percent)
            yield Figure(f"{TASK_NAMES[task]}, charge", value, price(found, pair))


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def top_figures(comparison: Comparison) -> list[Figure]:
    if comparison.pairs:
        return [figure for pair in comparison.pairs[:ANSWERED] for figure in figures(pair)]
    return [figure for side in comparison.sides for figure in own_figures(side)]


def present(found: list[Chart | None]) -> list[Chart]:
    return [each for each in found if each]


def context(comparison: Comparison) -> dict[str, object]:
    """Everything that the template shows, in its order."""
    tasks = comparison.tasks
    listed = dict(sections(comparison))
    protocols = sorted({run.protocol_name or "not recorded" for side in comparison.sides for run in side.runs})
    figures_: list[Table] = [table for task in tasks for table in of_task(comparison, task)]
    return {
        "title": TITLE,
        "sides": [(side.label, len(side.runs), charts.colour(i)) for i, side in enumerate(comparison.sides)],
        "protocols": protocols,
        "figures": top_figures(comparison),
        "verdicts": [(f"{p.subject.label} against {p.other.label}", p.claims) for p in comparison.pairs[:ANSWERED]],
        "unanswered": max(0, len(comparison.pairs) - ANSWERED),
        "figure_tables": figures_,
        "charge_charts": present([charge_chart(comparison, task) for task in tasks]),
        "loss_charts": present([loss_chart(comparison, task) for task in tasks]),
        "quality_charts": present([quality_chart(comparison, task) for task in tasks]),
        "timing_charts": present([timing_chart(comparison, task) for task in tasks]),
        "segment_table": segment_table(comparison),
        "gate_table": gate_table(comparison),
        "timing_table": timing_table(comparison),
        "matching_table": matching_table(comparison),
        "claim_table": claim_table(comparison),
        "digest_table": digest_table(comparison),
        "campaign_tables": [campaign_table(account) for account in comparison.campaigns],
        "problems": listed["Not there or not read"],
        "deviations": listed["Deviations"],
        "limits": listed["Limits"],
        "most": charts.MOST,
    }


def render(comparison: Comparison) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(context(comparison))


def write(comparison: Comparison, path: Path) -> None:
    with whole(path) as stream:
        stream.write(render(comparison).encode())
