"""The job contract, which is all that a platform and the worker share: a folder in, a folder out.

In:  `job.json`, `inputs/*.jsonl`, and `model/` unless the worker is to fetch the model from the hub.
Out: `result.json`, `predictions.jsonl` or `log_history.csv` and `model/`, and last `manifest.json`, which names every
     file with its size and SHA-256. No manifest, no result.

`job.json` is canonical JSON without anything of a platform or a machine; its SHA-256 is the job id. It includes a
digest of the worker's code, so the same id means the same work wherever it is done.
"""

import contextlib
import os
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field

from stages.command import ParityError, Task, explain
from stages.evidence.digests import canonical, read_json, read_rows, sha256_file, sha256_json, sha256_tree, whole
from stages.protocol import (
    Architecture,
    Execution,
    LabelScorer,
    Model,
    Protocol,
    Recipe,
    Resources,
    Stack,
    WindowScorer,
)
from stages.validation import Frozen, Moment, Name, RepoId, Seconds, Sha256, first_line, validate

# What a platform ships, and what the job id covers.
WORKER_CODE = (
    "stages/__init__.py",
    "stages/command.py",
    "stages/layout.py",
    "stages/protocol.py",
    "stages/validation.py",
    "stages/jobs.py",
    "stages/worker.py",
    "stages/corpora/__init__.py",
    "stages/corpora/hub.py",
    "stages/evidence/__init__.py",
    "stages/evidence/digests.py",
    "stages/evidence/environment.py",
    "stages/training",
    "stages/scoring",
)
# What scoring reads of an export. `training_args.bin` is a pickle: hashed and kept, never opened.
MODEL_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt")

# The keys of an input's rows, and their types.
ROW_KEYS: dict[Task, dict[str, type]] = {"sft": {"prompt": str, "completion": str}, "pretrain": {"text": str}}

PROJECT = Path(__file__).resolve().parent.parent


class JobModel(Frozen):
    """A model in the job folder, every file pinned; or one of the hub, at a revision and with the protocol's pins."""

    source: Literal["folder", "hub"]
    id: RepoId
    revision: Name
    sha256: dict[Name, Sha256]
    architecture: Architecture


class Training(Frozen):
    recipe: Recipe
    seed: int
    processes: int = Field(ge=1)


class Scoring(Frozen):
    scorer: LabelScorer | WindowScorer
    labels: tuple[str, ...] = Field(strict=False)


class Job(Frozen):
    version: Literal[1]
    kind: Literal["train", "score"]
    task: Task
    code: Sha256
    stack: Stack
    resources: Resources
    execution: Execution
    model: JobModel
    inputs: dict[Name, Sha256]
    repeat: Annotated[int, Field(ge=1)]
    training: Training | None = None
    scoring: Scoring | None = None

    def canonical(self) -> bytes:
        return canonical(self.model_dump(mode="json", by_alias=True))

    @property
    def id(self) -> str:
        return sha256_json(self.model_dump(mode="json", by_alias=True))


def model_files(folder: Path) -> dict[str, Path]:
    """The files of a model folder that a worker may read."""
    if not folder.is_dir():
        raise ParityError(f"{folder}: no such folder; run the stage that makes it first")
    return {path.name: path for path in sorted(folder.iterdir()) if path.suffix in MODEL_SUFFIXES and path.is_file()}


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """What the libraries raise over a model's files, of which each has its own kinds, becomes one line."""
    try:
        yield
    except (KeyboardInterrupt, ParityError, MemoryError):
        raise
    except BaseException as error:  # a panic of the libraries' Rust is no Exception
        if explain(error):  # a full disk, say
            raise
        raise ParityError(
            f"{folder}: the model cannot be loaded: {type(error).__name__}: {first_line(error)}"
        ) from error


def job_model(model: Model, folder: Path | None) -> JobModel:
    """The protocol's model as a job names it: by the files of `folder`, or to be fetched where that is None."""
    digests = model.sha256
    if folder is not None:
        digests = {name: sha256_file(path) for name, path in model_files(folder).items()}
        if "model.safetensors" not in digests:
            raise ParityError(f"{folder}: no model.safetensors; weights load from safetensors only")
    return JobModel(
        source="hub" if folder is None else "folder",
        id=model.id,
        revision=model.revision,
        sha256=digests,
        architecture=model.architecture,
    )


def checked_rows(path: Path, task: Task) -> str:
    """SHA-256 of an input whose every row has been read; the worker would refuse a bad one, later and elsewhere."""
    for _ in read_rows(path, ROW_KEYS[task]):
        pass
    return sha256_file(path)


def build(
    protocol: Protocol,
    task: Task,
    *,
    inputs: Iterable[Path],
    model: Path | None,
    seed: int | None = None,
    repeat: int = 1,
) -> Job:
    """A training job where `seed` is given, a scoring job where it is not. Raises ParityError for a missing input."""
    names = {}
    for path in inputs:
        names[path.name] = checked_rows(path, task)
    training = scoring = None
    if seed is not None:
        training = Training(recipe=getattr(protocol.train, task), seed=seed, processes=protocol.train.processes)
    else:
        labels = protocol.select.sft.classes if task == "sft" else ()
        scoring = Scoring(scorer=getattr(protocol.score, task), labels=labels)
    return Job(
        version=1,
        kind="train" if training else "score",
        task=task,
        code=sha256_tree(PROJECT, WORKER_CODE),
        stack=protocol.stack,
        resources=protocol.resources,
        execution=protocol.execution,
        model=job_model(protocol.model, model),
        inputs=names,
        repeat=repeat,
        training=training,
        scoring=scoring,
    )


