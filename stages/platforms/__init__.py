"""Platforms: run a job somewhere, bring its output back, say what it cost. One file per platform.

A platform is a module of this folder with a `Settings` model (its section of `params.yaml`) and a `Platform` class of
the five functions below. It meets the worker in the job folder alone. The driver, `run`, is the same for all.
"""

import contextlib
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import platformdirs
from pydantic import Field

from stages.command import ParityError
from stages.evidence.digests import discard, read_json, write_json
from stages.jobs import MANIFEST, Job, verify, write_job
from stages.platforms.common.lock import locked
from stages.validation import Charge, Frozen, Moment, Seconds, Sha256, shown, validate

HANDLE = "handle.json"
DELIVERED = "delivered.json"  # when the output was verified first; it may be fetched again
ENDED = "ended.json"  # the handle of an attempt that ended badly


class Segment(Frozen):
    """A part of a charge, such as boot or running."""

    seconds: Seconds
    usd: Charge


class Attempt(Frozen):
    """One try at a job: how it ended (`succeeded`, `failed`, `preempted`, `killed`, ...) and why, where it is known."""

    outcome: str
    reason: str | None = None
    started_utc: str | None = None
    ended_utc: str | None = None
    charge_usd: Charge | None = None


class Receipt(Frozen):
    """What a platform says of a job. Money is USD as a decimal string; missing is None, never zero.

    The charge is that of all the attempts listed, failed ones included.
    """

    platform: str
    attempts: list[Attempt]
    charge_usd: Charge | None
    final: bool
    segments: dict[str, Segment] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    clean: bool | None = None  # checked on the platform: nothing of the job runs on or is held


class Handle(Frozen):
    """What finds a submitted job again; on disk before anything waits for it."""

    version: Literal[1]
    platform: str
    job: Sha256
    submitted_utc: Moment
    reference: dict[str, Any]  # the platform's own


class Clock(Frozen):
    """A delivery from submission to verified output, by this machine's wall clock."""

    seconds: float = Field(allow_inf_nan=False)
    submitted_utc: Moment
    verified_utc: Moment
    taken_up: bool  # by another process than the one that submitted, so the seconds hold a time nobody waited


class Context(NamedTuple):
    """What a platform may know of the run beside its own settings."""

    mirror: Path | None
    cap_usd: Decimal  # no job may cost more
    reserve: Callable[[Job], None] = lambda job: None  # hold the cap before a paid submission, or refuse it
    settle: Callable[[Job, Receipt], None] = lambda job, receipt: None  # book what a paid job has cost
    detach: bool = False  # leave a paid job running on Ctrl-C and SIGTERM


class Platform(Protocol):
    """What a platform does, and nothing of it runs on afterwards, whatever happens.

    A ConnectionError, from any of these, says that the job may well live: its handle and its hold stay, and the same
    command takes it up.
    """

    # Whether jobs cost money. A finished one's output can then be fetched again, so its handle is kept.
    paid: bool

    def __init__(self, settings: Any, context: Context): ...

    def estimate(self, job: Job) -> str | None:
        """USD that the job should cost, as a decimal string; None where nothing is charged or known."""

    def submit(self, job: Job, folder: Path) -> dict[str, Any]:
        """Start the job in `folder/job`; return the reference that finds it again."""

    def find(self, job_id: str) -> dict[str, Any] | None:
        """The reference of the job's last submission; None where the platform has never seen one. For paid ones."""

    def wait(self, handle: Handle, folder: Path) -> None:
        """Return when the job has ended well; raise ParityError, with what to do, when it has not.

        Lines of the worker's output go through `common.progress.Echo`. On KeyboardInterrupt the job is cancelled,
        unless the context says `detach`.
        """

    def fetch(self, handle: Handle, folder: Path, out: Path) -> None:
        """Put the job's output into `out`."""

    def receipt(self, handle: Handle, folder: Path) -> Receipt:
        """What the job took and cost, as far as it is known now."""


class Delivery(NamedTuple):
    """A verified output folder and what is known of how it came."""

    out: Path
    receipt: Receipt
    clock: Clock


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


def now() -> str:
    return datetime.now(UTC).isoformat()


def read_handle(path: Path) -> Handle:
    return validate(Handle, read_json(path), path)


