"""What may leave in a publication. A value or key that no rule allows stops it, with its path.

Text leaves only in three ways: as a sentence of this project with checked values in it (`Words`), as a text that the
project's own protocols or reference hold, or in the exact shape of a figure, digest, version, time or file name.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import yaml

from stages import platforms
from stages.command import TASKS, ParityError
from stages.evidence.digests import parse_json
from stages.jobs import PROJECT
from stages.platforms.on_nodus.bill import SEGMENTS

AMOUNT = r"[+-]?\d{1,9}(\.\d{1,12})?"
SHA256 = r"[0-9a-f]{64}"
# At most three numbers: four would be an address.
VERSION = r"v?\d{1,6}(\.\d{1,6}){1,2}((\+|\.|-)?(cu|cpu|rocm|dev|rc|post|a|b)\d{0,6})?"
TIME = r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z))?"
GPU = r"NVIDIA (GeForce |Tesla |RTX )*[A-Z]{0,4}\d{1,4}[A-Z]{0,3}([ -](SXM\d|PCIe|NVL|Ti|Ada|\d{1,3}GB|HBM\de?))*"
EXPORT = (
    r"(model|config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|merges"
    r"|training_args|chat_template)(-\d{5}-of-\d{5})?(\.safetensors)?(\.index)?\.(safetensors|json|jinja|bin|txt)"
)
TASK = rf"({'|'.join(TASKS)})"
PLATFORM = rf"({'|'.join(platforms.names())})(_[12])?(-\d{{1,3}})?"
JOB = rf"{PLATFORM}-{TASK}-(baseline|train|evaluate)"
# Where in a document which shape may stand; any other text has to be one of the project's own.
FIELDS = {
    r".*(_usd|USD)(/mean)?": AMOUNT,
    r".*sha256(/[^/]+)?": SHA256,
    r".*_(utc|at)": TIME,
    r".*/gpu": GPU,
    r"/versions/[^/]+": VERSION,
    r"/inputs/\d+/path": rf"{TASK}-(train|test)\.jsonl",
    r"/campaign/attempts/\d+/id": rf"{JOB}-\d{{1,4}}",
}
# Keys are this project's own words or one of these.
KEYS = [
    EXPORT,
    rf"{JOB}\.json",
    PLATFORM,
    rf"{PLATFORM}_delivery",
    rf"{PLATFORM}_{TASK}_including_failed_attempt(_usd|_vs_(corrected_)?{PLATFORM}_reduction_percent)",
    rf"({'|'.join(SEGMENTS)})(Seconds|USD)",
]
# What a value in a sentence may be made of. A number is short: an account's has more digits.
PARTS = [r"\d{1,7}(\.\d{1,12})?", SHA256, VERSION, TIME, r"\d\d:\d\d:\d\d", PLATFORM, r"NVIDIA|[A-Z]\d{1,4}[A-Z]{0,3}"]

# Words that evidence may put into a sentence's values, beside figures and the project's own texts.
PERMITTED = """
    not recorded pinned covers baseline train evaluate sft pretrain both ran until began stands same as dirty
    none emulator overlap more cpu cuda request limit GiB MiB cache warm cold
    torch transformers trl datasets accelerate huggingface-hub embedded pilot
    submission to verified output by the submitting machine's wall clock and local export
"""
WORDS = frozenset(PERMITTED.split())


class Words(NamedTuple):
    """A sentence of this project, and the values from evidence that stand in it."""

    sentence: str
    values: dict[str, str | int | float] = {}  # noqa: RUF012 (never written to)

    def __str__(self) -> str:
        return self.sentence.format(**self.values)


@lru_cache(maxsize=1)
def vocabulary() -> frozenset[str]:
    """Every text in the project's own protocols and reference, which are published as they are."""
    found: set[str] = set()
    for path in sorted((PROJECT / "protocols").glob("*.yaml")):
        found.update(texts(yaml.safe_load(path.read_text(encoding="utf-8"))))
    for path in sorted((PROJECT / "reference").rglob("*.json")):
        found.update(texts(parse_json(path.read_bytes())))
    return frozenset(found)


def texts(value: Any) -> Iterator[str]:
    """The strings in a document, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def is_shape(text: str, shapes: list[str]) -> bool:
    return any(re.fullmatch(shape, text) for shape in shapes)


def allowed(text: str, path: str) -> bool:
    shapes = [shape for field, shape in FIELDS.items() if re.fullmatch(field, path)]
    return is_shape(text, shapes) or text in vocabulary()


def allowed_in_sentence(text: str) -> bool:
    """Whether each part of a value in a sentence is allowed by itself."""
    if text in vocabulary() or is_shape(text, [GPU, TIME]):
        return True
    parts = [part for part in re.split(r"[\s,;:/()]+|(?<=\d)Z", text) if part]
    return all(part in WORDS or is_shape(part, PARTS) for part in parts)


def cleared(document: Any, keys: frozenset[str], path: str = "") -> Any:
    """The document as it may be written; raises ParityError with the path of what may not leave."""
    if isinstance(document, Words):
        for name, value in document.values.items():
            if isinstance(value, str) and not allowed_in_sentence(value):
                raise refused(f"{path} ({name})")
        return str(document)
    if isinstance(document, dict):
        for key in document:
            if key not in keys and key not in vocabulary() and not is_shape(key, KEYS):
                raise refused(f"{path}/<a key>")
        return {key: cleared(value, keys, f"{path}/{key}") for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [cleared(value, keys, f"{path}/{i}") for i, value in enumerate(document)]
    if document is None or isinstance(document, bool | int | float):
        return document
    if isinstance(document, str) and allowed(document, path):
        return document
    raise refused(path)


def refused(path: str) -> ParityError:
    """Says where, and never what: the message may be shown to others."""
    return ParityError(f"publication stopped at {path or '/'}: no rule allows this value to leave; nothing was written")
