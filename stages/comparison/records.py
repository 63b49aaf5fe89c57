"""What a run's evidence says, in version 1. Keys that this reader does not know are left alone; missing is None."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, StrictBool, StrictFloat, StrictInt

from stages.command import Task
from stages.jobs import Entry
from stages.platforms import Receipt
from stages.validation import Moment, Seconds

VERSION = 1
STAGES = ("baseline", "train", "evaluate")


class Metrics(RootModel[dict[str, StrictInt | StrictFloat]]):
    """A stage's metrics file."""


class Judgement(BaseModel):
    """One gate's verdict as the stage `gate` wrote it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: StrictInt | StrictFloat
    threshold: StrictInt | StrictFloat
    passed: StrictBool


class Gates(RootModel[dict[str, Judgement]]):
    """A task's gate file."""


class Known(BaseModel):
    """A part of the evidence as far as it is known here."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ProtocolName(Known):
    name: str
    sha256: str | None


class Model(Known):
    id: str
    revision: str
    sha256: dict[str, str] = Field(default_factory=dict)


class Training(Known):
    recipe: dict[str, Any]
    seed: int


class Execution(Known):
    training_dtype: str
    evaluation_dtype: str
    attention: str
    tf32: bool


class Job(Known):
    id: str | None = None
    code: str | None = None
    kind: Literal["train", "score"]
    task: Task
    stack: dict[str, str]
    resources: dict[str, Any]
    execution: Execution
    model: Model
    inputs: dict[str, str]
    repeat: int = 1
    training: Training | None = None


class Gpu(Known):
    name: str
    memory_bytes: int | None = None
    count: int | None = None
    driver: str | None = None
    cuda: str | None = None


class Cpu(Known):
    model: str | None = None
    visible: int | None = None
    affinity: int | None = None
    cgroup_limit: float | None = None
    effective: float | None = None


class Memory(Known):
    total_bytes: int | None = None
    cgroup_limit_bytes: int | None = None


class Environment(Known):
    python: str | None = None
    system: str | None = None
    versions: dict[str, str]
    gpu: Gpu | None = None
    cpu: Cpu | None = None
    memory: Memory | None = None


class Timings(Known):
    submitted_utc: Moment | None = None
    worker_started_utc: Moment | None = None
    worker_finished_utc: Moment | None = None
    verified_utc: Moment | None = None
    worker_seconds: Seconds | None = None
    delivery_seconds: Seconds | None = None
    delivery_clock: str | None = None


class Evidence(Known):
    """One stage's evidence. `covers` names the stages that its one job did; no receipt where another's covers it."""

    version: Literal[1]
    stage: str
    covers: tuple[str, ...] = ()
    protocol: ProtocolName
    commit: str | None = None
    dirty: bool | None = None
    rehearsal: bool = False
    job: Job
    device: str
    environment: Environment
    loaded_weights_sha256: str | None = None
    training_tokens_sha256: str | None = None
    model_weights_sha256: str | None = None
    output: dict[str, Entry] = Field(default_factory=dict)
    timings: Timings
    receipt: Receipt | None

    @property
    def covered(self) -> tuple[str, ...]:
        return self.covers or (self.stage,)
