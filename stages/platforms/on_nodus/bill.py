"""What a Job cost and how its attempts ended: the API's objects as a receipt."""

import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from stages.command import ParityError
from stages.platforms import Attempt, Receipt, Segment
from stages.platforms.on_nodus import answers
from stages.platforms.on_nodus.client import AGAIN, explained, first_line, unhealthy
from stages.platforms.on_nodus.follow import TERMINAL
from stages.validation import plain

SEGMENTS = ("boot", "running", "restore", "teardown")
ENDED = ("succeeded", "failed", "cancelled", "preempted", "lost")  # outcomes of an attempt that is over
OUTCOMES = {"Preempted": "preempted", "NodeLost": "lost"}
POLL_SECONDS = (0.1, 5.0)  # from the first to the last, doubled each time
# What a failed Job's reason means; `{}` is its exit code.
ENDINGS = {
    "CustomerExit": "the worker ended with exit code {}; its message stands above",
    "OOMKilled": "the worker was killed for using more memory than the machine has; raise resources.memory_gib",
    "OutOfMemory": "the worker was killed for using more memory than the machine has; raise resources.memory_gib",
    "DeadlineExceeded": "it ran into its time limit; raise nodus.timeout in params.yaml",
    "MaxCostReached": "it reached its cap and was cancelled; raise campaign.cap_usd in params.yaml",
    "Unfunded": "the account ran out of credits, and it was cancelled; add credits on Nodus",
    "Preempted": "its machine was taken away, on every attempt that Nodus grants; " + AGAIN,
    "NodeLost": "its machine was lost, on every attempt that Nodus grants; " + AGAIN,
    "Stopped": "it was cancelled on Nodus; " + AGAIN + " to submit it anew",
}


def segments(cost: answers.Cost) -> dict[str, Segment]:
    """Seconds and USD by segment; Nodus leaves out a segment that had none."""
    found = cost.segments or {}
    made = {
        n: {"seconds": found.get(f"{n}Seconds", 0), "usd": found[f"{n}USD"]} for n in SEGMENTS if f"{n}USD" in found
    }
    return {name: answers.read(answers.Billed, part, f"the bill's segment {name}") for name, part in made.items()}


def attempt(value: object) -> Attempt:
    status = answers.read(answers.Attempt, value, "an attempt").status or answers.AttemptStatus()
    timings, actual = status.timings or answers.Timings(), status.actual or answers.Actual()
    return Attempt(
        outcome=OUTCOMES.get(status.reason or "", (status.phase or "Queued").lower()),
        reason=status.reason,
        started_utc=timings.started,
        ended_utc=timings.finished,
        charge_usd=actual.cost_usd,
    )


def attempts(nodus: Any, job: answers.Job) -> list[Attempt]:
    """A Job's attempts, oldest first; a Job that never got a machine is an attempt without one."""
    found = [attempt(one) for one in answers.attempts(nodus, job.name)]
    return found or [Attempt(outcome=(job.status.phase or "Queued").lower(), reason=job.status.reason)]


def settled(nodus: Any, name: str, seconds: float) -> answers.Job:
    """The Job once its charge is final, or as it is after `seconds`."""
    until, pause = time.monotonic() + seconds, POLL_SECONDS[0]
    while True:
        job = answers.job(nodus, name)
        if job is None:
            raise ParityError(f"nodus: Job {name} is gone, and its receipt with it")
        if job.cost.final or time.monotonic() > until:
            return job
        time.sleep(pause)
        pause = min(2 * pause, POLL_SECONDS[1])


def clean(job: answers.Job, found: Sequence[Attempt]) -> bool:
    """Whether nothing of the Job runs on and nothing is held for it."""
    held = Decimal(job.cost.held_usd or 0)
    live = [one for one in found if one.outcome not in ENDED]
    return job.status.phase in TERMINAL and not job.status.active and not live and not held


def receipt(nodus: Any, name: str, tries: Callable[[], Sequence[answers.Job]], wait: float) -> Receipt:
    """Of the Job `name`. `tries` are all Jobs of the same job: the attempts of earlier ones stand on the record too."""
    if problem := unhealthy(nodus):  # asked once: after Ctrl-C nobody waits for five minutes of retries
        raise ParityError(f"nodus: the receipt of Job {name} cannot be read: {problem}; {AGAIN}")
    with explained(nodus, f"reading the receipt of Job {name}"):
        job = settled(nodus, name, wait)
        own = attempts(nodus, job)
        others = [other for other in tries() if other.name != name]
        earlier = [one for other in others for one in attempts(nodus, other)]
    costs = [one.cost for one in (*others, job)]
    charges = [Decimal(cost.total_usd) for cost in costs if cost.total_usd is not None]
    return Receipt(
        platform="nodus",
        attempts=[*earlier, *own],
        charge_usd=plain(sum(charges, Decimal(0))) if charges else None,
        final=all(cost.final for cost in costs),
        segments=segments(costs[-1]),
        resources=dict(job.spec.resources or {}),
        clean=clean(job, own),
    )


def ended_badly(nodus: Any, job: answers.Job) -> str:
    """The line for a Job that did not succeed: why, what to do, and what it cost so far."""
    status, found = job.status, answers.attempts(nodus, job.name)
    reason = status.reason or status.phase
    codes = [one.status.exit_code for one in found if one.status and one.status.exit_code is not None]
    text = ENDINGS.get(reason or "", first_line(status.message or status.fix))
    charge = job.cost.total_usd
    spent = f" ({len(found)} attempts, {charge} USD so far)" if charge else ""
    said = text.replace("{}", str(codes[-1] if codes else "unknown"))
    return f"nodus: Job {job.name}: {first_line(reason)}{spent}: {said}"
