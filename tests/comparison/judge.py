"""Two platforms' runs that differ in what a test says, and what the comparison found in them."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stages.comparison.compare import Comparison, build
from stages.comparison.runs import read_runs
from stages.comparison.schedule import Deviation
from tests.comparison.build import START, branch

HOUR = timedelta(hours=1)
Change = Callable[[dict[str, Any]], None]


def in_evidence(change: Change) -> Callable[[str, dict[str, Any]], None]:
    return lambda path, found: change(found) if "evidence" in path else None


def compared(repo: Path, change: Change | None = None, **options: Any) -> Comparison:
    """Two platforms that differ in `change`, or in the options of the second."""
    branch(repo, "a", platform="nodus", charge="0.10", start=START)
    edit = in_evidence(change) if change else lambda path, found: None
    branch(repo, "b", **({"platform": "modal", "charge": "0.20", "start": START + HOUR, "edit": edit} | options))
    return build(read_runs(["a", "b"]))


def found(comparison: Comparison, item: str) -> Deviation | None:
    return next((deviation for deviation in comparison.deviations if deviation.item == item), None)


def set_in(*keys: str, value: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


def claim(comparison: Comparison, name: str) -> tuple[bool, str]:
    return next((c.holds, c.reason) for c in comparison.pairs[0].claims if name in c.name)


def repeats(repo: Path, fast: float, slow: float, **options: Any) -> Comparison:
    """Three seeds on each of two like platforms, taken in turns; `options` are those of the second's runs."""
    names = []
    in_turns: bool = options.pop("in_turns", True)
    for i, seed in enumerate((1, 2, 3)):
        for j, (platform, seconds, charge) in enumerate((("nodus", fast, "0.10"), ("modal", slow, "0.20"))):
            start = START + HOUR * (4 * i + 2 * ((i + j) % 2 if in_turns else j))
            name = f"{platform}-{seed}"
            given = {"platform": platform, "seed": seed, "seconds": seconds + i, "charge": charge, "start": start}
            branch(repo, name, **(given | (options if j else {})))
            names.append(name)
    return build(read_runs(names))


# Metrics that are compared as they stand: stage and key.
COMPARED = {
    *(("evaluate", key) for key in ("accuracy", "format_validity", "nll", "perplexity")),
    ("train", "trainer_seconds"),
    ("train", "delivery_seconds"),
}


def agreed(made: dict[str, Any], told: dict[str, Any]) -> tuple[int, int]:
    """Hold every number of `dvc metrics diff` against `compare --json` of the same two runs.

    Returns how many there were, and how many of them `compare` estimates and sets against each other.
    """
    numbers = compared_too = 0
    ours = [side["runs"][0]["tasks"] for side in made["sides"]]
    for path, figures in told.items():
        task, stage = Path(path).parts[1], Path(path).stem
        for key, values in figures.items():
            found = [tasks[task]["metrics"][stage] for tasks in ours]
            for part in key.split("."):
                found = [each[part] for each in found]
            assert found == [values["old"], values["new"]], (path, key)
            numbers += 1
            if (stage, key) in COMPARED:
                assert [side["estimates"][task][key]["mean"] for side in made["sides"]] == found
                difference = made["pairs"][0]["tasks"][task]["differences"][key]
                assert [difference["subject"], difference["other"]] == found
                assert difference["difference"] == found[0] - found[1] == pytest.approx(-values.get("diff", 0))
                compared_too += 1
    return numbers, compared_too
