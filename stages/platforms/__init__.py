"""Platforms: run a job somewhere, bring its output back, say what it cost. One file per platform.

A platform is a module of this folder with a `Settings` model (its section of `params.yaml`) and a `Platform` class of
the five functions below. It meets the worker in the job folder alone. The driver, `run`, is the same for all.
"""

import contextlib
import fcntl
import importlib
import os
import pkgutil
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TextIO

import platformdirs
from pydantic import Field

from stages.command import ParityError
from stages.evidence.digests import read_json, write_json
from stages.jobs import Job, verify, write_job
from stages.validation import Frozen, shown, validate

HANDLE = "handle.json"
ENDED = "ended.json"  # the handle of an attempt that ended badly


class Segment(Frozen):
    """A part of a charge, such as boot or running."""

    seconds: float
    usd: str


class Attempt(Frozen):
    """One try at a job: how it ended (`succeeded`, `failed`, `preempted`, `killed`, ...) and why, where it is known."""

    outcome: str
    reason: str | None = None
    started_utc: str | None = None
    ended_utc: str | None = None
    charge_usd: str | None = None


class Receipt(Frozen):
    """What a platform says of a job. Money is USD as a decimal string; missing is None, never zero.

    The charge is that of all the attempts listed, failed ones included.
    """

    platform: str
    attempts: list[Attempt]
    charge_usd: str | None
    final: bool
    segments: dict[str, Segment] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    clean: bool | None = None  # checked on the platform: nothing of the job runs on or is held


class Handle(Frozen):
    """What finds a submitted job again; on disk before anything waits for it."""

    version: Literal[1]
    platform: str
    job: str
    submitted_utc: str
    reference: dict[str, Any]  # the platform's own


class Context(NamedTuple):
    """What a platform may know of the run beside its own settings."""

    mirror: Path | None
    cap_usd: Decimal  # no job may cost more
    reserve: Callable[[Job], None] = lambda job: None  # hold the cap before a paid submission, or refuse it
    settle: Callable[[Job, Receipt], None] = lambda job, receipt: None  # book what a paid job has cost


class Platform(Protocol):
    """The five things that a platform does, and nothing of it runs on afterwards, whatever happens."""

    # Whether jobs cost money. A finished one's output can then be fetched again, so its handle is kept.
    paid: bool

    def __init__(self, settings: Any, context: Context): ...

    def estimate(self, job: Job) -> str | None:
        """USD that the job should cost, as a decimal string; None where nothing is charged or known."""

    def submit(self, job: Job, folder: Path) -> dict[str, Any]:
        """Start the job in `folder/job`; return the reference that finds it again."""

    def wait(self, handle: Handle, folder: Path) -> None:
        """Return when the job has ended well; raise ParityError, with what to do, when it has not.

        Lines of the worker's output go through `common.progress.Echo`. On KeyboardInterrupt the job is cancelled.
        """

    def fetch(self, handle: Handle, folder: Path, out: Path) -> None:
        """Put the job's output into `out`."""

    def receipt(self, handle: Handle, folder: Path) -> Receipt:
        """What the job took and cost, as far as it is known now."""


class Delivery(NamedTuple):
    """A verified output folder and what is known of how it came."""

    out: Path
    receipt: Receipt
    seconds: float  # from submission to verified output, by this machine's wall clock
    submitted_utc: str
    verified_utc: str


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def load(name: str) -> Any:
    """The platform's module; raises ParityError that lists the platforms there are."""
    if name not in names():
        raise ParityError(f"params.yaml: platform: found {shown(name)}, expected one of {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def read_settings(name: str, sections: Mapping[str, Any], file: Path) -> Any:
    """The chosen platform's section of `params.yaml`, after checking that every other section is a platform's too."""
    module = load(name)
    for section in sections:
        if section not in names():
            raise ParityError(f"{file}: {section}: unknown key; platforms are {', '.join(names())}")
    return validate(module.Settings, sections.get(name) or {}, file, (name,))


def state_folder() -> Path:
    """Where jobs in flight are kept: the user's own state folder, shared by all clones and experiments."""
    return Path(os.environ.get("PARITY_STATE") or platformdirs.user_state_path("parity"))


def lock(path: Path) -> TextIO:
    """Hold the lock file `path`, waiting where another process has it, and say so."""
    while True:
        stream = path.open("w")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting: another process runs job {path.stem:.12}", flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        # The holder before us removes the file; a lock on a removed file excludes nobody.
        if path.is_file() and path.stat().st_ino == os.fstat(stream.fileno()).st_ino:
            return stream
        stream.close()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a job's folder for this process alone."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.lock")
    with lock(path):
        try:
            folder.mkdir(exist_ok=True)
            yield
        finally:
            path.unlink()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that what it cleans up is cleaned up."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def now() -> str:
    return datetime.now(UTC).isoformat()


def submit(platform: Platform, name: str, context: Context, job: Job, folder: Path) -> Handle:
    """Find the job's handle, or submit it and write one."""
    path = folder / HANDLE
    if path.is_file():
        return validate(Handle, read_json(path), path)
    if (cost := platform.estimate(job)) is not None:
        print(f"estimated cost: {cost} USD", flush=True)
    if platform.paid:
        context.reserve(job)
    submitted = now()
    reference = platform.submit(job, folder)
    handle = Handle(version=1, platform=name, job=job.id, submitted_utc=submitted, reference=reference)
    write_json(path, handle.model_dump())
    return handle


@contextlib.contextmanager
def run(
    name: str, settings: Any, context: Context, job: Job, inputs: list[Path], model: Path | None, state: Path
) -> Iterator[Delivery]:
    """Run `job` on a platform and yield its verified output, which is gone when the block has ended well.

    A job that was begun before, by a process since killed, is taken up where it stands; one that was finished and
    paid for is only fetched again.
    """
    platform: Platform = load(name).Platform(settings, context)
    folder = state / name / job.id
    with locked(folder), interruptible():
        write_job(job, folder / "job", inputs, model)
        handle = submit(platform, name, context, job, folder)
        try:
            platform.wait(handle, folder)
        except (ParityError, KeyboardInterrupt):
            # The job is over: the next run is a new submission. After SIGKILL the handle stays, and is taken up.
            (folder / HANDLE).replace(folder / ENDED)
            if platform.paid:
                with contextlib.suppress(
                    ParityError, OSError
                ):  # what cannot be read now stays held, for `campaign reconcile`
                    context.settle(job, platform.receipt(handle, folder))
            raise
        out = folder / "out"
        platform.fetch(handle, folder, out)
        try:
            verify(out, job.id)
        except ParityError:
            shutil.rmtree(out, ignore_errors=True)  # so that the next run fetches or makes it anew
            raise
        verified = now()
        seconds = (datetime.fromisoformat(verified) - datetime.fromisoformat(handle.submitted_utc)).total_seconds()
        receipt = platform.receipt(handle, folder)
        if platform.paid:
            context.settle(job, receipt)
        yield Delivery(out, receipt, seconds, handle.submitted_utc, verified)
        # A paid job's handle finds its output again, and its bill where that comes late.
        kept = {HANDLE, "job"} if platform.paid else set()
        for path in folder.iterdir():
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not kept:
            folder.rmdir()
