"""A run as its metrics and evidence tell it. What cannot be read is a problem of the run, said in one line each."""

import csv
import hashlib
import io
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from stages import layout
from stages.command import TASKS, ParityError, Task
from stages.comparison.charges import Booked, Charge, charge
from stages.comparison.records import STAGES, VERSION, Evidence, Gates, Metrics
from stages.comparison.revisions import PUBLISHED, WORKSPACE, Files, Objects, locate
from stages.evidence.digests import bounded, parse_json, sha256_json
from stages.evidence.ledger import Account, Entry
from stages.platforms import Attempt, Receipt
from stages.protocol import Protocol
from stages.validation import parse_yaml, validate

CAMPAIGN = "metrics/campaign.json"

M = TypeVar("M", bound=BaseModel)


class Share(NamedTuple):
    """A campaign's attempt that no receipt lists, and how many runs stand behind it."""

    entry: Entry
    runs: int


@dataclass(frozen=True)
class TaskRun:
    """One task of a run: metrics and evidence by stage, as far as they are there."""

    task: Task
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    loss: tuple[tuple[float, float], ...] = ()
    beside: tuple[Share, ...] = ()  # the campaign's attempts that no receipt lists
    booked: dict[str, Booked] = field(default_factory=dict)  # by stage

    def number(self, stage: str, key: str) -> float | None:
        found = self.metrics.get(stage, {}).get(key)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    @property
    def training(self) -> Evidence | None:
        return self.evidence.get("train")

    @property
    def seed(self) -> int | None:
        return self.training.job.training.seed if self.training and self.training.job.training else None

    @property
    def repeat(self) -> int | None:
        return self.training.job.repeat if self.training else None

    @property
    def receipts(self) -> list[Receipt]:
        return [evidence.receipt for evidence in self.evidence.values() if evidence.receipt]

    @property
    def attempts(self) -> list[Attempt]:
        """Those that receipts list."""
        return [attempt for receipt in self.receipts for attempt in receipt.attempts]

    @property
    def covered(self) -> set[str]:
        return {stage for evidence in self.evidence.values() for stage in evidence.covered}

    @property
    def inputs(self) -> dict[str, str]:
        return {name: digest for evidence in self.evidence.values() for name, digest in evidence.job.inputs.items()}

    @cached_property
    def charge(self) -> Charge:
        return charge(self.evidence, self.booked)


@dataclass(frozen=True)
class Run:
    """Everything that is known at one name."""

    name: str
    platform: str | None
    published: bool
    rehearsal: bool
    protocol: Protocol | None  # as it stands at the revision; the evidence says what was run
    tasks: dict[Task, TaskRun]
    account: Account | None
    problems: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)  # path -> SHA-256 of every file that was read

    @cached_property
    def evidence(self) -> list[Evidence]:
        return [evidence for task in self.tasks.values() for evidence in task.evidence.values()]

    @property
    def protocol_name(self) -> str | None:
        return next((evidence.protocol.name for evidence in self.evidence), None)

    @property
    def protocol_sha256(self) -> str | None:
        return next((evidence.protocol.sha256 for evidence in self.evidence), None)


