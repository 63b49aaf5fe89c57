"""Digests and the writing of files that carry them: canonical JSON, whole or not at all."""

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from stages.command import ParityError

BLOCK = 1 << 20
# What a document, or a row, may be. Ours are far below; one beyond is a mistake or an attack.
MOST_BYTES = 16 << 20
MOST_VALUES = 200_000
MOST_DEEP = 64
MOST_NUMBER = 1e100


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex; memory stays flat whatever the size."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: one byte sequence per value. NaN and infinity are refused."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def sha256_json(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def sha256_tree(root: Path, paths: Iterable[str]) -> str:
    """One digest over the Python files at or below `paths`, by relative name and content."""
    found = {file for path in paths for file in [root / path, *(root / path).rglob("*.py")] if file.is_file()}
    return sha256_json({str(file.relative_to(root)): sha256_file(file) for file in sorted(found)})


def discard(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(path: Path) -> None:
    """Remove what processes since killed have left of `path`: half-made successors, and predecessors put aside."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*"):
        owner = re.fullmatch(r"\.([0-9]+)\.(partial|old)", stale.name.removeprefix(f".{path.name}"))
        if owner and (int(owner[1]) == os.getpid() or not Path(f"/proc/{owner[1]}").exists()):
            discard(stale)


def swap(partial: Path, path: Path) -> None:
    """Put `partial` in the place of `path`. A folder there is put aside first, and back where that fails."""
    if not path.is_dir() and not path.is_symlink():
        partial.replace(path)
        return
    aside = partial.with_suffix(".old")
    try:
        path.replace(aside)
        partial.replace(path)
    except BaseException:
        if aside.exists() and not path.exists():
            aside.replace(path)
        raise
    discard(aside)


def named(error: OSError, places: Mapping[Path, Path]) -> OSError:
    """The same error with the name that the user knows, where it has a partial file's or, of a failed write, none."""
    at = error.filename2 or error.filename
    for partial, path in places.items():
        if error.errno and (Path(at).is_relative_to(partial) if at else len(places) == 1):
            return type(error)(error.errno, error.strerror, str(path))
    return error


@contextlib.contextmanager
def replacing(*paths: Path) -> Iterator[list[Path]]:
    """Where to make the successors of `paths`, files or folders. They take their places together when the block ends.

    After an error in it `paths` are as they were and what was made is gone; after a kill the next writer removes it.
    """
    places = {path.with_name(f".{path.name}.{os.getpid()}.partial"): path for path in paths}
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep(path)
        yield list(places)
        for partial, path in places.items():
            swap(partial, path)
    except OSError as error:
        raise named(error, places) from None
    finally:
        for partial in places:
            with contextlib.suppress(OSError):  # on a disk that takes no writes there is nothing to remove
                discard(partial)


@contextlib.contextmanager
def filling(path: Path) -> Iterator[BinaryIO]:
    """A stream to `path` that is on disk when the block ends."""
    try:
        with path.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise named(error, {path: path}) from None


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A stream to `path` that appears there complete or, after any error, not at all."""
    with replacing(path) as (partial,), filling(partial) as stream:
        yield stream


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that replaces `path` when the block ends, and is gone after any error."""
    with replacing(path) as (partial,):
        partial.mkdir()
        yield partial


def indented(value: Any) -> bytes:
    """JSON with sorted keys, for people and for git."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    with whole(path) as stream:
        stream.write(indented(value))


def refuse_constant(token: str) -> Any:
    raise ValueError(f"{token} is no JSON number")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; raises ValueError for a key that stands twice, of which every reader takes another."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r:.80} stands twice")
    return found


def bounded(document: Any) -> Any:
    """A parsed document, as it is; raises ValueError, with its place, for what later steps could not take: too many
    values or too deep, a number beyond all measure, text that is no Unicode."""
    todo: list[tuple[Any, tuple[Any, ...]]] = [(document, ())]
    count = 0
    while todo:
        value, path = todo.pop()
        count += 1
        if not isinstance(value, dict | list | tuple | set):
            check_leaf(value, path)
            continue
        if len(path) == MOST_DEEP:
            raise ValueError("nested too deeply")
        if count + len(todo) + len(value) > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES} values")
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            check_leaf(key, path)
            todo.append((inner, (*path, key)))
    return document


def check_leaf(value: Any, path: tuple[Any, ...]) -> None:
    if isinstance(value, int | float) and not abs(value) <= MOST_NUMBER:
        found = value if isinstance(value, float) else "an integer of more than 100 digits"
        raise ValueError(f"{'.'.join(map(str, path))}: found {found}, expected a number within 1e100")
    if isinstance(value, str):
        value.encode()  # a lone surrogate raises UnicodeEncodeError, which is a ValueError


def parse_json(text: str | bytes) -> Any:
    """JSON as the standard has it, `bounded`, each key once; raises ValueError for anything else."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"{len(text)} bytes, more than {MOST_BYTES}")
    try:
        plain = text if isinstance(text, str) else text.decode()
        return bounded(json.loads(plain, parse_constant=refuse_constant, object_pairs_hook=once))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_document(content: bytes, source: object) -> Any:
    """JSON that came from `source`; raises ParityError, which names it, for anything else."""
    try:
        return parse_json(content)
    except ValueError as error:
        raise ParityError(f"{source}: not valid JSON: {error}") from None


def read_json(path: Path) -> Any:
    """A JSON document; raises ParityError, with its path, where there is none."""
    try:
        with path.open("rb") as stream:
            return parse_document(stream.read(MOST_BYTES + 1), path)
    except FileNotFoundError:
        raise ParityError(f"{path}: not found") from None


def read_rows(path: Path, keys: Mapping[str, type]) -> Iterator[dict[str, Any]]:
    """Rows of a JSONL file, one at a time; each must hold exactly `keys`, each of its type.

    Raises ParityError with the file and the true line number for a row that does not.
    """
    number = 0
    try:
        for number, line in enumerate(read_lines(path), 1):
            yield parse_row(line, keys, f"{path}:{number}")
    except FileNotFoundError:
        raise ParityError(f"{path}: not found; run `dvc repro prepare` first") from None
    if not number:
        raise ParityError(f"{path}: empty, expected at least one row")


def read_lines(path: Path) -> Iterator[bytes]:
    """A file's lines, one at a time; of one that is longer than any document, its beginning, which is none."""
    with path.open("rb") as stream:
        while line := stream.readline(MOST_BYTES + 1):
            yield line


def parse_row(line: bytes, keys: Mapping[str, type], where: str) -> dict[str, Any]:
    try:
        row = parse_json(line.decode())
    except UnicodeDecodeError as error:
        raise ParityError(f"{where}: not UTF-8 at byte {error.start} of the row") from None
    except ValueError as error:
        raise ParityError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(row, dict) or row.keys() != keys.keys():
        found = str(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise ParityError(f"{where}: found {found:.80}, expected the keys {sorted(keys)}")
    for key, kind in keys.items():
        if type(row[key]) is not kind:
            raise ParityError(f"{where}: {key}: found {row[key]!r:.80}, expected {kind.__name__}")
    return row
