"""What one process alone may work on at a time: a job's folder, an emulator."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from stages.command import ParityError


def lock(path: Path, *, waiting: str | None) -> TextIO:
    """Hold the lock file `path`. Where another process has it, wait and say so, or, without words, raise ParityError.

    The lock goes with the process, however it ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        stream = path.open("w")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                raise ParityError("a process on this machine is working on it") from None
            print(f"waiting: {waiting}", flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        # The holder before us removes the file; a lock on a removed file excludes nobody.
        if path.is_file() and path.stat().st_ino == os.fstat(stream.fileno()).st_ino:
            return stream
        stream.close()


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a job's folder, which is made where it is missing, and removed where it was left empty."""
    path = folder.with_name(f"{folder.name}.lock")
    with lock(path, waiting=f"another process runs job {folder.name:.12}" if wait else None):
        try:
            folder.mkdir(exist_ok=True)
            yield
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
            path.unlink()
