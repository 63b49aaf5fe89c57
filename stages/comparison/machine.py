"""What a job asked of a machine and what it could use of it, in one form for every platform's way of saying so."""

import re
from decimal import Decimal
from typing import Any, NamedTuple

from stages.comparison.records import Evidence

# Names that receipts use. Modal is given `cpus` and `memory_gib` as request and as limit in one.
CPU_REQUEST = ("cpu", "cpus", "cpu_request", "cpu_minimum")
CPU_LIMIT = ("cpu_limit", "cpus")
MEMORY_REQUEST = ("memory", "memory_gib", "memory_request_mib", "memory_minimum_gib")
MEMORY_LIMIT = ("memory_limit_mib", "memory_gib")

QUANTITY = re.compile(r"(\d{1,7}(?:\.\d{1,6})?)(m|[KMGT]i)?")  # a longer number counts something else
FACTORS: dict[str, Decimal | int] = {"m": Decimal("0.001"), "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
SUFFIXES = {"_gib": 2**30, "_mib": 2**20}


class Share(NamedTuple):
    """Of CPUs or of bytes: what was asked for, and the least of what is known to have bounded the job."""

    request: Decimal | None
    limit: Decimal | None


def quantity(name: str, value: Any) -> Decimal | None:
    """A receipt's amount in units or bytes: 4, "4", "4000m", "48Gi", or 48 under a name that ends in its unit."""
    found = QUANTITY.fullmatch(str(value)) if not isinstance(value, bool) else None
    if found is None:
        return None
    by_name = next((factor for end, factor in SUFFIXES.items() if name.endswith(end)), 1)
    return Decimal(found[1]) * (FACTORS[found[2]] if found[2] else by_name)


def told(evidence: Evidence, names: tuple[str, ...]) -> Decimal | None:
    known = evidence.receipt.resources if evidence.receipt else {}
    return next((found for name in names if (found := quantity(name, known.get(name))) is not None), None)


def least(*values: float | Decimal | None) -> Decimal | None:
    return min((Decimal(str(value)) for value in values if value), default=None)


def cpus(evidence: Evidence) -> Share:
    """A platform's limit may not show inside; where it set none, the worker saw what it could use."""
    seen, limit = evidence.environment.cpu, told(evidence, CPU_LIMIT)
    within = (seen.cgroup_limit, seen.affinity, seen.effective) if seen else ()
    return Share(told(evidence, CPU_REQUEST), least(limit, *within))


def memory(evidence: Evidence) -> Share:
    seen, limit = evidence.environment.memory, told(evidence, MEMORY_LIMIT)
    within = (seen.cgroup_limit_bytes, seen.total_bytes) if seen else ()
    return Share(told(evidence, MEMORY_REQUEST), least(limit, *within))


def plain(value: Decimal) -> str:
    return format(value.normalize(), "f")


def size(value: Decimal | int) -> str:
    """Bytes in GiB where that is a whole number, else in MiB with every digit: what differs has to look different."""
    return f"{value // 2**30} GiB" if value % 2**30 == 0 else f"{plain(Decimal(value) / 2**20)} MiB"


def unrecorded_machine(evidence: Evidence) -> list[str]:
    """What has to be known of a machine before it can be called equal to another, and is not."""
    gpu = evidence.environment.gpu
    facts: dict[str, object] = {"CPU limit": cpus(evidence).limit, "memory limit": memory(evidence).limit}
    if evidence.device != "cpu":
        facts |= {"GPU": gpu, "GPU memory": gpu and gpu.memory_bytes, "GPU driver": gpu and gpu.driver}
    return [name for name, value in facts.items() if not value]


def unrecorded_work(evidence: Evidence) -> list[str]:
    """The same of what ran there, and when: without it nobody can tell what came first or overlapped."""
    times = evidence.timings
    facts = {"versions": evidence.environment.versions, "worker code": evidence.job.code}
    facts |= {"start": times.worker_started_utc, "end": times.verified_utc or times.worker_finished_utc}
    return [name for name, value in facts.items() if not value]
