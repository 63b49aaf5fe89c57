"""The two documents that a comparison of two sides is published as. Every figure in them is computed from the runs."""

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from stages.command import ParityError, Task
from stages.comparison.accounts import merged
from stages.comparison.allowlist import Words, cleared
from stages.comparison.claims import claims, shared_tasks
from stages.comparison.compare import estimates, matching, plain, task_pair
from stages.comparison.deviations import distinct
from stages.comparison.records import Evidence
from stages.comparison.revisions import REFERENCE
from stages.comparison.runs import CAMPAIGN, Run, TaskRun
from stages.comparison.sides import Side, sides
from stages.comparison.view import TASK_NAMES
from stages.evidence.digests import parse_json, read_json
from stages.evidence.ledger import Account, Entry
from stages.platforms import names

SCHEMAS = Path(__file__).parent / "schemas"
FACTS = REFERENCE / "pilot" / "publication.json"
# What a platform's trainer reports, under the names of the published documents.
RENAMED = {"trainer_seconds": "train_runtime", "samples_per_second": "train_samples_per_second"}
NOT_TRAINING = ("delivery_seconds", "charge_usd", "global_step")


def two_sides(runs: list[Run]) -> tuple[Side, Side]:
    """The sides to publish, under neutral names: what a branch is called is nobody's business."""
    if any(run.account is None and CAMPAIGN in run.sources for run in runs):
        raise ParityError(f"publish: {CAMPAIGN} of a run cannot be read; `python -m stages.compare` says why")
    kept, _ = distinct([run for run in runs if run.tasks])
    found = sides(kept)
    if len(found) != 2 or not all(side.platform for side in found):
        count = sum(side.platform is not None for side in found)
        raise ParityError(f"publish: found {count} sides with evidence, expected 2; name runs of two platforms")
    same = found[0].platform == found[1].platform
    keys = [f"{side.platform}_{i}" if same else str(side.platform) for i, side in enumerate(found, 1)]
    return renamed(found[0], keys[0]), renamed(found[1], keys[1])


def renamed(side: Side, key: str) -> Side:
    names = [key] if len(side.runs) == 1 else [f"{key}-{i}" for i in range(1, len(side.runs) + 1)]
    runs = tuple(replace(run, name=name) for run, name in zip(side.runs, names, strict=True))
    return replace(side, label=key, runs=runs)


def facts(pair: tuple[Side, Side]) -> dict[str, Any]:
    """What was recorded beside metrics and evidence: of the published runs only."""
    return dict(read_json(FACTS)) if all(side.published for side in pair) else {}


def money(amount: Decimal) -> str:
    return f"{amount:.8f}"


def results(subject: Side, other: Side, owner: str | None) -> dict[str, Any]:
    """The measured side of the publication; leaves that are `Words` are sentences of this project."""
    pair, known = (subject, other), facts((subject, other))
    verdicts = {claim.name: claim.holds for claim in claims(subject, other)}
    accounts = merged([*subject.runs, *other.runs])
    return {
        "schema_version": 1,
        "title": Words("The same training job on {a} and on {b}", {"a": subject.label, "b": other.label}),
        "observed_at": known.get("observed_at", last_seen(pair)),
        "measurement_owner": known.get("owner", Words(owner) if owner else None),
        "independent_audit": False,
        "currency": Words("USD"),
        "scope": Words("Single-node jobs under one protocol, seeds and repeats as counted below."),
        "cost_scope": Words(COST_SCOPE),
        "all_in_invoice_finalized": bool(accounts) and all(settled(account) for account in accounts),
        "claims": verdicts,
        "stages": [stage(subject, other, task) for task in shared_tasks(subject, other)],
        "campaign": campaign(pair, accounts),
        "timing_definitions": timing_definitions(pair),
        "cleanup": known.get("cleanup", cleanup(pair, accounts)),
        "provenance": known.get("provenance", provenance(pair)) | {"sanitization": SANITIZATION},
    }


COST_SCOPE = (
    "Gross charges of the jobs as the platforms' receipts state them, or the campaign's ledger where a bill came late, "
    "before any credits."
)
SANITIZATION = Words("An allowlist decides what leaves; source reports stay private and are named by their digests.")


def settled(account: Account) -> bool:
    return bool(account.other_costs_final) and all(entry.final for entry in account.attempts)


def every(pair: tuple[Side, Side]) -> list[Evidence]:
    return [evidence for side in pair for run in side.runs for evidence in run.evidence]


