"""Hold DVC's cache and the workspace's copies, or a DVC remote, against the digests in `dvc.lock`, byte by byte.

    python -m stages.cache [--remote NAME] [--drop]

DVC takes what is once in its cache on trust, and a remote's content too. With `--drop`, what is damaged is removed, and
`dvc pull` or `dvc repro` brings it back; in a remote, `dvc push` from a clone that has it. A file of the workspace that
is neither what `dvc.lock` says nor a copy of a damaged object is dropped only where the cache has what it says. Exits
with 1 where anything is damaged or missing, with `--drop` where anything damaged is left.
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


class Object(NamedTuple):
    """A file, or the list of a folder, by the path that `dvc.lock` has for it."""

    path: str
    md5: str
    where: str
    found: str | None  # the MD5 of what is there
    listing: str | None = None  # where the list of its folder is

    @property
    def problem(self) -> str | None:
        if self.found is None:
            return "missing"
        named = self.md5.removesuffix(".dir")
        return None if self.found == named else f"damaged: its MD5 is {self.found}, its name says {self.md5}"


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
    except (DvcException, ImportError) as error:  # the latter where the kind of remote needs a plugin
        raise ParityError(f"remote {name}: {first_line(error)}") from None
    return Place(f"the remote {name}", found.oid_to_path, lambda path: found.fs.open(path, "rb"), found.fs.remove)


def md5_of(stream: BinaryIO) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while block := stream.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def md5_at(place: Place, path: str) -> str | None:
    """The MD5 of an object; None where there is none."""
    try:
        with place.open(path) as stream:
            return md5_of(stream)
    except FileNotFoundError:
        return None
    except Exception as error:  # every kind of storage has its own
        if isinstance(error, OSError) and error.filename:
            raise
        raise ParityError(f"{place.name}: {path}: {type(error).__name__}: {first_line(error)}") from error


def objects(place: Place) -> Iterator[Object]:
    """Everything of the workspace's run that DVC keeps; of a folder whose list is not whole, the list alone."""
    for path, md5 in locked(Folder(Path())).outs.items():
        if not path.startswith("data/"):
            continue
        where = place.path(md5)
        yield (one := Object(path, md5, where, md5_at(place, where)))
        if md5.endswith(".dir") and not one.problem:
            with place.open(where) as stream:
                inner = listed(all_of(stream, where), where)
            for name, digest in inner.items():
                at = place.path(digest)
                yield Object(f"{path}/{name}", digest, at, md5_at(place, at), where)


def faults(place: Place, copies: bool) -> Iterator[Fault]:
    """All that is wrong in a place and, with `copies`, in the workspace; ParityError for a remote with nothing."""
    held = list(objects(place))
    if held and not copies and all(one.found is None for one in held):
        raise ParityError(
            f"{place.name} has nothing of what dvc.lock names ({held[0].where} and {len(held) - 1} more are missing): "
            "no such bucket or folder, or nothing was pushed there yet"
        )
    for one in held:
        if one.problem:
            # DVC pushes nothing of a folder whose list a remote has, so there the list goes too.
            gone = [one.where] if one.found else []
            gone += [one.listing] if one.listing and not copies else []
            yield Fault(one.path, one.where, one.problem, gone)
        if copies and (own := Path(one.path)).is_file():
            with own.open("rb") as stream:
                found = md5_of(stream)
            if found != one.md5:
                yield differing(one, found)


def differing(one: Object, found: str) -> Fault:
    """A copy in the workspace that is not what `dvc.lock` says. It may be newer, and then the only one of its kind."""
    text = f"damaged or edited: its MD5 is {found}, dvc.lock says {one.md5}"
    if one.found in (one.md5, found):
        return Fault(one.path, one.path, text, [one.path])
    return Fault(one.path, one.path, f"{text}; the cache has no other, so it stays: move it away by hand", [])


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
    gone = list(dict.fromkeys(path for fault in found for path in fault.gone))  # files may share an object
    for path in gone:
        place.remove(path)
    print(f"{'dropped' if gone else 'nothing to drop'}; {AFTER_REMOTE if given.remote else AFTER}")
    if any(fault.where.endswith(".dir") for fault in found):
        print("what the list of a folder names was not looked at: run this again after that")
    return int(any(fault.problem != "missing" and not fault.gone for fault in found))


if __name__ == "__main__":
    command.run(main)
