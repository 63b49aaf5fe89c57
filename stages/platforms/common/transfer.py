"""Bringing a file back from a platform: hashed while it streams, resumed where it broke, memory flat."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from stages.command import ParityError
from stages.evidence.digests import BLOCK
from stages.jobs import Entry


def receive(name: str, entry: Entry, blocks: Callable[[int], Iterable[bytes]], path: Path) -> None:
    """Write a manifest's file to `path` from `blocks(offset)`, which streams it from that byte on.

    What a broken transfer left at `path` is kept and continued. Raises ParityError, and removes the file, where size
    or digest differ from the manifest's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("ab+") as stream:
        stream.seek(0)
        while block := stream.read(BLOCK):
            digest.update(block)
        size = stream.tell()
        if size < entry.bytes:
            for block in blocks(size):
                stream.write(block)
                digest.update(block)
                size += len(block)
                if size > entry.bytes:
                    break
    if size != entry.bytes or digest.hexdigest() != entry.sha256:
        path.unlink()
        raise ParityError(
            f"{name}: came back as {size} bytes, sha256 {digest.hexdigest():.12}…; "
            f"the manifest says {entry.bytes} bytes, {entry.sha256:.12}…. Run the same command again to fetch it anew"
        )
