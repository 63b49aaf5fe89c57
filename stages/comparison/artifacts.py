"""What DVC keeps of a run: the digests in `dvc.lock`, and the files themselves, in the workspace or in the cache."""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

from stages.command import ParityError
from stages.comparison.revisions import Files, Folder
from stages.evidence.digests import parse_json
from stages.validation import Loader


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
    from dvc.config import Config

    moved = Config(str(project / ".dvc"))["cache"].get("dir") if (project / ".dvc").is_dir() else None
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
        stages = yaml.load(text, Loader)["stages"]  # a SafeLoader
        outs = {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", [])}
        deps = [(name, dep["path"], dep["md5"]) for name, stage in stages.items() for dep in stage.get("deps", [])]
        return Locked(outs, [dep for dep in deps if dep[1] in outs])
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ParityError(f"dvc.lock: cannot be read: {error!r:.80}") from None


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
        for entry in parse_json(listing.read_bytes()):
            inner = f"{path}/{entry['relpath']}"
            yield Artifact(inner, entry["md5"], place(files, inner, entry["md5"]))
