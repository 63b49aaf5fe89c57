"""Digests and the writing of files that carry them: canonical JSON, whole or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from stages.command import ParityError

BLOCK = 1 << 20


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


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A stream to `path` that appears there complete or, after any error, not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        # A failed write() knows no file name; the user needs one.
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that replaces `path` when the block ends, and is gone after any error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if path.is_dir():
            shutil.rmtree(path)
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Indented JSON with sorted keys, for people and for git."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with whole(path) as stream:
        stream.write(text.encode())


def refuse_constant(token: str) -> Any:
    raise ValueError(f"{token} is no JSON number")


def parse_json(text: str | bytes) -> Any:
    """JSON as the standard has it; raises ValueError for NaN, infinity, bad UTF-8 or nesting too deep to read."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError:
        raise ParityError(f"{path}: not found") from None
    except ValueError as error:
        raise ParityError(f"{path}: not valid JSON: {error}") from None


def read_rows(path: Path, keys: Mapping[str, type]) -> Iterator[dict[str, Any]]:
    """Rows of a JSONL file, one at a time; each must hold exactly `keys`, each of its type.

    Raises ParityError with the file and the true line number for a row that does not.
    """
    number = 0
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                yield parse_row(line, keys, f"{path}:{number}")
    except FileNotFoundError:
        raise ParityError(f"{path}: not found; run `dvc repro prepare` first") from None
    if not number:
        raise ParityError(f"{path}: empty, expected at least one row")


def parse_row(line: bytes, keys: Mapping[str, type], where: str) -> dict[str, Any]:
    try:
        row = parse_json(line.decode())
    except UnicodeDecodeError as error:
        raise ParityError(f"{where}: not UTF-8 at byte {error.start} of the row") from None
    except ValueError as error:
        raise ParityError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(row, dict) or row.keys() != keys.keys():
        found = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise ParityError(f"{where}: found {found}, expected the keys {sorted(keys)}")
    for key, kind in keys.items():
        if type(row[key]) is not kind:
            raise ParityError(f"{where}: {key}: found {row[key]!r:.80}, expected {kind.__name__}")
    return row