def last_seen(pair: tuple[Side, Side]) -> str | None:
    times = [e.timings.verified_utc or e.timings.worker_finished_utc for e in every(pair)]
    return max((time for time in times if time), default=None)


def stage(subject: Side, other: Side, task: Task) -> dict[str, Any]:
    found = task_pair(subject, other, task)
    runs = {side.label: side.of(task) for side in (subject, other)}
    reductions = {key: difference.reduction_percent for key, difference in found.differences.items()}
    one = len({len(each) for each in runs.values()}) == 1
    document = {
        "stage": task,
        "label": Words(TASK_NAMES[task]),
        "accepted_runs_per_platform": len(runs[subject.label]) if one else None,
        "seed": runs[subject.label][0].seed,
        **{label: platform_stage(each[0]) for label, each in runs.items()},
        "successful_attempt_charge_reduction_percent": reductions.get("charge_usd"),
        "trainer_time_reduction_percent": reductions.get("trainer_seconds"),
        "matching_evidence": {name: match.equal for name, match in matching(subject, other, task).items()},
        "training_tokens_sha256": shared(runs, lambda e: e.training_tokens_sha256),
        "model_weights_sha256": shared(runs, lambda e: e.model_weights_sha256),
    }
    if max(len(each) for each in runs.values()) > 1:
        document["repeats"] = {side.label: plain(estimates(side, task)) for side in (subject, other)}
    return document


def shared(runs: dict[str, list[TaskRun]], of: Callable[[Evidence], str | None]) -> str | None:
    """A digest that all runs have in common, or None."""
    values = {of(run.training) if run.training else None for each in runs.values() for run in each}
    return values.pop() if len(values) == 1 else None


def platform_stage(run: TaskRun) -> dict[str, Any]:
    """One platform's side of a stage: the headline run's figures."""
    evidence = run.training
    if evidence is None:
        raise ParityError(f"publish: no training evidence of {run.task}")
    gpu, times = evidence.environment.gpu, evidence.timings
    charge = None if evidence.rehearsal else run.charge.usd
    document = {
        "recorded_successful_attempt_usd": None if charge is None else str(charge),
        "trainer_runtime_seconds": run.number("train", "trainer_seconds"),
        "submit_to_local_export_seconds": times.delivery_seconds,
        "gpu": gpu.name if gpu else None,
        "gpu_memory_bytes_reported": gpu.memory_bytes if gpu else None,
        "baseline": scores(run, "baseline"),
        "final": scores(run, "evaluate"),
        "global_step": run.number("train", "global_step"),
        "training_metrics": training_metrics(run),
        "export_files": {
            name.removeprefix("model/"): entry.model_dump()
            for name, entry in evidence.output.items()
            if name.startswith("model/")
        },
        "worker_started_utc": times.worker_started_utc,
        "worker_finished_utc": times.worker_finished_utc,
        "worker_sha256": evidence.job.code,
    }
    return document | ({"charge_segments": segments(run)} if run.charge.segments and charge is not None else {})


def scores(run: TaskRun, name: str) -> dict[str, Any]:
    return {key: value for key, value in run.metrics.get(name, {}).items() if key not in NOT_TRAINING}


def training_metrics(run: TaskRun) -> dict[str, Any]:
    found = {k: v for k, v in run.metrics.get("train", {}).items() if k not in NOT_TRAINING}
    steps, seconds = run.number("train", "global_step"), run.number("train", "trainer_seconds")
    rate = {"train_steps_per_second": round(steps / seconds, 3)} if steps and seconds else {}
    return {RENAMED.get(key, key): value for key, value in found.items()} | rate


def segments(run: TaskRun) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in run.charge.segments.items():
        whole = part.seconds.is_integer()
        found |= {f"{name}Seconds": int(part.seconds) if whole else part.seconds, f"{name}USD": part.usd}
    return found


