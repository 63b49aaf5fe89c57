"""A container's own copy of a Volume. What it writes is seen outside only once it has been committed."""

import os
import shutil
from pathlib import Path

Stamp = tuple[int, int, int]


def stamps(folder: Path) -> dict[str, Stamp]:
    """What tells an unchanged file, by its path."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_symlink() or path.is_file():
            status = path.lstat()
            found[str(path.relative_to(folder))] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found


class Copy:
    def __init__(self, volume: Path, place: Path):
        self.volume, self.place = volume, place
        shutil.copytree(volume, place, symlinks=True)
        self.known = stamps(place)

    def commit(self) -> None:
        """Bring what changed here to the Volume; of two that change a file, the last one wins, as on Modal."""
        there = stamps(self.place)
        for name, stamp in there.items():
            if self.known.get(name) != stamp:
                replace(self.place / name, self.volume / name)
        for name in self.known.keys() - there.keys():
            (self.volume / name).unlink(missing_ok=True)
        self.known = there


def replace(source: Path, target: Path) -> None:
    """Put a copy of a file or link in the place of `target`; one that the worker has just removed is passed over."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.commit-{os.getpid()}")
    try:
        shutil.copy2(source, partial, follow_symlinks=False)
        partial.replace(target)
    except FileNotFoundError:
        partial.unlink(missing_ok=True)
