"""The hub, at pinned revisions only. A token, where one is needed, comes from the environment (HF_TOKEN)."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel

from stages.command import ParityError
from stages.evidence.digests import read_json, sha256_file
from stages.layout import HEAL, RAW, SOURCES
from stages.validation import PART, Sha256, validate

MODEL_FILES = ["*.json", "*.safetensors", "merges.txt", "vocab.txt", "*.jinja"]


def check_pins(pins: Mapping[str, str], folder: Path) -> None:
    """Raise ParityError where a model's file in `folder` differs from its pinned digest."""
    for name, expected in pins.items():
        if not (folder / name).is_file():
            raise ParityError(f"{folder / name}: not found, but its digest is pinned")
        if (found := sha256_file(folder / name)) != expected:
            raise ParityError(f"{folder / name}: sha256 {found}, pinned is {expected}")


class Taken(BaseModel):
    """What `sources` recorded of one corpus or model."""

    files: dict[Annotated[str, Field(pattern=rf"^{PART}(/{PART})*$")], Sha256]


class Snapshot(RootModel[dict[str, Taken]]):
    """`metrics/sources.json`."""


def check_snapshot(name: str) -> None:
    """Raise ParityError where a file of `name` in the snapshot differs from what `sources` recorded of it."""
    recorded = validate(Snapshot, read_json(SOURCES), SOURCES).root
    if name not in recorded:
        raise ParityError(f"{SOURCES}: nothing of {name}; run `dvc repro sources`")
    for path, expected in recorded[name].files.items():
        if not (RAW / path).is_file():
            raise ParityError(f"{RAW / path}: not found, but {SOURCES} names it; {HEAL}")
        if (found := sha256_file(RAW / path)) != expected:
            raise ParityError(f"{RAW / path}: sha256 {found}, {SOURCES} says {expected}; {HEAL}")


def fetch_dataset(repo: str, revision: str, folder: Path, patterns: list[str]) -> None:
    """Put a dataset's files that match `patterns` into `folder`."""
    snapshot(repo, revision, "dataset", local_dir=folder, allow_patterns=patterns)
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def fetch_model(repo: str, revision: str) -> Path:
    """The folder of a hub model's files in the hub's own cache, fetched where it is not there yet."""
    return snapshot(repo, revision, "model", allow_patterns=MODEL_FILES)


def snapshot(repo: str, revision: str, kind: str, **options: Any) -> Path:
    """`snapshot_download` at a revision; raises ParityError, with what to do, where the hub does not answer."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    token = os.environ.get("HF_TOKEN") or False
    try:
        return Path(snapshot_download(repo, repo_type=kind, revision=revision, token=token, **options))
    except (HTTPError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, OSError) and error.filename:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ParityError(
            f"the hub did not give the {kind} {repo} at revision {revision}: {reason}. "
            f"Set PARITY_MIRROR, or mirror in params.yaml, to a folder that holds {repo}/"
        ) from None