def campaign(pair: tuple[Side, Side], accounts: list[Account]) -> dict[str, Any]:
    if len(accounts) > 1:
        raise ParityError(f"publish: the runs belong to {len(accounts)} campaigns, expected one")
    account = accounts[0] if accounts else None
    attempts = account.attempts if account else []
    recorded = sum((Decimal(entry.charge_usd) for entry in attempts if entry.charge_usd), Decimal(0))
    roles = {side.platform: sorted(e.role for e in attempts if e.platform == side.platform) for side in pair}
    return {
        "attempts": [attempt(entry) for entry in attempts],
        "recorded_usage_usd": money(recorded) if account else None,
        "authorization_usd": account.authorization_usd if account else None,
        "per_live_test_cap_usd": account.cap_usd if account else None,
        "other_cost_reserve_usd": account.reserve_usd if account else None,
        **including_failed(*pair),
        **including_failed(*reversed(pair)),
        "aggregate_platform_totals_are_not_comparable": len({tuple(each) for each in roles.values()}) > 1,
        "credits": Words("Charges are gross; credits are not taken off, and what was paid in cash is not stated."),
    }


def attempt(entry: Entry) -> dict[str, Any]:
    role = entry.role + (f"_{entry.detail}" if entry.detail else "")
    return {
        "id": entry.id,
        "execution_platform": Words(entry.platform.capitalize()) if entry.platform in names() else entry.platform,
        "stage": entry.task,
        "role": Words(role),
        "recorded_charge_usd": None if entry.charge_usd is None else money(Decimal(entry.charge_usd)),
    }


def including_failed(side: Side, other: Side) -> dict[str, Any]:
    """What a side's accepted run cost with its failed attempts, for the tasks that had any."""
    found: dict[str, Any] = {}
    for task in shared_tasks(side, other):
        if not side.failures(task) or side.rehearsal:
            continue
        amount, stem = side.including_failed(task), f"{side.label}_{task}_including_failed_attempt"
        corrected = any(share.entry.role == "superseded" for share in other.beside(task))
        against = f"{stem}_vs_{'corrected_' if corrected else ''}{other.label}_reduction_percent"
        found[f"{stem}_usd"] = None if amount is None else format(amount.normalize(), "f")
        found[against] = task_pair(side, other, task).failed_reduction_percent
    return found


def clocks(side: Side) -> list[str]:
    return sorted({e.timings.delivery_clock for run in side.runs for e in run.evidence if e.timings.delivery_clock})


def timing_definitions(pair: tuple[Side, Side]) -> dict[str, Any]:
    covers = {e.covered for e in every(pair) if e.stage == "train"}
    return {
        "trainer": Words("The time that the trainer itself reports, on both sides, without the worker around it."),
        **{f"{side.label}_delivery": Words("{clock}", {"clock": " / ".join(clocks(side))}) for side in pair},
        "boundaries_identical": len(covers) == 1 and clocks(pair[0]) == clocks(pair[1]) != [],
        "native_charge_segment_seconds": Words("Segment seconds are as billed; rates do not follow from them exactly."),
    }


def cleanup(pair: tuple[Side, Side], accounts: list[Account]) -> dict[str, Any]:
    clean = [evidence.receipt.clean for evidence in every(pair) if evidence.receipt]
    known = bool(clean) and None not in clean
    holds = [entry for account in accounts for entry in account.attempts if not entry.final]
    return {
        "observed_at": last_seen(pair),
        "zero_live_allocations": all(clean) if known else None,
        "zero_budget_holds": not holds if accounts else None,
    }


def provenance(pair: tuple[Side, Side]) -> dict[str, Any]:
    """Digests of the evidence files that every figure here is from."""
    reports = {}
    for run in (run for side in pair for run in side.runs):
        for path, digest in run.sources.items():
            if found := re.fullmatch(r"metrics/(\w+)/evidence/(\w+)\.json", path):
                reports[f"{run.name}-{found[1]}-{found[2]}.json"] = digest
    return {"source_report_sha256": reports}


@lru_cache(maxsize=4)
def schema(name: str) -> dict[str, Any]:
    return dict(parse_json((SCHEMAS / f"{name}.json").read_bytes()))


def schema_keys(name: str) -> frozenset[str]:
    """Every key that a document's schema names, at whatever depth."""
    found: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            found.update(node.get("properties", {}))
            for value in node.values():
                visit(value)
        elif isinstance(node, list):
            for value in node:
                visit(value)

    visit(schema(name))
    return frozenset(found)


def validated(name: str, document: Any) -> Any:
    """The document cleared to leave and held against its schema."""
    import jsonschema

    clear = cleared(document, schema_keys(name))
    problems = sorted(jsonschema.Draft202012Validator(schema(name)).iter_errors(clear), key=lambda e: list(e.path))
    if problems:
        where = "/".join(str(part) for part in problems[0].path)
        raise ParityError(f"{name}.json: {where or 'top level'}: does not follow its schema ({problems[0].validator})")
    return clear
