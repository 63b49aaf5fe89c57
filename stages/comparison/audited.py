"""A run under audit: its documents as they were written, its files, and the lines that an audit is made of."""

from functools import cached_property
from typing import Any, Literal, NamedTuple

from stages import layout
from stages.command import TASKS, ParityError, Task
from stages.comparison.artifacts import Artifact, artifacts
from stages.comparison.records import STAGES
from stages.comparison.revisions import Files
from stages.comparison.runs import parse_protocol
from stages.evidence.digests import parse_json, sha256_file
from stages.protocol import Protocol

Outcome = Literal["recomputed and equal", "differs", "cannot be recomputed here"]


class Line(NamedTuple):
    """One line of an audit: what was checked, how it came out, and both values or the reason."""

    what: str
    outcome: Outcome
    recorded: str = ""
    recomputed: str = ""


def same(what: str, recorded: Any, recomputed: Any) -> Line:
    return Line(what, "recomputed and equal" if recorded == recomputed else "differs", str(recorded), str(recomputed))


def unknown(what: str, why: str) -> Line:
    return Line(what, "cannot be recomputed here", recomputed=why)


class Audited:
    """A run's documents as they were written, and its files."""

    def __init__(self, name: str, files: Files):
        self.name, self.files = name, files
        self.broken: list[Line] = []

    def json(self, path: str) -> Any:
        """A document; None where there is none or where it does not parse, which is a difference."""
        try:
            content = self.files.read(path)
            return parse_json(content) if content is not None else None
        except (ParityError, ValueError) as error:
            self.broken.append(Line(path, "differs", "a JSON document", str(error)))
            return None

    @cached_property
    def evidence(self) -> dict[tuple[Task, str], Any]:
        paths = {(task, stage): layout.evidence(task, stage).as_posix() for task in TASKS for stage in STAGES}
        return {key: found for key, path in paths.items() if (found := self.json(path))}

    @cached_property
    def metrics(self) -> dict[tuple[Task, str], Any]:
        paths = {(task, stage): layout.metrics(task, stage).as_posix() for task in TASKS for stage in (*STAGES, "gate")}
        return {key: found for key, path in paths.items() if (found := self.json(path))}

    @cached_property
    def artifacts(self) -> dict[str, Artifact]:
        try:
            return {artifact.path: artifact for artifact in artifacts(self.files)}
        except ParityError:
            return {}

    @cached_property
    def protocol(self) -> Protocol | None:
        name = next((found["protocol"]["name"] for found in self.evidence.values()), None)
        content = self.files.read(f"protocols/{name}.yaml") if name else None
        return parse_protocol(content) if content else None

    def digest(self, what: str, path: str, recorded: str | None) -> Line:
        """A file's SHA-256 against what is recorded of it."""
        artifact = self.artifacts.get(path)
        if recorded is None:
            return unknown(what, "no digest is recorded")
        if artifact is None or artifact.found is None:
            return unknown(what, f"{path} is neither in the DVC cache nor in the workspace")
        return same(what, recorded, sha256_file(artifact.found))
