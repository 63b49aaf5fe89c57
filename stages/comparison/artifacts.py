"""What DVC keeps of a run: the digests in `dvc.lock`, and the files themselves, in the workspace or in the cache."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from stages.command import ParityError
from stages.comparison.revisions import Files, Folder
from stages.evidence.bounds import read_bytes
from stages.evidence.digests import parse_document
from stages.jobs import safe
from stages.layout import HEAL
from stages.validation import first_line, parse_yaml

MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")


class Artifact(NamedTuple):
    """A file that DVC tracks; `found` is None where neither the cache nor the workspace has it."""

    path: str
    md5: str
    found: Path | None


def md5_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@lru_cache(maxsize=8)
def cache_folder(project: Path) -> Path:
    """DVC's cache of a project, which its configuration may have moved."""
    from dvc.config import Config, ConfigError

    try:
        moved = Config(str(project / ".dvc"))["cache"].get("dir") if (project / ".dvc").is_dir() else None
    except ConfigError as error:
        raise ParityError(f".dvc/config: {first_line(error)}") from None
    return (Path(moved) if moved else project / ".dvc" / "cache") / "files" / "md5"


def cached(md5: str) -> Path:
    return cache_folder(Path.cwd()) / md5[:2] / md5[2:]


class Locked(NamedTuple):
    """Path -> MD5 of everything that stages wrote; and stage, path and MD5 of what others read of it."""

    outs: dict[str, str]
    deps: list[tuple[str, str, str]]


def locked(files: Files) -> Locked:
    """What `dvc.lock` says; raises ParityError where there is none, or one that says nothing."""
    text = files.read("dvc.lock")
    if text is None:
        raise ParityError("no dvc.lock")
    try:
        lock = parse_yaml(text, "dvc.lock")
        stages = lock["stages"]
        outs = [(out["path"], out["md5"]) for stage in stages.values() for out in stage.get("outs", [])]
        deps = [(name, dep["path"], dep["md5"]) for name, stage in stages.items() for dep in stage.get("deps", [])]
    except (KeyError, TypeError, AttributeError) as error:
        raise ParityError(f"dvc.lock: cannot be read: {error!r:.80}") from None
    made = checked(outs, "dvc.lock")
    own = [dep for dep in deps if isinstance(dep[1], str) and dep[1] in made]
    checked([(path, md5) for _, path, md5 in own], "dvc.lock")
    return Locked(made, own)


def checked(found: Iterable[tuple[Any, Any]], source: str) -> dict[str, str]:
    """Paths and MD5s that were read from `source`; raises ParityError for what is neither, or leaves the project."""
    made = {}
    for path, md5 in found:
        if not isinstance(path, str) or not safe(path):
            raise ParityError(f"{source}: {path!r:.80} is no plain path inside the project")
        if not isinstance(md5, str) or not MD5.fullmatch(md5):
            raise ParityError(f"{source}: {path:.80}: {md5!r:.80} is no MD5")
        made[path] = md5
    return made


def listed(content: bytes, source: str) -> dict[str, str]:
    """The files of a folder, as its object in DVC's cache or a remote lists them: path inside it -> MD5."""
    try:
        found = [(entry["relpath"], entry["md5"]) for entry in parse_document(content, source)]
    except (KeyError, TypeError) as error:
        raise ParityError(f"{source}: no list of files: {error!r:.80}; {HEAL}") from None
    return checked(found, source)


def folder_md5(folder: Path) -> str:
    """A folder's digest, as DVC itself makes it of its files' names and digests."""
    from dvc_data.hashfile.tree import Tree

    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    listing = [{"md5": md5_file(path), "relpath": path.relative_to(folder).as_posix()} for path in files]
    tree = Tree.from_list(listing, hash_name="md5")
    tree.digest()
    return str(tree.hash_info.value)


def md5_found(artifact: Artifact) -> str:
    """What `dvc.lock` should have of what was found. The listing of a folder stands for the folder."""
    assert artifact.found is not None
    if artifact.found.is_dir():
        return folder_md5(artifact.found)
    return md5_file(artifact.found) + (".dir" if artifact.md5.endswith(".dir") else "")


def place(files: Files, path: str, md5: str) -> Path | None:
    """The file's bytes on this machine: the workspace's own for the workspace, else the cache's or an equal copy."""
    own, kept = Path(path), cached(md5)
    if isinstance(files, Folder) and own.is_file():
        return own
    if kept.is_file():
        return kept
    return own if own.is_file() and md5_file(own) == md5 else None


def artifacts(files: Files) -> Iterator[Artifact]:
    """Every tracked file of a run that is not in git, folders taken apart."""
    for path, md5 in locked(files).outs.items():
        if not isinstance(files, Folder) and files.read(path) is not None:
            continue
        if not md5.endswith(".dir"):
            yield Artifact(path, md5, place(files, path, md5))
            continue
        listing, own = cached(md5), Path(path)
        if not listing.is_file():
            yield Artifact(f"{path}/", md5, own if isinstance(files, Folder) and own.is_dir() else None)
            continue
        yield Artifact(f"{path}/", md5, listing)
        for name, digest in listed(read_bytes(listing), str(listing)).items():
            yield Artifact(f"{path}/{name}", digest, place(files, f"{path}/{name}", digest))
