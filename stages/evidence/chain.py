"""An append-only file of events: canonical JSON, each line chained to the one before by a digest, on disk at once."""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from stages.command import ParityError
from stages.evidence.bounds import all_of, read_bytes
from stages.evidence.digests import canonical, named, parse_document
from stages.validation import Frozen, validate

START = "0" * 64  # what the first line is chained to


class Line(Frozen):
    event: Literal["reserve", "settle", "mark"]
    id: str
    at: str
    values: dict[str, Any]
    chain: str


def link(previous: str, event: dict[str, Any]) -> str:
    """The digest that chains an event to the line before."""
    return hashlib.sha256(previous.encode() + canonical(event)).hexdigest()


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a file alone. The lock goes with the process, however it ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lines(file: Path) -> Iterator[Line]:
    """The ledger's whole lines, each held against the chain; raises ParityError with the number of one that is not so.

    Text behind the last line's end was being written when its process died: nothing was submitted on the strength of
    it, so it counts for nothing.
    """
    previous = START
    text = read_bytes(file) if file.is_file() else b""
    for number, raw in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1):
        where = f"{file}:{number}"
        line = validate(Line, parse_document(raw, where), where)
        event = line.model_dump(exclude={"chain"})
        if link(previous, event) != line.chain:
            raise ParityError(f"{where}: altered: its digest does not follow from the line before")
        previous = line.chain
        yield line


def append(file: Path, event: str, attempt: str, **values: Any) -> None:
    """Put one line on the ledger and on disk. The caller holds the lock."""
    previous = START
    for line in lines(file):
        previous = line.chain
    record = {"event": event, "id": attempt, "at": datetime.now(UTC).isoformat(), "values": values}
    new = not file.exists()
    try:
        with file.open("ab+") as stream:
            stream.seek(0)
            stream.truncate(all_of(stream, file).rfind(b"\n") + 1)
            stream.write(canonical(record | {"chain": link(previous, record)}) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise named(error, {file: file}) from None
    if new:
        directory = os.open(file.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