def submit(platform: Platform, name: str, context: Context, job: Job, folder: Path) -> Handle:
    """Submit the job and write its handle. A refusal is booked as an attempt that cost nothing."""
    if platform.paid and job.training and (count := job.training.processes) > max(1, job.resources.gpus):
        raise ParityError(f"protocol: train.processes: {count} need a GPU each, resources.gpus is {job.resources.gpus}")
    if (cost := platform.estimate(job)) is not None:
        print(f"estimated cost: {cost} USD", flush=True)
    if platform.paid:
        context.reserve(job)
    submitted = now()
    try:
        reference = platform.submit(job, folder)
    except ParityError as error:
        if platform.paid:
            context.settle(job, without_charge(name, error, final=True))
        raise
    except KeyboardInterrupt as error:
        if platform.paid and not context.detach:
            book_broken_off(platform, name, context, job, folder, error)
        raise
    submitted = reference.get("submitted_utc") or submitted  # of a job that was found instead
    handle = Handle(version=1, platform=name, job=job.id, submitted_utc=submitted, reference=reference)
    write_json(folder / HANDLE, handle.model_dump())
    return handle


def without_charge(name: str, error: BaseException, *, final: bool) -> Receipt:
    """The receipt of an attempt whose charge is none, or, until it is final, not known."""
    reason = str(error) or "interrupted"
    attempt = Attempt(outcome="failed", reason=reason, started_utc=None if final else now())
    return Receipt(platform=name, attempts=[attempt], charge_usd=None, final=final)


def book(platform: Platform, context: Context, handle: Handle, folder: Path, error: BaseException) -> None:
    """Put an attempt that ended in `error` on the ledger. What its receipt does not say now stays held."""
    if not platform.paid:
        return
    try:
        receipt = platform.receipt(handle, folder)
    except (ParityError, OSError):
        receipt = without_charge(handle.platform, error, final=False)
    context.settle(job_of(folder), receipt)


def book_broken_off(
    platform: Platform, name: str, context: Context, job: Job, folder: Path, error: BaseException
) -> None:
    """Book a submission that was interrupted, by what the platform knows of it; unknown, it stays held."""
    with contextlib.suppress(ParityError, OSError):
        reference = platform.find(job.id)
        if reference is None:
            context.settle(job, without_charge(name, error, final=True))
        else:
            handle = Handle(version=1, platform=name, job=job.id, submitted_utc=now(), reference=reference)
            book(platform, context, handle, folder, error)


def job_of(folder: Path) -> Job:
    path = folder / "job" / "job.json"
    return validate(Job, read_json(path), path)


def follow(platform: Platform, context: Context, handle: Handle, folder: Path) -> Path:
    """Wait for the job and bring back its output, verified. However it fails, the attempt is on the ledger."""
    try:
        platform.wait(handle, folder)
    except (ParityError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and platform.paid and context.detach:
            print("the job runs on; the same command takes it up", flush=True)
            raise
        # The job is over: the next run is a new submission. After SIGKILL the handle stays, and is taken up.
        (folder / HANDLE).replace(folder / ENDED)
        book(platform, context, handle, folder, error)
        raise
    out = folder / "out"
    try:
        platform.fetch(handle, folder, out)
        verify(out, handle.job)
    except ParityError as error:
        drop(out)  # so that the next run fetches or makes it anew
        book(platform, context, handle, folder, error)
        raise
    return out


def first_verified(handle: Handle, folder: Path, taken_up: bool) -> Clock:
    """The delivery's clock. It ended when the output was first verified, however often that is fetched again."""
    path = folder / DELIVERED
    if not path.is_file():
        verified = now()
        seconds = (datetime.fromisoformat(verified) - datetime.fromisoformat(handle.submitted_utc)).total_seconds()
        found = taken_up or "submitted_utc" in handle.reference
        clock = Clock(seconds=seconds, submitted_utc=handle.submitted_utc, verified_utc=verified, taken_up=found)
        write_json(path, clock.model_dump())
    return validate(Clock, read_json(path), path)


def drop(out: Path) -> None:
    """Remove an output folder, its manifest first: what a kill leaves of it is then no result."""
    (out / MANIFEST).unlink(missing_ok=True)
    discard(out)


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
    with locked(folder):
        write_job(job, folder / "job", inputs, model)
        path = folder / HANDLE
        taken_up = path.is_file()
        if taken_up:
            handle = read_handle(path)
        else:
            (folder / DELIVERED).unlink(missing_ok=True)
            handle = submit(platform, name, context, job, folder)
        out = follow(platform, context, handle, folder)
        clock = first_verified(handle, folder, taken_up)
        receipt = platform.receipt(handle, folder)
        if platform.paid:
            context.settle(job, receipt)
        yield Delivery(out, receipt, clock)
        drop(out)
        # A paid job's handle finds its output again, and its bill where that comes late.
        kept = {HANDLE, DELIVERED, "job"} if platform.paid else set()
        for path in folder.iterdir():
            if path.name not in kept:
                discard(path)
