"""What a Job cost and how its attempts ended: the API's objects as a receipt."""

import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from stages.command import ParityError
from stages.platforms import Attempt, Receipt, Segment
from stages.platforms.on_nodus.client import AGAIN, explained, first_line, get, unhealthy
from stages.platforms.on_nodus.follow import TERMINAL
from stages.validation import plain, validate

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


def segments(cost: Mapping[str, Any]) -> dict[str, Segment]:
    """Seconds and USD by segment; Nodus leaves out a segment that had none."""
    found = cost.get("bySegment") or {}
    made = {
        n: {"seconds": found.get(f"{n}Seconds", 0), "usd": found[f"{n}USD"]} for n in SEGMENTS if f"{n}USD" in found
    }
    return {name: validate(Segment, part, f"nodus: the bill's segment {name}") for name, part in made.items()}


def attempt(value: Mapping[str, Any]) -> Attempt:
    status = value.get("status") or {}
    phase: str = status.get("phase", "Queued")
    reason: str | None = status.get("reason")
    timings = status.get("timings") or {}
    found = {
        "outcome": OUTCOMES.get(reason or "", phase.lower()),
        "reason": reason,
        "started_utc": timings.get("commandStartedTime"),
        "ended_utc": timings.get("finishedTime"),
        "charge_usd": (status.get("actual") or {}).get("costUSD"),
    }
    return validate(Attempt, found, "nodus: an attempt's record")


def attempts(nodus: Any, job: Mapping[str, Any]) -> list[Attempt]:
    """A Job's attempts, oldest first; a Job that never got a machine is an attempt without one."""
    meta = job["metadata"]
    found = nodus.api.list("Attempt", label_selector={"nodus.dev/job": meta["name"]})
    if found:
        return [attempt(value) for value in sorted(found, key=lambda value: value["spec"]["epoch"])]
    status = job["status"]
    return [Attempt(outcome=status.get("phase", "Queued").lower(), reason=status.get("reason"))]


def settled(nodus: Any, name: str, seconds: float) -> Mapping[str, Any]:
    """The Job once its charge is final, or as it is after `seconds`."""
    until, pause = time.monotonic() + seconds, POLL_SECONDS[0]
    while True:
        job = get(nodus, "Job", name)
        if job is None:
            raise ParityError(f"nodus: Job {name} is gone, and its receipt with it")
        if (job["status"].get("cost") or {}).get("final") or time.monotonic() > until:
            return job
        time.sleep(pause)
        pause = min(2 * pause, POLL_SECONDS[1])


def clean(job: Mapping[str, Any], found: Sequence[Attempt]) -> bool:
    """Whether nothing of the Job runs on and nothing is held for it."""
    status = job["status"]
    held = Decimal((status.get("cost") or {}).get("heldUSD") or "0")
    live = [one for one in found if one.outcome not in ENDED]
    return status.get("phase") in TERMINAL and not status.get("active") and not live and not held


def receipt(nodus: Any, name: str, tries: Callable[[], Sequence[Mapping[str, Any]]], wait: float) -> Receipt:
    """Of the Job `name`. `tries` are all Jobs of the same job: the attempts of earlier ones stand on the record too."""
    if problem := unhealthy(nodus):  # asked once: after Ctrl-C nobody waits for five minutes of retries
        raise ParityError(f"nodus: the receipt of Job {name} cannot be read: {problem}; {AGAIN}")
    with explained(nodus, f"reading the receipt of Job {name}"):
        job = settled(nodus, name, wait)
        own = attempts(nodus, job)
        others = [other for other in tries() if other["metadata"]["name"] != name]
        earlier = [one for other in others for one in attempts(nodus, other)]
    costs = [one["status"].get("cost") or {} for one in (*others, job)]
    charges = [Decimal(cost["totalUSD"]) for cost in costs if "totalUSD" in cost]
    return Receipt(
        platform="nodus",
        attempts=[*earlier, *own],
        charge_usd=plain(sum(charges, Decimal(0))) if charges else None,
        final=all(cost.get("final") for cost in costs),
        segments=segments(costs[-1]),
        resources=dict(job["spec"].get("resources") or {}),
        clean=clean(job, own),
    )


def ended_badly(nodus: Any, job: Mapping[str, Any]) -> str:
    """The line for a Job that did not succeed: why, what to do, and what it cost so far."""
    name, status = job["metadata"]["name"], job["status"]
    reason = status.get("reason") or status.get("phase")
    values = nodus.api.list("Attempt", label_selector={"nodus.dev/job": name})
    codes = [value["status"]["exitCode"] for value in values if "exitCode" in (value.get("status") or {})]
    text = ENDINGS.get(reason, first_line(status.get("message") or status.get("fix")))
    charge = (status.get("cost") or {}).get("totalUSD")
    spent = f" ({len(values)} attempts, {charge} USD so far)" if charge else ""
    return f"nodus: Job {name}: {reason}{spent}: {text.replace('{}', str(codes[-1] if codes else 'unknown'))}"
