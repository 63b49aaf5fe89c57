"""Promise: in a browser, the page fits a desk's and a phone's screen, can be read, walked by keyboard and printed."""

import html
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from stages.comparison.compare import build
from stages.comparison.page import render
from stages.comparison.runs import read_runs
from tests.comparison.build import branch, repository

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")

LONG = "experiments/a-very-long-name-of-a-branch-as-dvc-exp-branch-and-people-make-them/with-seed-"

PROBE = """<!doctype html><title></title><body>
<iframe id=f width={width} height=900 style="border:0" srcdoc="{page}"></iframe>
<script>f.onload = () => {{
  const d = f.contentDocument, view = d.defaultView, root = d.documentElement;
  const all = [...d.body.querySelectorAll('*')], box = e => e.getBoundingClientRect();
  const wide = all.filter(e => !e.closest('thead,.skip') && (box(e).right > {width} + 1 || box(e).left < -1));
  const size = e => parseFloat(view.getComputedStyle(e).fontSize);
  const small = all.filter(e => e.childElementCount == 0 && !e.closest('svg') && e.textContent.trim() && size(e) < 12);
  const drawn = [...d.querySelectorAll('svg')].map(s => [...s.querySelectorAll('text')].map(e => [e, box(e)]));
  const tiny = drawn.flat().filter(([e]) => size(e) * box(e.closest('svg')).width / 360 < 12);
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top + 2 || b.bottom <= a.top + 2;
  const crossed = drawn.flatMap(ts => ts.flatMap(([e, a], i) =>
    ts.slice(i + 1).filter(([_, b]) => !apart(a, b)).map(([o]) => e.textContent + ' | ' + o.textContent)));
  const links = [...d.querySelectorAll('a[href]')].filter(e => e.tabIndex >= 0);
  f.contentWindow.focus();
  const walked = links.map(e => {{
    e.focus();
    const style = view.getComputedStyle(e);
    return {{at: d.activeElement == e, ring: style.outlineStyle + ' ' + style.outlineWidth, left: box(e).left,
      target: !!d.querySelector(e.getAttribute('href')), height: box(e).height}};
  }});
  document.title = JSON.stringify({{scroll: root.scrollWidth, wide: wide.map(e => e.tagName + ' ' + e.textContent),
    small: small.length, tiny: tiny.map(([e]) => e.textContent), texts: drawn.flat().length, crossed, walked,
    answer: box(d.getElementById('answer')).top}});
}}</script>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The published runs; and runs with loss curves and charges under names that no screen is wide enough for."""
    root = repository(tmp_path_factory.mktemp("pages") / "project")
    for seed in (1, 2):
        branch(root, f"{LONG}{seed}", seed=seed, charge="0.123456", platform="nodus")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        long = render(build(read_runs([f"{LONG}1", f"{LONG}2"])))
    return {"published": render(build(read_runs(["pilot:nodus", "pilot:modal"]))), "long": long}


def chromium(folder: Path, *arguments: str) -> str:
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [str(CHROMIUM), *options, *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout


@pytest.fixture(
    scope="module", params=[("published", 1280), ("published", 390), ("long", 1280), ("long", 390)], ids=str
)
def seen(request: Any, pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a browser measures of a page at a width."""
    name, width = request.param
    folder = tmp_path_factory.mktemp("probe")
    probe = folder / "probe.html"
    probe.write_text(PROBE.format(width=width, page=html.escape(pages[name])))
    dom = chromium(folder, "--virtual-time-budget=4000", "--dump-dom", probe.as_uri())
    found: dict[str, Any] = json.loads(html.unescape(re.findall(r"<title>(.*?)</title>", dom)[0]))
    return found | {"width": width}


def test_nothing_is_wider_than_the_screen_and_the_answer_is_on_it(seen: dict[str, Any]) -> None:
    assert seen["scroll"] <= seen["width"]
    assert seen["wide"] == []
    assert seen["answer"] < 450


def test_text_is_large_enough_in_drawings_too_and_none_crosses_another(seen: dict[str, Any]) -> None:
    assert seen["small"] == 0
    assert seen["tiny"] == []
    assert seen["crossed"] == []
    assert seen["texts"] > 20


def test_every_link_can_be_reached_by_keyboard_and_shows_where_one_is(seen: dict[str, Any]) -> None:
    walked = seen["walked"]
    assert len(walked) == 10
    for link in walked:
        assert (link["at"], link["ring"], link["target"]) == (True, "solid 3px", True), link
        assert link["left"] >= 0, link  # the way past the navigation, too, which is out of sight until then
        assert link["height"] > 10


@pytest.mark.parametrize("name", ["published", "long"])
def test_the_page_prints_on_a_few_sheets_with_its_text_and_charts(
    pages: dict[str, str], name: str, tmp_path: Path
) -> None:
    source, printed = tmp_path / "page.html", tmp_path / "page.pdf"
    source.write_text(pages[name])
    chromium(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={printed}", source.as_uri())
    content = printed.read_bytes()
    sheets = len(re.findall(rb"/Type ?/Page\b", content))
    streams = [unpacked(found) for found in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)]
    assert 2 <= sheets <= 14
    assert sum(len(re.findall(rb"\bT[jJ]\b", stream)) for stream in streams) > 200
    assert len(re.findall(rb"/S ?/Link|/Subtype ?/Link", content)) <= 1  # the navigation is of no use on paper


def unpacked(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""
