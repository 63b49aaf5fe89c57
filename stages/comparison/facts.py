"""What should be the same on every side of a comparison: the machines, the packages, the code, the protocol."""

from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

from stages.comparison.machine import Share, cpus, memory, plain, size
from stages.comparison.records import Evidence
from stages.comparison.runs import TaskRun

Found = dict[str, str | None]  # parts by name; one that is None is not recorded


class Fact(NamedTuple):
    """`sentence` says that it is not the same, `name` what was not recorded where that is all there is to say."""

    item: str
    name: str
    sentence: str
    of: Callable[[Evidence], Found]


def one(get: Callable[[Evidence], object]) -> Callable[[Evidence], Found]:
    """A fact of a single part."""

    def found(evidence: Evidence) -> Found:
        value = get(evidence)
        return {"": None if value is None or value == "" else str(value)}

    return found


def share(of: Callable[[Evidence], Share], form: Callable[[Decimal], str]) -> Callable[[Evidence], Found]:
    return lambda evidence: {
        name: None if value is None else form(value) for name, value in of(evidence)._asdict().items()
    }


def gpu(key: str) -> Callable[[Evidence], object]:
    """A GPU's property; a job on a CPU has none, which is known."""

    def found(evidence: Evidence) -> object:
        if evidence.environment.gpu is None and evidence.device == "cpu":
            return "none"
        return getattr(evidence.environment.gpu, key, None)

    return found


def gpu_memory(evidence: Evidence) -> object:
    found = gpu("memory_bytes")(evidence)
    return size(found) if isinstance(found, int) else found


def cache(evidence: Evidence) -> object:
    """`warm` or `cold`; None where the platform does not tell."""
    return evidence.receipt.resources.get("cache") if evidence.receipt else None


def clock(evidence: Evidence) -> Found:
    return {"": evidence.timings.delivery_clock, "covers": ", ".join(evidence.covered)}


def versions(evidence: Evidence) -> Found:
    return dict(sorted(evidence.environment.versions.items()))


def protocol(key: str) -> Callable[[Evidence], Found]:
    return one(lambda evidence: getattr(evidence.protocol, key))


FACTS = (
    Fact("cpu_limits", "the CPUs", "The CPUs asked for or usable differ.", share(cpus, plain)),
    Fact("memory_limits", "the memory", "The memory asked for or usable differs.", share(memory, size)),
    Fact("device", "the kind of device", "Training ran on different kinds of device.", one(lambda e: e.device)),
    Fact("gpu", "the GPU model", "The GPU models differ.", one(gpu("name"))),
    Fact("gpu_memory", "the GPU memory", "The GPUs report different amounts of memory.", one(gpu_memory)),
    Fact("gpu_driver", "the GPU driver", "The GPU drivers differ.", one(gpu("driver"))),
    Fact("versions", "every package", "The packages that ran differ in version.", versions),
    Fact("cache", "whether a cache was warm", "The caches were not equally warm.", one(cache)),
    Fact("worker_code", "the code that ran", "The jobs ran different code.", one(lambda e: e.job.code)),
    Fact("delivery_clock", "the delivery clock", "The delivery times are bounded by different events.", clock),
    Fact("protocol", "the protocol", "The runs followed different protocols.", protocol("name")),
    Fact(
        "protocol_content",
        "the protocol's digest",
        "The protocols differ in content.",
        protocol("sha256"),
    ),
)


class Spread(NamedTuple):
    """How a fact came out over some runs."""

    differs: bool
    complete: bool  # every part is recorded of every run, or of none


def spread(found: list[Found]) -> Spread:
    keys = {key for each in found for key in each}
    values = [{each.get(key) for each in found} for key in keys]
    return Spread(any(len(v - {None}) > 1 for v in values), not any(None in v and len(v) > 1 for v in values))


def text(found: Found, missing: str) -> str:
    parts = [f"{name} {value}".strip() for name, value in found.items() if value is not None]
    return ", ".join(parts) or missing


def evidenced(runs: list[TaskRun]) -> list[Evidence]:
    return [run.training for run in runs if run.training]
