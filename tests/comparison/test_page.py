"""Promise: one page without network or script, the answer first, readable on a phone, by keyboard and by ear."""

import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stages.comparison.charts import COLOURS
from stages.comparison.compare import build
from stages.comparison.page import TEMPLATE, render, write
from stages.comparison.runs import read_runs
from tests.comparison.build import Builder, branch
from tests.conftest import stage

SECTIONS = ["answer", "figures", "charges", "loss", "quality", "timings", "evidence", "deviations", "limits"]


@pytest.fixture(scope="module")
def page() -> str:
    return render(build(read_runs(["pilot:nodus", "pilot:modal"])))


class Outline(HTMLParser):
    """Tags in their order, with attributes; and the text of each heading."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_needs_no_network_and_runs_nothing(page: str) -> None:
    assert not re.search(r"https?://|//\w|@import|url\(|<script|<link|<img|<iframe|\bon\w+=|javascript:", page)


def test_the_answer_comes_first_and_every_section_is_there(page: str) -> None:
    outline = Outline(page)
    assert [found["id"] for found in outline.of("section")] == SECTIONS
    links = [found["href"] for found in outline.of("a")]
    assert links == ["#answer", *(f"#{name}" for name in SECTIONS)]
    body = page[page.index("<main>") :]
    assert body.index("-66.98 %") < body.index("-42.55 %") < body.index("</section>")
    assert "0.048696 against 0.14746756 USD" in body[: body.index("</section>")]


def test_it_can_be_read_by_ear(page: str) -> None:
    outline = Outline(page)
    assert outline.of("html")[0]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert len(outline.of("table")) == len(outline.of("caption")) > 6
    assert all(found.get("scope") in ("col", "row") for found in outline.of("th"))
    assert all(found["role"] == "img" and found["aria-labelledby"] for found in outline.of("svg"))
    assert len(outline.of("svg")) == len(outline.of("desc")) == 6
    ids = [attributes["id"] for _, attributes in outline.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_and_marks_stand_out_from_the_paper() -> None:
    style = TEMPLATE.read_text()
    named = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", style))
    for name in ("ink", "soft", "bad", "good"):
        assert 1.05 / (luminance(named[name]) + 0.05) >= 4.5, name
    for colour in COLOURS:
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5, colour


def test_what_a_run_is_called_cannot_become_markup(repo: Path) -> None:
    name = 'x<script>alert("1")</script>&y'
    branch(repo, name.replace('"', ""), charge="0.10", platform="nodus")
    branch(repo, "b", charge="0.20", platform="modal")
    found = render(build(read_runs([name.replace('"', ""), "b"]), "run"))
    assert "<script>" not in found
    assert "x&lt;script&gt;alert(1)&lt;/script&gt;&amp;y" in found


def test_the_page_is_a_pure_function_of_the_runs(page: str, tmp_path: Path) -> None:
    comparison = build(read_runs(["pilot:nodus", "pilot:modal"]))
    write(comparison, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page


def test_the_report_stage_shows_one_run_with_its_loss_and_claims_nothing(repo: Path) -> None:
    Builder(repo).write()
    campaign = repo / "metrics/campaign.json"  # no output of a stage: the page has to be the same without it
    shutil.copyfile(repo / "reference/pilot/campaign.json", campaign)
    done = stage("report", cwd=repo, env={"PYTHONPATH": str(repo)})
    assert done.returncode == 0, done.stderr
    found = (repo / "metrics/report.html").read_text()
    assert "There is one side only" in found
    assert 'aria-labelledby="loss-sft-t loss-sft-d"' in found
    assert "No charge is recorded." in found
    campaign.unlink()
    assert stage("report", cwd=repo, env={"PYTHONPATH": str(repo)}).returncode == 0
    assert (repo / "metrics/report.html").read_text() == found


def bar_widths(page: str, label: str) -> list[float]:
    """Of the parts of the first bar with this label."""
    bar = page[page.index(f">{label}</text>") :]
    return [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', bar[: bar.find("<text", 200)])]


def test_a_bar_is_as_long_as_the_charge_that_stands_beside_it(repo: Path) -> None:
    """With its failed attempts, which no segment shows."""
    tries = [{"outcome": "failed", "charge_usd": "0.15"}, {"outcome": "succeeded", "charge_usd": "0.05"}]

    def edit(path: str, found: dict[str, Any]) -> None:
        if "evidence" in path:
            found["receipt"]["attempts"] = tries
            found["receipt"]["segments"] = {
                "running": {"seconds": 1, "usd": "0.04"},
                "boot": {"seconds": 1, "usd": "0.01"},
            }

    def bare(path: str, found: dict[str, Any]) -> None:
        edit(path, found)
        found.get("receipt", {}).update(segments={})

    branch(repo, "plain", platform="modal", charge="0.10")
    branch(repo, "failed", platform="nodus", charge="0.20", edit=edit)
    page = render(build(read_runs(["failed", "plain"])))
    page = page[page.index('id="charge-sft-t"') : page.index('id="charge-pretrain-t"')]
    assert "Parts from dark to light: boot, running, failed attempts." in page
    (failed, plain) = (bar_widths(page, label) for label in ("failed", "plain"))
    assert sum(failed) == pytest.approx(360, abs=1)
    assert failed[:3] == pytest.approx([18, 72, 270], abs=0.1)
    assert plain == pytest.approx([180], abs=0.1)
    branch(repo, "bare", platform="nodus", charge="0.20", seed=12, edit=bare)
    page = render(build(read_runs(["bare", "plain"])))
    assert "Parts from dark to light: running, failed attempts. A charge without segments is dark." in page
    assert bar_widths(page, "bare") == pytest.approx([90, 270], abs=0.1)


def test_the_answer_is_about_every_pair_up_to_three_and_says_where_the_rest_is(repo: Path) -> None:
    for seed in (1, 2, 3):
        branch(repo, f"s{seed}", seed=seed)
    page = render(build(read_runs(["s1", "s2", "s3"]), "run"))
    answer = page[page.index('id="answer-h"') : page.index('id="figures-h"')]
    assert re.findall("<h3>(.*?)</h3>", answer) == ["s1 against s2", "s1 against s3", "s2 against s3"]
    assert answer.count('class="verdicts"') == 3
    branch(repo, "s4", seed=4)
    more = render(build(read_runs(["s1", "s2", "s3", "s4"]), "run"))
    assert "3 more pairs stand in the table of claims" in more


def test_many_runs_still_make_a_page(repo: Path) -> None:
    for seed in range(14):
        branch(repo, f"s{seed}", seed=seed, charge="0.10", platform="nodus", repeat=seed + 1)
    found = render(build(read_runs([f"s{seed}" for seed in range(14)])))
    assert "The first 12 of 14 are drawn" in found
    assert "n = 14" in found
