"""Promise: whatever stands in a file that comes from outside, our own error is all that comes out."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stages import publish
from stages.command import ParityError, explain
from stages.corpora.rows import SFT_COLUMNS, read_columns
from stages.evidence.digests import write_json
from stages.protocol import Protocol
from tests.comparison.build import Builder, repository
from tests.faults.hostile import Raw, hostile, nodes, written
from tests.faults.readers import RUN, TARGETS, kind_of, lay, locked, parameters, path_of, selected, told, two_runs

# The same documents every time; what fails is shown as it was found.
FIXED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SAMPLE, WHOLE = 8, 150  # documents per file


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, embedded: Protocol, tiny_model: Path) -> Path:
    root = repository(tmp_path_factory.mktemp("hostile") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARITY_STATE", str(tmp_path_factory.mktemp("ledger")))
        lay(root, embedded, tiny_model)
    Builder(repository(root / "other"), platform="modal", charge="0.20").write()
    for name, document in publish.of_runs(two_runs(root)).items():
        write_json(root / "published" / name, document)
    return root


def refused(read: Callable[[Path], object], root: Path) -> bool:
    """Whether a reader raises; what it raises has to be one line that a user is shown."""
    try:
        read(root)
    except (ParityError, OSError) as error:
        line = explain(error)
        assert line is not None
        assert "\n" not in line
        assert len(line) < 2000
        return True
    return False


@pytest.mark.parametrize("name", TARGETS)
def test_every_reader_takes_a_valid_file(world: Path, name: str) -> None:
    assert path_of(world, name).is_file()
    for read in TARGETS[name]:
        read(world)


WIDE = pytest.mark.parametrize("tries", [SAMPLE, pytest.param(WHOLE, marks=pytest.mark.faults)])


def attacked(path: Path, documents: st.SearchStrategy[bytes], tries: int, check: Callable[[bytes], object]) -> int:
    """Put one document after another in the place of a valid one and check it; how many there were."""
    valid, tried = path.read_bytes(), 0

    @settings(FIXED, max_examples=tries)
    @given(documents)
    def attack(content: bytes) -> None:
        nonlocal tried
        tried += 1
        path.write_bytes(content)
        check(content)

    try:
        attack()
    finally:
        path.write_bytes(valid)
    return tried


@WIDE
@pytest.mark.parametrize("name", TARGETS)
def test_only_our_own_error_comes_out_of_a_reader(
    world: Path, name: str, tries: int, record_property: Callable[[str, object], None]
) -> None:
    path = path_of(world, name)
    documents = hostile(path.read_bytes(), kind_of(name, path))
    tried = attacked(path, documents, tries, lambda _: [refused(read, world) for read in TARGETS[name]])
    record_property("tried", tried)


# A reader of each that must say no. What `transformers` reads promises nothing of the kind; a damaged line of a local
# job's attempts is passed over, and said; a damaged row of predictions is a line of the audit.
LENIENT = ("model/", "data/predictions/", "flight/attempts.jsonl")
STRICT = {name: readers for name, readers in TARGETS.items() if not name.startswith(LENIENT)}
STRICT |= {name: (told,) for name, readers in STRICT.items() if readers == RUN}
STRICT |= {"dvc.lock": (locked,), "listing": (locked,), "protocols/embedded.yaml": (parameters,)}
CONSTANTS = {"json": ("NaN", "Infinity", "-Infinity", "1e999"), "yaml": (".nan", ".inf", "-.inf", "1e999")}


@st.composite
def endless(draw: st.DrawFn, content: bytes, kind: str) -> bytes:
    """A valid document in which a number that is none stands in the place of one value, anywhere."""
    lines = content.splitlines(keepends=True) if kind == "jsonl" else [content]
    number = draw(st.integers(0, len(lines) - 1))
    made = {"": copy.deepcopy(yaml.safe_load(lines[number]) if kind == "yaml" else json.loads(lines[number]))}
    path = ("", *draw(st.sampled_from(nodes(made[""]))))
    holder: Any = made
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = Raw(draw(st.sampled_from(CONSTANTS.get(kind, CONSTANTS["json"]))))
    new = written(made[""]) + b"\n"
    return b"".join([*lines[:number], new, *lines[number + 1 :]])


@WIDE
@pytest.mark.parametrize("name", [name for name in STRICT if kind_of(name, Path(name))])
def test_no_reader_takes_a_document_with_nan_or_infinity_in_it(
    world: Path, name: str, tries: int, record_property: Callable[[str, object], None]
) -> None:
    def check(content: bytes) -> None:
        assert any(refused(read, world) for read in STRICT[name]), content[:300]

    path = path_of(world, name)
    documents = endless(path.read_bytes(), kind_of(name, path))
    record_property("tried", attacked(path, documents, tries, check))


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.faults)])
def test_a_parquet_file_with_a_byte_flipped_is_taken_or_named(
    world: Path, step: int, record_property: Callable[[str, object], None]
) -> None:
    """All content that is wrong is named by the reader itself, none is left to be explained as a fault of the disk."""
    path = world / "data/raw/corpus/train.parquet"
    valid, said = path.read_bytes(), []
    try:
        for at in range(0, len(valid), step):
            path.write_bytes(valid[:at] + bytes([valid[at] ^ 0xFF]) + valid[at + 1 :])
            try:
                selected(world)
            except ParityError as error:
                said.append(str(error))
    finally:
        path.write_bytes(valid)
        record_property("tried", len(range(0, len(valid), step)))
    assert any("cannot be read as parquet" in line for line in said)
    assert all("\n" not in line for line in said)


def test_a_fault_of_the_disk_is_not_called_a_bad_parquet_file(world: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_columns([world / "gone.parquet"], SFT_COLUMNS))
