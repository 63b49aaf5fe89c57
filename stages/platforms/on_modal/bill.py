"""What a job should cost, by the price list, and what it did cost, by the workspace's billing report."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from stages.command import ParityError
from stages.jobs import Job
from stages.platforms.on_modal.layout import Try
from stages.validation import Count, Frozen, Name, Usd, first_line, plain, validate

TAG = "parity-job"
REPORT = "Modal's billing report"
REPORTED_AFTER = timedelta(hours=3)  # an hour's rows are in the report by then, counted from its start


class Price(Frozen):
    usd: Usd
    read: str = Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description='a date in quotes, such as "2026-11-30"')
    at: str


class Prices(Frozen):
    """Per second of one GPU, one physical core, one GiB."""

    gpu_second: dict[Name, Price]
    core_second: Price
    gib_second: Price


class Expected(Frozen):
    """Seconds that a job usually takes, by kind."""

    train: Count
    score: Count


# One row may take back what another has charged too much; no job of ours comes near a million.
Amount = Annotated[Decimal, Field(gt=-1_000_000, lt=1_000_000, decimal_places=24, allow_inf_nan=False)]


class Row(Frozen):
    """What is read of a row of the workspace's billing report."""

    interval_start: datetime
    cost: Amount
    cost_by_resource: dict[str, Amount]


class Bill(NamedTuple):
    usd: Decimal | None
    final: bool
    by_resource: dict[str, str]


def tag(job_id: str) -> str:
    return job_id[:32]  # a tag's value may have 63 characters, a digest has 64


def rate(job: Job, prices: Prices) -> Decimal:
    """USD per second for the job's resources."""
    wanted, gpu = job.resources, Decimal(0)
    if wanted.gpu:
        if wanted.gpu not in prices.gpu_second:
            known = ", ".join(sorted(prices.gpu_second))
            raise ParityError(
                f"params.yaml: modal.prices.gpu_second: no price for {wanted.gpu}, only for {known}; "
                "add it, or ask for another GPU in the protocol's resources"
            )
        gpu = wanted.gpus * Decimal(prices.gpu_second[wanted.gpu].usd)
    cores = wanted.cpus * Decimal(prices.core_second.usd)
    return gpu + cores + wanted.memory_gib * Decimal(prices.gib_second.usd)


def hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def row(item: Any) -> Row:
    return validate(Row, {name: getattr(item, name) for name in Row.model_fields}, REPORT)


def total(items: Iterable[Any], job_id: str, ended: datetime) -> Bill:
    """The job's charge in a report that leaves partial hours out: final once the hour of its end is in it.

    A report without any hour of it leaves the charge unknown. Raises ParityError for one that makes no sense.
    """
    own = [row(item) for item in items if item.tags.get(TAG) == tag(job_id)]
    by_resource: dict[str, Decimal] = {}
    for item in own:
        for name, cost in item.cost_by_resource.items():
            by_resource[name] = by_resource.get(name, Decimal(0)) + cost
    usd = sum((item.cost for item in own), Decimal(0)) if own else None
    if usd is not None and usd < 0:
        raise ParityError(f"{REPORT}: found {plain(usd)} USD for the job, expected no less than nothing")
    final = any(item.interval_start >= hour(ended) for item in own)
    return Bill(usd, final, {name: str(cost) for name, cost in sorted(by_resource.items())})


def fetch(job_id: str, submitted_utc: str, tries: Iterable[Try]) -> Bill:
    """The bill for all tries at a job, as far as the workspace's report has it. Raises the SDK's errors.

    A job that was cancelled before it started has no rows in any hour: that is final once a report would have them.
    """
    import modal

    moments = [datetime.fromisoformat(submitted_utc)]
    for entry in tries:
        moments += [
            datetime.fromisoformat(entry.started_utc),
            datetime.fromisoformat(entry.ended_utc or entry.started_utc),
        ]
    billing = modal.Workspace.from_context().billing
    try:
        report = list(billing.report(start=hour(min(moments)), resolution="h", tag_names=[TAG]))
    except (ArithmeticError, ValueError) as error:  # the SDK makes numbers and moments of what it was sent
        raise ParityError(f"{REPORT}: cannot be read: {first_line(error)}") from None
    found = total(report, job_id, max(moments))
    never = len(moments) == 1 and datetime.now(UTC) > hour(moments[0]) + REPORTED_AFTER
    return found._replace(final=True) if found.usd is None and never else found
