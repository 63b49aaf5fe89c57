"""A tar.zst archive as it streams in: hashed, unpacked safely, and there whole or not at all. Memory stays flat."""

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from stages.command import ParityError
from stages.evidence.digests import whole_folder
from stages.jobs import MOST_FILES, safe

CHUNK = 1 << 17  # stays in a processor's cache through every copy: half the time of 1 MiB, measured
MOST_BYTES = 64 << 30
TRIES = 5


class Broken(Exception):  # noqa: N818
    """A transfer that ended before its end."""


def resumed(blocks: Callable[[int], Iterator[bytes]], tries: int = TRIES) -> Iterator[bytes]:
    """The bytes of `blocks(offset)` from 0 on; where it breaks, it is asked again from there, up to `tries` times
    without a byte in between."""
    offset, left = 0, tries
    while True:
        try:
            for block in blocks(offset):
                offset, left = offset + len(block), tries
                yield block
            return
        except Broken as error:
            left -= 1
            if not left:
                raise ParityError(
                    f"the transfer broke off after {offset} bytes, {tries} times in a row ({error}). "
                    "Run the same command again to fetch it anew"
                ) from None


class Reader(io.RawIOBase):
    """An iterable of blocks as a file, hashed as it is read."""

    def __init__(self, blocks: Iterable[bytes]):
        self.blocks, self.digest, self.size = iter(blocks), hashlib.sha256(), 0
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self.rest:
            if (block := next(self.blocks, None)) is None:
                return 0
            self.digest.update(block)
            self.size += len(block)
            self.rest = memoryview(block)
        taken = self.rest[: len(buffer)]
        self.rest = self.rest[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)


def unpack(what: str, blocks: Iterable[bytes], sha256: str, folder: Path) -> None:
    """Fill `folder` from an archive whose digest is `sha256`; after any error it is as it was before.

    Raises ParityError for content that differs from its digest, and for an entry that is no plain file or folder
    inside it. What was unpacked before the digest was known is removed with the rest.
    """
    import zstandard

    reader = Reader(blocks)
    with whole_folder(folder) as partial:
        problem: str | None = None
        try:
            with zstandard.ZstdDecompressor().stream_reader(
                cast(IO[bytes], reader), read_size=CHUNK, read_across_frames=True
            ) as plain:
                extract(plain, partial)
                while plain.read(CHUNK):
                    pass  # what stands behind the archive's end counts for the digest
        except (FileExistsError, NotADirectoryError) as error:
            raise ParityError(
                f"{what}: two entries of one path, {error.filename!r:.80}; the archive is refused"
            ) from None
        except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
            problem = f"{what}: not a whole tar.zst archive: {error}"
            while reader.read(CHUNK):
                pass
        if (found := reader.digest.hexdigest()) != sha256:
            raise ParityError(
                f"{what}: came back altered: {reader.size} bytes, sha256 {found:.12}…, Nodus announced {sha256:.12}…. "
                "Run the same command again to fetch it anew"
            )
        if problem:
            raise ParityError(problem)


def extract(plain: IO[bytes], folder: Path) -> None:
    files, size = 0, 0
    with tarfile.open(fileobj=plain, mode="r|", bufsize=CHUNK) as archive:
        for entry in archive:
            name = entry.name.removeprefix("./").rstrip("/")
            if entry.isdir() and name in ("", "."):
                continue
            files, size = files + 1, size + entry.size
            check(entry, name, files, size)
            path = folder / name
            if entry.isdir():
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                copy(archive.extractfile(entry), path, entry.size)


def check(entry: tarfile.TarInfo, name: str, files: int, size: int) -> None:
    if not (entry.isfile() or entry.isdir()):
        raise ParityError(f"{entry.name!r:.80}: neither a plain file nor a folder; the archive is refused")
    if name != "manifest.json" and not safe(name):
        raise ParityError(f"{entry.name!r:.80}: no plain path inside the output folder; the archive is refused")
    if files > MOST_FILES or size > MOST_BYTES:
        raise ParityError(f"more than {MOST_FILES} entries or {MOST_BYTES >> 30} GiB; the archive is refused")


def copy(source: IO[bytes] | None, path: Path, size: int) -> None:
    assert source is not None
    with path.open("xb") as target:
        while block := source.read(CHUNK):
            target.write(block)
            size -= len(block)
    if size:
        raise tarfile.ReadError(f"{path.name}: {size} bytes fewer than its entry says")
