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


def outputs(files: Files) -> dict[str, str]:
    """Path -> MD5 of everything that `dvc.lock` says a stage wrote; raises ParityError where there is no `dvc.lock`."""
    text = files.read("dvc.lock")
    if text is None:
        raise ParityError("no dvc.lock")
    try:
        lock = yaml.load(text, Loader)  # a SafeLoader
        return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage.get("outs", [])}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ParityError(f"dvc.lock: cannot be read: {error!r:.80}") from None


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
    for path, md5 in outputs(files).items():
        if not isinstance(files, Folder) and files.read(path) is not None:
            continue
        if not md5.endswith(".dir"):
            yield Artifact(path, md5, place(files, path, md5))
            continue
        listing = cached(md5)
        if not listing.is_file():
            yield Artifact(f"{path}/", md5, None)
            continue
        for entry in parse_json(listing.read_bytes()):
            inner = f"{path}/{entry['relpath']}"
            yield Artifact(inner, entry["md5"], place(files, inner, entry["md5"]))