def write_job(job: Job, folder: Path, inputs: Iterable[Path], model: Path | None) -> None:
    """Lay a job folder; the model's files are linked, not copied."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "inputs").mkdir(parents=True)
    for path in inputs:
        shutil.copyfile(path, folder / "inputs" / path.name)
    if model is not None:
        (folder / "model").mkdir()
        for name, path in model_files(model).items():
            (folder / "model" / name).symlink_to(path.resolve())
    with whole(folder / "job.json") as stream:
        stream.write(job.canonical())


def read_job(folder: Path) -> Job:
    """The job in `folder`, its inputs and model held against their digests."""
    job = validate(Job, read_json(folder / "job.json"), folder / "job.json")
    pinned = {folder / "inputs" / name: digest for name, digest in job.inputs.items()}
    if job.model.source == "folder":
        pinned |= {folder / "model" / name: digest for name, digest in job.model.sha256.items()}
    for path, digest in pinned.items():
        if not path.is_file():
            raise ParityError(f"{path}: not found, but job.json names it")
        if (found := sha256_file(path)) != digest:
            raise ParityError(f"{path}: sha256 {found}, job.json says {digest}")
    if job.model.source == "folder" and (more := model_files(folder / "model").keys() - job.model.sha256.keys()):
        raise ParityError(f"{folder / 'model' / min(more)}: not of this job, and a model's libraries might read it")
    return job


class Result(Frozen):
    """What the worker says of a job that it has done: `result.json`."""

    version: Literal[1]
    job: Sha256
    device: str
    environment: dict[str, Any]
    metrics: dict[str, int | float]
    started_utc: Moment
    finished_utc: Moment
    worker_seconds: Seconds
    loaded_weights_sha256: Sha256 | None = None
    training_tokens_sha256: Sha256 | None = None
    model_weights_sha256: Sha256 | None = None


def read_result(folder: Path) -> Result:
    return validate(Result, read_json(folder / "result.json"), folder / "result.json")


class Entry(Frozen):
    bytes: int = Field(ge=0)
    sha256: Sha256


class Manifest(Frozen):
    version: Literal[1]
    job: Sha256
    files: dict[str, Entry]


MANIFEST = "manifest.json"
MOST_FILES = 10_000  # of an output


# Names that Windows takes for devices, whatever their suffix.
DEVICES = {
    "con",
    "prn",
    "aux",
    "nul",
    "conin$",
    "conout$",
    *(f"{port}{n}" for port in ("com", "lpt") for n in "0123456789¹²³"),
}


def safe(path: str) -> bool:
    """Whether a manifest's path stays in its folder on any system: relative, plain, in its shortest form."""
    pure = PurePosixPath(path)
    if (
        not path
        or len(path) > 255
        or not path.isprintable()
        or set(path) & set('\\:*?"<>|')
        or str(pure) != path
        or path == MANIFEST
    ):
        return False
    named = [part.split(".")[0].rstrip().casefold() for part in pure.parts]
    trailing = any(part.rstrip(" .") != part for part in pure.parts)
    return not pure.is_absolute() and bool(named) and not trailing and DEVICES.isdisjoint(named)


def folded(path: str) -> str:
    """A path as a file system that knows neither case nor ways to write an accent keeps it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def write_manifest(folder: Path, job_id: str) -> None:
    """Seal an output folder: every file below it, named with size and digest. Written last."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    with whole(folder / MANIFEST) as stream:
        stream.write(canonical({"version": 1, "job": job_id, "files": files}))


def read_manifest(folder: Path, job_id: str) -> Manifest:
    """The manifest in `folder`; raises ParityError for one of another job or with a path that leaves the folder."""
    path = folder / MANIFEST
    manifest = validate(Manifest, read_json(path), path)
    if manifest.job != job_id:
        raise ParityError(f"{path}: output of job {manifest.job:.12}, expected {job_id:.12}")
    if len(manifest.files) > MOST_FILES:
        raise ParityError(f"{path}: more than {MOST_FILES} files")
    if bad := [name for name in manifest.files if not safe(name)]:
        raise ParityError(f"{path}: {bad[0]!r:.80} is no plain path inside the output folder")
    taken = {folded(name) for name in manifest.files}
    if len(taken) != len(manifest.files):
        raise ParityError(f"{path}: two paths differ only in case or in how they write an accent")
    if inside := [name for name in taken if any(str(parent) in taken for parent in PurePosixPath(name).parents)]:
        raise ParityError(f"{path}: {min(inside)!r:.80} lies in a folder that is a file")
    return manifest


def verify(folder: Path, job_id: str) -> Manifest:
    """Hold every file of an output folder against its manifest: none missing, none more, sizes and digests equal."""
    manifest = read_manifest(folder, job_id)
    if links := [path for path in folder.rglob("*") if path.is_symlink()]:
        raise ParityError(f"{links[0]}: a link in an output folder")
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    if odd := sorted(present ^ manifest.files.keys()):
        problem = "not in the manifest" if odd[0] in present else "in the manifest but missing"
        raise ParityError(f"{folder / odd[0]}: {problem}")
    for name, entry in manifest.files.items():
        if (size := os.path.getsize(folder / name)) != entry.bytes:
            raise ParityError(f"{folder / name}: {size} bytes, the manifest says {entry.bytes}")
        if (found := sha256_file(folder / name)) != entry.sha256:
            raise ParityError(f"{folder / name}: sha256 {found}, the manifest says {entry.sha256}")
    return manifest
