"""Reading no more of a file than any file of this project needs: what is larger is a mistake or an attack."""

from pathlib import Path
from typing import BinaryIO

from stages.command import ParityError
from stages.evidence.digests import MOST_BYTES


def all_of(stream: BinaryIO, source: object) -> bytes:
    """What a stream holds; raises ParityError, with its `source`, for more than `MOST_BYTES`."""
    content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise beyond(source)
    return content


def read_bytes(path: Path) -> bytes:
    with path.open("rb") as stream:
        return all_of(stream, path)


def beyond(source: object) -> ParityError:
    return ParityError(f"{source}: more than {MOST_BYTES} bytes, which no file of this project needs")
