"""Plan a training run: tokens, padded tokens and FLOPs per task, before a second of it is spent.

    python -m stages.plan [--protocol NAME] [--steps N] [--inputs DIR] [--json]

Reads the prepared inputs and the base model's tokenizer (from data/raw/ or the mirror); trains nothing.
"""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stages import command, layout
from stages.command import ParityError, Task
from stages.corpora.sources import tokenizer_folder
from stages.evidence.digests import read_rows, sha256_file
from stages.jobs import ROW_KEYS
from stages.protocol import Protocol, read_params, read_protocol
from stages.training.rows import tokenize, training_tokens_sha256


def check_inputs(protocol: Protocol, inputs: Path) -> None:
    """Refuse to plan from rows that the protocol does not pin."""
    for task in command.TASKS:
        pins = getattr(protocol.inputs, task)
        for name, pin in zip(layout.input_names(task), (pins.train, pins.test), strict=True):
            if not (inputs / name).is_file() or sha256_file(inputs / name) != pin.sha256:
                hint = "run `dvc repro prepare` under it first"
                raise ParityError(f"{inputs / name}: not what the protocol {protocol.name} pins; {hint}")


def plan_task(protocol: Protocol, task: Task, inputs: Path, tokenizer: Path, seed: int, steps: int) -> dict[str, Any]:
    """The totals of a task's first `steps` optimizer steps (0: all of the recipe's)."""
    from stages.training.plan import plan

    path = inputs / layout.input_names(task)[0]
    recipe = getattr(protocol.train, task)
    tokens = tokenize(list(read_rows(path, ROW_KEYS[task])), tokenizer, recipe.max_length, path)
    planned = plan([len(ids) for ids in tokens], recipe, seed, protocol.train.processes)
    total = planned[min(steps or len(planned), len(planned)) - 1]
    return {
        "steps": total.step,
        "rows": total.rows,
        "num_tokens": total.tokens,
        "padded_tokens": total.padded_tokens,
        "total_flos": total.flos(protocol.model.architecture.non_embedding_parameters),
        "training_tokens_sha256": training_tokens_sha256(tokens),
    }


def plan_scoring(protocol: Protocol, inputs: Path, tokenizer: Path) -> dict[str, int]:
    """The NLL scorer's work on the test paragraphs: windows, tokens run through the model, tokens scored."""
    from stages.scoring.windows import windows
    from stages.training.rows import load_tokenizer

    rows = read_rows(inputs / layout.input_names("pretrain")[1], ROW_KEYS["pretrain"])
    encode, _ = load_tokenizer(tokenizer)
    lengths = [len(e.ids) for e in encode.encode_batch([row["text"] for row in rows], add_special_tokens=False)]
    found = [window for i, length in enumerate(lengths) for window in windows(i, length, protocol.score.pretrain)]
    return {
        "windows": len(found),
        "forward_tokens": sum(window.end - window.start for window in found),
        "target_tokens": sum(window.end - window.first for window in found),
    }


def show(plans: dict[str, dict[str, Any]], title: str) -> None:
    table = Table("", *plans, title=title)
    for key in next(iter(plans.values())):
        cells = [f"{plan[key]:,}" if isinstance(plan[key], int) else f"{plan[key]:.12}…" for plan in plans.values()]
        table.add_row(key, *cells)
    Console().print(table)


def main() -> None:
    arguments = command.parser("stages.plan", __doc__)
    arguments.add_argument("--protocol", help="instead of the one in params.yaml")
    arguments.add_argument("--steps", type=int, default=0, help="plan the first N optimizer steps only")
    arguments.add_argument("--inputs", type=Path, default=layout.INPUTS, help="folder of the prepared rows")
    arguments.add_argument("--json", action="store_true", help="print JSON")
    given = arguments.parse_args()
    params, _ = read_params()
    protocol = read_protocol(given.protocol or params.protocol)
    check_inputs(protocol, given.inputs)
    tokenizer = tokenizer_folder(protocol.model, params.mirror_path, layout.RAW)
    plans: dict[str, dict[str, Any]] = {
        task: plan_task(protocol, task, given.inputs, tokenizer, params.seed, given.steps) for task in command.TASKS
    }
    scoring = plan_scoring(protocol, given.inputs, tokenizer)
    if given.json:
        print(json.dumps({"training": plans, "scoring": {"pretrain": scoring}}, indent=2))
        return
    show(plans, f"{protocol.name}: training, seed {params.seed}")
    show({"pretrain": scoring}, f"{protocol.name}: scoring")


if __name__ == "__main__":
    command.run(main)
