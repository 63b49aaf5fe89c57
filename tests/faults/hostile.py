"""Hostile documents for the fuzz tests: bytes that are nothing, and valid documents with one thing made wrong."""

import copy
import json
from typing import Any, NamedTuple

import yaml
from hypothesis import strategies as st


class Raw(NamedTuple):
    """Text that goes into a document as it stands, where no value of Python's could be written so."""

    text: str


DEEP = 100_000
NUMBERS = (-1, 0, 1, 2**31, 2**64, 10**400, 1e308, -1e308, 5e-324, 0.5, True, None)
TEXTS = ("", "x", "../../etc/passwd", "/etc/passwd", "NaN", "-Infinity", "sNaN", "1e999999999", "9" * 5000, "\0", "\n",
         "\ud800", "\u202e", "é" * 500, "a" * 64, "0001-01-01T00:00:00", "9999-12-31T23:59:59+00:00", "2026-99-99",
         "-0.01", "__class__", "{x}", "%s", "<script>")  # fmt: skip
BYTES = (b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b'"', b"[" * DEEP, b"\xe2\x80\xa8")
NESTED = ([], {}, [[]], {"": {}}, [None] * 1000, {str(n): n for n in range(1000)})
JSON_RAW = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, '"\\ud800"', '{"a": 1, "a": 2}', "", "\0",
            "[" * DEEP, "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300)  # fmt: skip
YAML_RAW = (".nan", ".inf", "1e999", "9" * 5000, "0x" + "f" * 5000, "&a [*a]", "&a {b: *a}", "*nowhere", "!!bool x",
            "!!int ''", "!!float x", "!!timestamp x", "!!binary '='", "!!set {a, b}", "!!omap [a: 1]", "2026-99-99",
            "2026-01-01 00:00:00 +99:99", "!!python/object:os.system x", "{[a]: b}", "{{a: b}: c}", "{? a, ? a}",
            "{<<: 3}", "{<<: [{a: 1}]}", "1:99:99", "{a: 1, a: 2}", "{1: 2}", "{null: 1}", "[" * DEEP,
            "[" * 300 + "]" * 300, "- -", "%YAML 9", "\t")  # fmt: skip


def nodes(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document, its own first."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(path for key, value in inner for path in nodes(value, (*at, key)))]


def value(raw: tuple[str, ...]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.sampled_from(NUMBERS),
        st.sampled_from(TEXTS),
        st.sampled_from(NESTED),
        st.sampled_from(raw).map(Raw),
        st.text(max_size=8),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
    )


@st.composite
def changed(draw: st.DrawFn, document: Any, raw: tuple[str, ...]) -> Any:
    """A copy of a document in which one value, anywhere, is gone, something else, or under another name."""
    made = {"": copy.deepcopy(document)}
    path = ("", *draw(st.sampled_from(nodes(document))))
    holder: Any = made
    for key in path[:-1]:
        holder = holder[key]
    what = draw(st.sampled_from(("replace", "replace", "drop", "rename", "add")))
    if what == "drop" and len(path) > 1:
        del holder[path[-1]]
    elif what == "rename" and isinstance(holder, dict) and len(path) > 1:
        holder[draw(st.sampled_from(TEXTS))] = holder.pop(path[-1])
    elif what == "add" and isinstance(holder[path[-1]], dict):
        holder[path[-1]][draw(st.sampled_from(TEXTS))] = draw(value(raw))
    elif what == "add" and isinstance(holder[path[-1]], list):
        holder[path[-1]].append(draw(value(raw)))
    else:
        holder[path[-1]] = draw(value(raw))
    return made[""]


def written(document: Any) -> bytes:
    """JSON, which is YAML too, with the raw texts in it as they are."""
    raws: list[str] = []

    def mark(found: Any) -> Any:
        if isinstance(found, Raw):
            raws.append(found.text)
            return f"@raw{len(raws) - 1}@"
        if isinstance(found, dict):
            return {key: mark(each) for key, each in found.items()}
        return [mark(each) for each in found] if isinstance(found, list) else found

    text = json.dumps(mark(document), default=str)
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw{number}@"', raw)
    return text.encode()


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that are nothing, or a file cut short, with bytes flipped, or in another encoding."""
    at = draw(st.integers(0, len(content)))
    odd = draw(st.sampled_from(BYTES))
    return draw(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from((content[:at], content[:at] + odd + content[at:], content[:at] + odd + content[at + 1 :])),
            st.sampled_from((odd + content, b"", content * 2, content.decode(errors="replace").encode("utf-16"))),
        )
    )


def hostile(content: bytes, kind: str) -> st.SearchStrategy[bytes]:
    """What may stand in the place of `content`, a valid document: JSON, JSON lines, YAML, or other bytes."""
    if kind == "json":
        return damaged(content) | changed(json.loads(content), JSON_RAW).map(written)
    if kind == "yaml":
        return damaged(content) | changed(yaml.safe_load(content), YAML_RAW).map(written)
    if kind == "jsonl":
        lines = content.splitlines()
        line = st.integers(0, len(lines) - 1)
        one = line.flatmap(
            lambda n: (
                changed(json.loads(lines[n]), JSON_RAW)
                .map(written)
                .map(lambda new: b"".join(each + b"\n" for each in (*lines[:n], new, *lines[n + 1 :])))
            )
        )
        return damaged(content) | one
    return damaged(content)
