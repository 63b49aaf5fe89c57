"""Where the stages read and write, below the project's folder; `dvc.yaml` names the same paths."""

from pathlib import Path

from stages.command import Task

RAW = Path("data/raw")
INPUTS = Path("data/inputs")
SOURCES = Path("metrics/sources.json")

# What to type where a file is not what its digest says: DVC takes a file of its cache on trust.
HEAL = "`python -m stages.cache --drop`, then `dvc pull` or `dvc repro`"


def input_names(task: Task) -> tuple[str, str]:
    """File names of a task's train and test rows."""
    return f"{task}-train.jsonl", f"{task}-test.jsonl"


def model(task: Task) -> Path:
    return Path("data/models") / task


def predictions(task: Task, stage: str) -> Path:
    return Path("data/predictions") / task / f"{stage}.jsonl"


def metrics(task: Task, stage: str) -> Path:
    return Path("metrics") / task / f"{stage}.json"


def evidence(task: Task, stage: str) -> Path:
    return Path("metrics") / task / "evidence" / f"{stage}.json"


def loss_curve(task: Task) -> Path:
    return Path("metrics") / task / "loss.csv"
