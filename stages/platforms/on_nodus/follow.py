"""Following a Job to its end: its phases by the SDK's watch, its log beside it, and cancelling it."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from stages.command import ParityError
from stages.platforms.common.progress import Echo
from stages.platforms.common.shield import shielded
from stages.platforms.on_nodus import answers
from stages.platforms.on_nodus.answers import job as current
from stages.platforms.on_nodus.client import AGAIN, described, unhealthy, unreachable

TERMINAL = ("Succeeded", "Failed", "Cancelled")
OVER = (*TERMINAL, "Suspended")  # a Job at its cap is suspended, and would stay so
AWAY_SECONDS = 3600.0  # the Job's own timeout and cap bound what it does meanwhile
CANCEL_SECONDS = 60.0
TAIL_SECONDS = 15.0
EVENTS = "nodus.event "  # the SDK's telemetry, where it has no socket for it


def follow(nodus: Any, name: str) -> answers.Job:
    """The Job once it is over. Its log is shown line by line, each once, however often the stream breaks."""
    over = threading.Event()
    with Echo() as echo:
        reader = threading.Thread(target=read_log, args=(nodus, name, echo, over), daemon=True)
        reader.start()
        try:
            job = watch(nodus, name, echo)
        finally:
            over.set()
        # A suspended Job's log has no end.
        reader.join(TAIL_SECONDS if job.status.phase in TERMINAL else 1)
        return job


def watch(nodus: Any, name: str, show: Callable[[str], None]) -> answers.Job:
    """Wait for the Job's end through closed streams, expired versions and a server that is away for a while."""
    lost: float | None = None
    phase = ""
    while True:
        try:
            if current(nodus, name) is None:
                raise ParityError(f"nodus: Job {name} is gone; {AGAIN} to submit it anew")
            for event in events(nodus, name):
                lost = None
                if event.type == "DELETED":
                    raise ParityError(f"nodus: Job {name} was deleted while it ran; {AGAIN} to submit it anew")
                if (now := event.job.status.phase or "") != phase:
                    show(f"nodus: Job {name}: {now}")
                    phase = now
                if phase in OVER:
                    return event.job
        except nodus.errors.NodusError as error:
            lost = lost or time.monotonic()
            if not error.retryable:
                raise ParityError(f"nodus: waiting for Job {name}: {described(error)}") from None
            if time.monotonic() - lost > AWAY_SECONDS:
                raise unreachable(f"waiting for Job {name}: {described(error)}") from None
            show("nodus: the server does not answer; the Job runs on, still waiting")


def events(nodus: Any, name: str) -> Iterator[answers.Event]:
    with answers.parsed(f"the watch of Job {name}"):
        for event in nodus.api.watch("Job", field_selector={"metadata.name": name}):
            yield answers.read(answers.Event, event, f"the watch of Job {name}")


def read_log(nodus: Any, name: str, show: Callable[[str], None], over: threading.Event) -> None:
    """Show the log until the Job is over and a stream has come to its end in order.

    A stream starts from the log's first line whenever it is opened, so lines are counted, and those shown passed over.
    """
    import httpx

    shown = 0
    while True:
        last = over.is_set()
        try:
            for number, line in enumerate(nodus.api.logs("Job", name, follow=True)):
                if number >= shown:
                    shown += 1
                    if not line.startswith(EVENTS):
                        show(line.rstrip("\n"))
            if last:
                return
        except (nodus.errors.NodusError, httpx.HTTPError, httpx.StreamError):
            pass
        over.wait(0.5)


def cancel(nodus: Any, name: str) -> str | None:
    """Cancel the Job and see it end; returns what to tell the user where that could not be seen.

    It is not to be broken off, and takes a minute at most.
    """
    until = time.monotonic() + CANCEL_SECONDS
    with shielded():
        while (problem := unhealthy(nodus)) and time.monotonic() < until:
            time.sleep(1)
        if problem:
            return f"Job {name} could not be cancelled ({problem}); cancel it on Nodus, or {AGAIN} to take it up"
        try:
            job = current(nodus, name)
            if job is not None and job.status.phase not in TERMINAL:
                nodus.api.patch("Job", name, {"spec": {"state": "Cancelled"}})
            while job is not None and job.status.phase not in TERMINAL:
                if time.monotonic() > until:
                    return f"Job {name} was told to stop and has not yet; see `nodus get jobs`"
                time.sleep(0.2)
                job = current(nodus, name)
        except nodus.errors.NodusError as error:
            return f"Job {name} could not be cancelled: {described(error)}"
        except ConnectionError as error:
            return f"Job {name} may not be cancelled: {error.strerror}"
    return None
