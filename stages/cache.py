"""Hold DVC's cache and the workspace's copies, or a DVC remote, against the digests in `dvc.lock`, byte by byte.

    python -m stages.cache [--remote NAME] [--drop]

DVC takes what is once in its cache on trust, and a remote's content too. With `--drop`, what is damaged is removed, and
`dvc pull` or `dvc repro` brings it back; in a remote, `dvc push` from a clone that has it. Exits with 1 where anything
is damaged or missing, and with 0 once it was dropped.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from stages import command
from stages.command import ParityError
from stages.comparison.artifacts import cached, listed, locked
from stages.comparison.revisions import Folder
from stages.evidence.digests import BLOCK
from stages.validation import first_line

AFTER = "now `dvc pull` brings them back, or `dvc repro` makes them again"
AFTER_REMOTE = "now `dvc push` from a clone that has them"


class Place(NamedTuple):
    """Where objects lie: the cache of this machine, or a remote."""

    name: str
    path: Callable[[str], str]  # of the object of an MD5
    open: Callable[[str], BinaryIO]
    remove: Callable[[str], object]


class Fault(NamedTuple):
    """An object, or a copy in the workspace, that is not what its digest says."""

    path: str
    where: str
    problem: str
    remove: Callable[[], object]


def nothing() -> None:
    """What there is to remove of something missing."""


def local() -> Place:
    return Place(
        "DVC's cache", lambda md5: str(cached(md5)), lambda path: Path(path).open("rb"), lambda p: Path(p).unlink()
    )


def remote(name: str) -> Place:
    """A remote of this project's; raises ParityError where there is none of that name."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        found = Repo().cloud.get_remote(name).odb
    except DvcException as error:
        raise ParityError(f"remote {name}: {first_line(error)}") from None
    return Place(f"the remote {name}", found.oid_to_path, lambda path: found.fs.open(path, "rb"), found.fs.remove)


def md5_of(stream: BinaryIO) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while block := stream.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def problem(place: Place, path: str, md5: str) -> str | None:
    """What is wrong with an object; None where it is whole."""
    try:
        with place.open(path) as stream:
            found = md5_of(stream)
    except FileNotFoundError:
        return "missing"
    except Exception as error:  # every kind of storage has its own
        if isinstance(error, OSError) and error.filename:
            raise
        raise ParityError(f"{place.name}: {path}: {type(error).__name__}: {first_line(error)}") from error
    return None if found == md5.removesuffix(".dir") else f"damaged: its MD5 is {found}, its name says {md5}"


def objects(place: Place) -> Iterator[tuple[str, str, str | None]]:
    """Path, MD5 and problem of everything of the workspace's run that DVC keeps; a folder's files after their list."""
    for path, md5 in locked(Folder(Path())).outs.items():
        if not path.startswith("data/"):
            continue
        yield path, md5, (wrong := problem(place, place.path(md5), md5))
        if md5.endswith(".dir") and wrong is None:
            with place.open(place.path(md5)) as stream:
                inner = listed(stream.read(), place.path(md5))
            for name, digest in inner.items():
                yield f"{path}/{name}", digest, problem(place, place.path(digest), digest)


def faults(place: Place, copies: bool) -> Iterator[Fault]:
    """All that is wrong in a place and, with `copies`, in the workspace."""
    for path, md5, wrong in objects(place):
        where = place.path(md5)
        if wrong:
            yield Fault(path, where, wrong, nothing if wrong == "missing" else partial(place.remove, where))
        if copies and (own := Path(path)).is_file():
            with own.open("rb") as stream:
                found = md5_of(stream)
            if found != md5:
                yield Fault(path, path, f"damaged or edited: its MD5 is {found}, dvc.lock says {md5}", own.unlink)


def forget(name: str) -> None:
    """Drop DVC's notes on what a remote holds: it would push nothing that it once saw there."""
    from dvc.repo import Repo
    from dvc_data.hashfile.db import get_index

    index: Any = get_index(Repo().cloud.get_remote(name).odb)
    index.clear()
    index.close()


def main() -> int:
    arguments = command.parser("stages.cache", __doc__)
    arguments.add_argument("--remote", metavar="NAME", help="a DVC remote instead of the cache and the workspace")
    arguments.add_argument("--drop", action="store_true", help="remove what is damaged")
    given = arguments.parse_args()
    found = list(faults(remote(given.remote) if given.remote else local(), copies=not given.remote))
    for fault in found:
        print(f"{fault.path}: {fault.problem} ({fault.where})")
    for fault in {fault.where: fault for fault in found}.values() if given.drop else ():  # files may share an object
        fault.remove()
    if not found:
        print("every object is what its digest says")
        return 0
    if given.drop and given.remote:
        forget(given.remote)
    print(f"{len(found)} dropped; {AFTER_REMOTE if given.remote else AFTER}" if given.drop else "--drop removes them")
    return 0 if given.drop else 1


if __name__ == "__main__":
    command.run(main)
