"""What Nodus answers with, as far as it is read here: every object is held against its model before anything uses it.

The server may say more than a model has. An answer that makes no sense says nothing of a job, which may well live: it
is the driver's ConnectionError, so that the job's handle and hold stay.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from stages.command import ParityError
from stages.evidence.digests import bounded
from stages.platforms import Segment
from stages.platforms.on_nodus.client import get, unreachable
from stages.validation import Moment, Name, validate

Amount = Annotated[
    str, Field(pattern=r"^[0-9]{1,6}(\.[0-9]{1,24})?$", description='USD as text, such as "0.104", below a million')
]


class Answer(BaseModel):
    """Types are taken as they are, what nobody reads is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Metadata(Answer):
    name: Name
    created: Moment = Field(alias="creationTimestamp")
    namespace: Name | None = None


class Cost(Answer):
    total_usd: Amount | None = Field(default=None, alias="totalUSD")
    held_usd: Amount | None = Field(default=None, alias="heldUSD")
    final: bool | None = None
    segments: dict[str, Any] | None = Field(default=None, alias="bySegment")  # the receipt's are read as `Billed`


class Billed(Segment):
    usd: Amount


class JobSpec(Answer):
    resources: dict[str, Any] | None = None


class JobStatus(Answer):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    fix: str | None = None
    active: int | None = None
    cost: Cost | None = None


class Job(Answer):
    metadata: Metadata
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def cost(self) -> Cost:
        return self.status.cost or Cost()


class AttemptSpec(Answer):
    epoch: int


class Timings(Answer):
    started: Moment | None = Field(default=None, alias="commandStartedTime")
    finished: Moment | None = Field(default=None, alias="finishedTime")


class Actual(Answer):
    cost_usd: Amount | None = Field(default=None, alias="costUSD")


class AttemptStatus(Answer):
    phase: str | None = None
    reason: str | None = None
    exit_code: int | None = Field(default=None, alias="exitCode")
    timings: Timings | None = None
    actual: Actual | None = None


class Attempt(Answer):
    status: AttemptStatus | None = None


class Listed(Attempt):
    """One of several, which its epoch puts in order."""

    spec: AttemptSpec


class VolumeStatus(Answer):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    committed: Moment | None = Field(default=None, alias="lastCommitTime")


class Volume(Answer):
    status: VolumeStatus | None = None


class Refusal(Answer):
    code: str
    message: str | None = None


class Band(Answer):
    p50: Amount | None = None


class Estimate(Answer):
    refusals: list[Refusal] | None = Field(default=None, alias="blockingReasons")
    cost_usd: Band | None = Field(default=None, alias="costUSD")


class Event(Answer):
    type: str
    job: Job = Field(alias="object")


M = TypeVar("M", bound=BaseModel)


def read(model: type[M], value: object, what: str) -> M:
    try:
        return validate(model, bounded(value), what)
    except (ParityError, ValueError) as error:
        text = str(error) if isinstance(error, ParityError) else f"{what}: {error}"
        raise unreachable(f"an answer that makes no sense: {text}") from None


@contextlib.contextmanager
def parsed(what: str) -> Iterator[None]:
    """What the SDK lets out of the block where an answer is no JSON."""
    try:
        yield
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise unreachable(f"an answer that makes no sense: {what}: no JSON") from None


def listed(nodus: Any, kind: str, labels: dict[str, str]) -> list[Any]:
    with parsed(kind):
        found = nodus.api.list(kind, label_selector=labels)
    return list(found) if isinstance(found, list) else [found]


def job(nodus: Any, name: str) -> Job | None:
    """A Job as it is now; None where there is none."""
    with parsed(f"Job {name}"):
        found = get(nodus, "Job", name)
    return None if found is None else read(Job, found, f"Job {name}")


def jobs(nodus: Any, labels: dict[str, str]) -> list[Job]:
    """Every Job with these labels, oldest first."""
    found = [read(Job, value, "a Job") for value in listed(nodus, "Job", labels)]
    return sorted(found, key=lambda one: one.metadata.created)


def attempts(nodus: Any, name: str) -> list[Listed]:
    """A Job's attempts, oldest first."""
    found = listed(nodus, "Attempt", {"nodus.dev/job": name})
    return sorted((read(Listed, value, f"an attempt of Job {name}") for value in found), key=lambda one: one.spec.epoch)


def volume(nodus: Any, name: str) -> VolumeStatus:
    """How a Volume is now; without a word where there is none."""
    with parsed(f"Volume {name}"):
        found = get(nodus, "Volume", name)
    seen = Volume() if found is None else read(Volume, found, f"Volume {name}")
    return seen.status or VolumeStatus()
