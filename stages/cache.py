"""Hold DVC's cache and the workspace's copies, or a DVC remote, against the digests in `dvc.lock`, byte by byte.

    python -m stages.cache [--remote NAME] [--drop]

DVC takes what is once in its cache on trust, and a remote's content too. With `--drop`, what is damaged is removed, and
`dvc pull` or `dvc repro` brings it back; in a remote, `dvc push` from a clone that has it. Exits with 1 where anything
is damaged or missing, and with 0 once it was dropped.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from stages import command
from stages.command import ParityError
from stages.comparison.artifacts import cached, listed, locked
from stages.comparison.revisions import Folder
from stages.evidence.bounds import all_of
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
    gone: list[str]  # what has to be removed for it to be fetched, pushed or made again


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


def objects(place: Place) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Path, MD5, problem, and the list of the folder it is in, of everything of the workspace's run that DVC keeps."""
    for path, md5 in locked(Folder(Path())).outs.items():
        if not path.startswith("data/"):
            continue
        where = place.path(md5)
        yield path, md5, (wrong := problem(place, where, md5)), None
        if md5.endswith(".dir") and wrong is None:
            with place.open(where) as stream:
                inner = listed(all_of(stream, where), where)
            for name, digest in inner.items():
                yield f"{path}/{name}", digest, problem(place, place.path(digest), digest), where


def faults(place: Place, copies: bool) -> Iterator[Fault]:
    """All that is wrong in a place and, with `copies`, in the workspace."""
    for path, md5, wrong, listing in objects(place):
        where = place.path(md5)
        if wrong:
            # DVC pushes nothing of a folder whose list a remote has, so there the list goes too.
            gone = [where] if wrong != "missing" else []
            gone += [listing] if listing and not copies else []
            yield Fault(path, where, wrong, gone)
        if copies and (own := Path(path)).is_file():
            with own.open("rb") as stream:
                found = md5_of(stream)
            if found != md5:
                yield Fault(path, path, f"damaged or edited: its MD5 is {found}, dvc.lock says {md5}", [path])


def main() -> int:
    arguments = command.parser("stages.cache", __doc__)
    arguments.add_argument("--remote", metavar="NAME", help="a DVC remote instead of the cache and the workspace")
    arguments.add_argument("--drop", action="store_true", help="remove what is damaged")
    given = arguments.parse_args()
    place = remote(given.remote) if given.remote else local()
    found = list(faults(place, copies=not given.remote))
    for fault in found:
        print(f"{fault.path}: {fault.problem} ({fault.where})")
    if not found:
        print("every object is what its digest says")
        return 0
    if not given.drop:
        print("--drop removes what is damaged")
        return 1
    for path in dict.fromkeys(path for fault in found for path in fault.gone):  # files may share an object
        place.remove(path)
    print(f"dropped; {AFTER_REMOTE if given.remote else AFTER}")
    return 0


if __name__ == "__main__":
    command.run(main)
