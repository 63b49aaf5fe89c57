"""Promise: docs/performance.md says what was measured, and every comparison can be run."""

import importlib
import json
import time
from argparse import Namespace
from pathlib import Path

import pytest

from bench import latency, measure, table
from bench.__main__ import PARTS
from tests.conftest import ROOT


@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_be_imported_without_what_it_measures_against(part: str) -> None:
    assert callable(importlib.import_module(f"bench.{part}").measure)


def test_the_page_is_what_the_records_give() -> None:
    records, paper = table.read()
    assert set(records) == set(PARTS)
    before = json.dumps(records)
    assert table.page(records, paper) == (ROOT / "docs/performance.md").read_text()
    assert json.dumps(records) == before


def test_the_records_name_no_place_of_the_machine() -> None:
    for path in measure.RESULTS.rglob("*.json"):
        text = path.read_text()
        assert not any(word in text for word in (str(ROOT), str(Path.home()), "hostname", "/tmp/"))


def test_a_ratio_is_the_others_time_over_ours_round_by_round_and_its_goal_is_held_against_the_median() -> None:
    record = measure.Record("Sorting")
    seconds = {"ours": [1.0, 2.0, 1.0], "theirs": [4.0, 4.0, 3.0], "other": [1.0, 2.0, 3.0]}
    record.line("words", seconds, 12, "words/s", {"theirs": 3.5})
    theirs, other = record.lines
    assert theirs["ratio"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert theirs["rates"] == {"ours": 12.0, "other": 3.0}
    assert theirs["seconds"] == {"ours": seconds["ours"], "other": seconds["theirs"]}
    assert table.goal(theirs) == "3.5 **missed**"
    assert other["ratio"]["median"] == 1.0
    assert table.goal(other) == "-"
    assert table.row(theirs, {})[2:7] == ["12", "3", "words/s", "3.00 (2.00 to 4.00)", "3.5 **missed**"]
    record.line("once", {"ours": [1.0], "theirs": [4.0]}, 12, "words/s", {"theirs": 3.5})
    assert table.row(record.lines[2], {})[5:7] == ["4.00 (one round)", "3.5 met"]


def test_the_least_time_that_the_limits_allow_is_a_share_of_ours() -> None:
    record = measure.Record("Sorting")
    record.line("words", {"ours": [2.0], "theirs": [4.0]}, 12, "words/s", work={"bytes": 10.0, "hashed": 3.0})
    record.line("words", {"ours": [2.0], "theirs": [4.0]}, 12, "words/s")
    assert [table.nearness(line, {"bytes": 20.0, "hashed": 6.0, "flop": 1.0}) for line in record.lines] == ["50%", "-"]


def test_works_take_turns_at_being_first_and_one_that_timed_itself_is_believed() -> None:
    order: list[str] = []

    def itself() -> dict[str, float]:
        order.append("b")
        return {"seconds": 7.0}

    seconds, values = measure.interleaved({"a": lambda: order.append("a"), "b": itself}, 2)
    assert order == ["a", "b", "b", "a"]
    assert seconds["b"] == [7.0, 7.0]
    assert len(seconds["a"]) == 2
    assert values["b"] == {"seconds": 7.0}


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_growth_is_fitted(power: float) -> None:
    sizes = [1, 4, 16]
    assert measure.exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


@pytest.mark.parametrize(("scale", "models"), [(0.5, None), (1.0, ["embedded"])])
def test_a_look_at_less_than_a_part_is_not_kept_as_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float, models: list[str] | None
) -> None:
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "kept")
    monkeypatch.setattr(measure, "scratch", lambda name: tmp_path / name)
    given = Namespace(device="cpu", scale=scale, models=models)
    record = measure.Record("Sorting").save("sorting", given, {"flop": 1.0})
    assert record["limits"] == {"flop": 1.0}
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.json")] == [Path("results/sorting.json")]
    measure.Record("Sorting").save("sorting", Namespace(device="cuda", scale=1.0, models=None), {})
    assert (tmp_path / "kept/cuda/sorting.json").is_file()


@pytest.mark.slow
def test_a_hundred_runs_compare_in_under_five_seconds(tmp_path: Path) -> None:
    names = latency.repository(tmp_path / "project", latency.RUNS)
    assert len(names) == 100
    started = time.perf_counter()
    latency.compare(tmp_path / "project", names)
    assert time.perf_counter() - started < latency.LIMIT
