"""This machine: a worker in a process of its own, which dies with the process that waits for it.

Nothing runs on in the background, so waiting is running: after a kill, the same command starts a new worker, which
resumes from the last checkpoint.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from stages.command import ParityError, die_with_parent
from stages.evidence.bounds import read_bytes
from stages.evidence.digests import canonical, parse_document, read_lines, whole
from stages.jobs import MANIFEST, PROJECT, Job
from stages.platforms import Attempt, Context, Handle, Receipt, now
from stages.platforms.common.process import stop
from stages.validation import Frozen, Moment, validate

ATTEMPTS = "attempts.jsonl"


class Settings(Frozen):
    device: Literal["auto", "cpu", "cuda"] = "auto"


class Event(Frozen):
    at: Moment
    event: Literal["started", "ended"]
    status: int | None = None


class Platform:
    paid = False

    def __init__(self, settings: Settings, context: Context):
        self.settings, self.mirror = settings, context.mirror

    def estimate(self, job: Job) -> None:
        return None

    def submit(self, job: Job, folder: Path) -> dict[str, Any]:
        return {}

    def wait(self, handle: Handle, folder: Path) -> None:
        if (folder / "out" / MANIFEST).is_file():
            return
        note(folder, event="started")
        status = self.work(folder)
        note(folder, event="ended", status=status)
        if status:
            raise ParityError(ended_badly(status, folder))

    def work(self, folder: Path) -> int:
        """Run the worker to its end; its output goes to this process's own. After an error here it is gone too."""
        command = [sys.executable, "-m", "stages.worker", str(folder / "job"), str(folder / "out")]
        command += ["--state", str(folder / "state"), "--device", self.settings.device]
        environment = os.environ | {"PYTHONPATH": str(PROJECT)}
        if self.mirror:
            environment["PARITY_MIRROR"] = str(self.mirror.resolve())
        worker = subprocess.Popen(command, env=environment, text=True, preexec_fn=die_with_parent)
        try:
            return worker.wait()
        except BaseException:
            stop(worker)
            raise

    def fetch(self, handle: Handle, folder: Path, out: Path) -> None:
        """The worker wrote to `out` itself."""

    def receipt(self, handle: Handle, folder: Path) -> Receipt:
        return Receipt(platform="local", attempts=attempts(events(folder / ATTEMPTS)), charge_usd=None, final=True)


def events(path: Path) -> Iterator[Event]:
    """The job's record of attempts. A line that a kill cut short says nothing, and stops nothing."""
    for number, line in enumerate(read_lines(path) if path.is_file() else (), 1):
        where = f"{path}:{number}"
        try:
            yield validate(Event, parse_document(line, where), where)
        except ParityError as error:
            print(f"passing over a line: {error}", flush=True)


def attempts(found: Iterable[Event]) -> list[Attempt]:
    """Started and ended events as attempts; one that started and never ended was killed."""
    made: list[Attempt] = []
    for event in found:
        if event.event == "started":
            made.append(Attempt(outcome="killed", started_utc=event.at))
        elif made:
            outcome = "failed" if event.status else "succeeded"
            made[-1] = made[-1].model_copy(update={"outcome": outcome, "ended_utc": event.at})
    return made


def note(folder: Path, **event: Any) -> None:
    """Put an event on the job's record of attempts."""
    path = folder / ATTEMPTS
    before = read_bytes(path) if path.is_file() else b""
    with whole(path) as stream:
        stream.write(before + canonical({"at": now(), **event}) + b"\n")


def ended_badly(status: int, folder: Path) -> str:
    what = f"ended with exit code {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"
    hint = " (out of memory?)" if -status == signal.SIGKILL else "; its message stands above"
    return f"the worker {what}{hint}. Run the same command again to resume; its state is in {folder}"