class Reader:
    """Reads one run; collects what is wrong instead of stopping at it."""

    def __init__(self, name: str, files: Files):
        self.name, self.files = name, files
        self.problems: list[str] = []
        self.sources: dict[str, str] = {}

    def content(self, path: str) -> bytes | None:
        try:
            return self.files.read(path)
        except ParityError as error:  # it is too large to be one of ours
            self.problems.append(str(error))
            return None

    def json(self, path: str) -> Any:
        content = self.content(path)
        if content is None:
            return None
        self.sources[path] = hashlib.sha256(content).hexdigest()
        try:
            return parse_json(content)
        except ValueError as error:
            self.problems.append(f"{path}: not valid JSON: {error}")
            return None

    def model(self, model: type[M], path: str, version: int | None = None) -> M | None:
        """A document; one of a newer version than this program knows is left unread, and that is said."""
        data = self.json(path)
        if data is None:
            return None
        found = data.get("version") if isinstance(data, dict) else None
        if version is not None and isinstance(found, int) and found > version:
            known = f"this program reads version {version}"
            self.problems.append(f"{path}: version {found}, {known}; left out, update the project to read it")
            return None
        try:
            return validate(model, data, path)
        except ParityError as error:
            self.problems.append(str(error))
            return None

    def task(self, task: Task) -> TaskRun | None:
        metrics = {stage: self.model(Metrics, layout.metrics(task, stage).as_posix()) for stage in STAGES}
        present: dict[str, dict[str, Any]] = {stage: found.root for stage, found in metrics.items() if found}
        if gate := self.model(Gates, layout.metrics(task, "gate").as_posix()):
            present["gate"] = gate.model_dump()
        if not present:
            self.problems.append(f"no metrics of {task}")
            return None
        for stage in STAGES:
            if stage not in present:
                self.problems.append(f"{task}: no metrics of {stage}")
        paths = {stage: layout.evidence(task, stage).as_posix() for stage in STAGES}
        records = {stage: self.model(Evidence, path, VERSION) for stage, path in paths.items()}
        evidence = {stage: found for stage, found in records.items() if found}
        if not evidence:
            self.problems.append(f"{task}: no evidence that can be read")
        return TaskRun(task, present, evidence, self.loss(task))

    def loss(self, task: Task) -> tuple[tuple[float, float], ...]:
        path = layout.loss_curve(task).as_posix()
        content = self.content(path)
        if content is None:
            return ()
        try:
            rows = csv.DictReader(io.StringIO(content.decode()))
            return bounded(tuple((float(row["step"]), float(row["loss"])) for row in rows if row["loss"]))  # type: ignore[no-any-return]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            self.problems.append(f"{path}: no loss curve: {error!r:.200}")
            return ()

    def protocol(self, name: str | None) -> Protocol | None:
        content = self.content(f"protocols/{name}.yaml") if name else None
        if name and content is None:
            self.problems.append(f"protocols/{name}.yaml: not there, so its gates cannot be held against the run")
        try:
            return parse_protocol(content) if content else None
        except ParityError as error:
            self.problems.append(str(error))
            return None

    def run(self) -> Run:
        tasks = {task: found for task in TASKS if (found := self.task(task))}
        evidence = [record for found in tasks.values() for record in found.evidence.values()]
        if len(platforms := sorted({record.receipt.platform for record in evidence if record.receipt})) > 1:
            self.problems.append(f"its stages ran on {' and '.join(platforms)}; taken as one of the first")
        return Run(
            name="workspace" if self.name == WORKSPACE else self.name,
            platform=platforms[0] if platforms else None,
            published=self.name.startswith(PUBLISHED),
            rehearsal=any(record.rehearsal for record in evidence),
            protocol=self.protocol(evidence[0].protocol.name if evidence else None),
            tasks=tasks,
            account=self.model(Account, CAMPAIGN, 1),
            problems=tuple(self.problems),
            sources=self.sources,
        )


@lru_cache(maxsize=64)
def parse_protocol(content: bytes) -> Protocol:
    """A protocol's text, as it was at some revision; runs of the same protocol share one."""
    return validate(Protocol, parse_yaml(content, "protocol"), "protocol")


def protocol_digest(protocol: Protocol) -> str:
    return sha256_json(protocol.model_dump(mode="json", by_alias=True))


def read_runs(names: list[str]) -> list[Run]:
    """The runs of these names; raises ParityError where a name is nothing or no run has any metrics."""
    with Objects() as objects:
        places = locate(list(dict.fromkeys(names)), objects)
        runs = [Reader(name, files).run() for name, files in places.items()]
    if not any(run.tasks for run in runs):
        raise ParityError(f"{', '.join(names)}: no metrics; run `dvc repro` or `dvc exp run` there first")
    return runs


def moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
