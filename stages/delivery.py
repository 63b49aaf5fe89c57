"""What `baseline`, `train` and `evaluate` share: run a job on the chosen platform and place what comes back."""

import argparse
import contextlib
import os
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

from stages import command, layout, platforms
from stages.command import ParityError, Task
from stages.corpora.hub import check_snapshot
from stages.evidence import ledger
from stages.evidence.digests import filling, indented, replacing, sha256_json
from stages.jobs import Job, Result, build, read_manifest, read_result
from stages.platforms import Delivery
from stages.platforms.common.rehearsal import rehearsal
from stages.protocol import Params, Protocol, read_params, read_protocol

BOUNDLESS = "999999999.00"


def base_model(protocol: Protocol) -> Path | None:
    """The generated base model's folder, as it was made; None for one that the worker fetches."""
    if protocol.model.source != "generated":
        return None
    check_snapshot(protocol.model.id)
    return layout.RAW / protocol.model.id


def check_pins(protocol: Protocol, task: Task, job: Job) -> None:
    """Refuse inputs other than the protocol's own: a cache may have given back something else than it was given."""
    pins = getattr(protocol.inputs, task)
    for name, pin in zip(layout.input_names(task), (pins.train, pins.test), strict=True):
        if (found := job.inputs.get(name, pin.sha256)) != pin.sha256:
            raise ParityError(f"{layout.INPUTS / name}: sha256 {found}, the protocol pins {pin.sha256}; {layout.HEAL}")


def git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def place(source: Path, target: Path) -> None:
    """Make `target` what `source` is, by links where one file system holds both. `source` stays, for after a kill."""
    if source.is_dir():
        target.mkdir()
        for path in source.iterdir():
            place(path, target / path.name)
        return
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def evidence(protocol: Protocol, stage: str, job: Job, delivery: Delivery, result: Result) -> dict[str, Any]:
    """The record of one run: what was asked, by which code, where it ran, what came back, what it cost."""
    manifest = read_manifest(delivery.out, job.id)
    status = git("status", "--porcelain", "--", "stages", "protocols")
    return {
        "version": 1,
        "stage": stage,
        "protocol": {"name": protocol.name, "sha256": sha256_json(protocol.model_dump(mode="json", by_alias=True))},
        "commit": git("rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
        "job": {"id": job.id, **job.model_dump(mode="json", by_alias=True)},
        "device": result.device,
        "environment": result.environment,
        "loaded_weights_sha256": result.loaded_weights_sha256,
        "training_tokens_sha256": result.training_tokens_sha256,
        "model_weights_sha256": result.model_weights_sha256,
        "output": {name: entry.model_dump() for name, entry in manifest.files.items()},
        "timings": {
            "submitted_utc": delivery.clock.submitted_utc,
            "worker_started_utc": result.started_utc,
            "worker_finished_utc": result.finished_utc,
            "verified_utc": delivery.clock.verified_utc,
            "worker_seconds": result.worker_seconds,
            "delivery_seconds": delivery.clock.seconds,
            "delivery_clock": "submission to verified output, by the submitting machine's wall clock",
            "taken_up": delivery.clock.taken_up,
        },
        "receipt": delivery.receipt.model_dump(),
    }


def metrics(result: Result, delivery: Delivery) -> dict[str, Any]:
    """The stage's metrics file; a charge stands there only where the platform made a final one."""
    found: dict[str, Any] = result.metrics | {"delivery_seconds": delivery.clock.seconds}
    if delivery.receipt.charge_usd is not None and delivery.receipt.final:
        found["charge_usd"] = float(delivery.receipt.charge_usd)
    return found


def budgeted(params: Params, stage: str, state: Path, *, detach: bool = False) -> platforms.Context:
    """What the platform may know of the run, its submissions held against the campaign's ledger in `state`."""
    campaign, cap = params.campaign, Decimal(params.campaign.cap_usd)

    def held(job: Job) -> ledger.Entry | None:
        return ledger.held(campaign.name, job=job.id, platform=params.platform, state=state)

    def reserve(job: Job) -> None:
        found = ledger.in_flight(campaign.name, job=job.id, platform=params.platform, state=state)
        if found is None:
            arguments = {"job": job.id, "platform": params.platform, "task": job.task, "stage": stage}
            ledger.reserve(campaign, **arguments, amount=cap, state=state)
        elif Decimal(found.held_usd or 0) < cap:
            raise ParityError(
                f"campaign {campaign.name}: attempt {found.id} at this job holds {found.held_usd} USD, less than "
                f"campaign.cap_usd, {cap}. Set that back, or run `python -m stages.campaign reconcile` first"
            )

    def settle(job: Job, receipt: platforms.Receipt) -> None:
        if attempt := held(job):
            ledger.settle_by(campaign.name, attempt.id, receipt, state)

    return platforms.Context(params.mirror_path, cap, reserve, settle, detach)


def rehearsing(params: Params) -> Params:
    """A rehearsal is held to the cap of each job and booked, but spends nothing, so it never runs out of budget."""
    campaign = params.campaign.model_copy(update={"authorization_usd": BOUNDLESS})
    return params.model_copy(update={"campaign": campaign})


def arguments(module: str, doc: str | None) -> argparse.Namespace:
    """The command line of a stage that runs a job."""
    made = command.parser(module, doc)
    command.add_task(made)
    detach = "leave a paid job running on Ctrl-C; the same command takes it up (or set PARITY_DETACH=1)"
    made.add_argument("--detach", action="store_true", default=bool(os.environ.get("PARITY_DETACH")), help=detach)
    return made.parse_args()


def deliver(
    task: Task, stage: str, *, model: Path | None, training: bool, outputs: dict[str, Path], detach: bool
) -> None:
    """Train on a task's train rows, or score its test rows, with `model` (None: the hub's).

    `outputs` says which files or folders of the job's output go where; metrics and evidence go where `layout` says.
    """
    params, sections = read_params()
    protocol = read_protocol(params.protocol)
    settings = platforms.read_settings(params.platform, sections, Path("params.yaml"))
    inputs = [layout.INPUTS / layout.input_names(task)[0 if training else 1]]
    seed = params.seed if training else None
    # A baseline is scored once; training and what follows it have as many attempts as the user wants.
    repeat = 1 if stage == "baseline" else params.repeat
    job = build(protocol, task, inputs=inputs, model=model, seed=seed, repeat=repeat)
    check_pins(protocol, task, job)
    print(f"{stage} {task}: job {job.id:.12} on {params.platform}", flush=True)
    rehearsed = params.rehearse and params.platform != "local"
    state = platforms.state_folder() / "rehearsal" if rehearsed else platforms.state_folder()
    context = budgeted(rehearsing(params) if rehearsed else params, stage, state, detach=detach)
    with contextlib.ExitStack() as stack:
        if rehearsed:
            stack.enter_context(rehearsal(params.platform, state / f"{params.platform}-emulator", params.mirror_path))
        run = platforms.run(params.platform, settings, context, job, inputs, model, state)
        delivery = stack.enter_context(run)
        result = read_result(delivery.out)
        record = evidence(protocol, stage, job, delivery, result) | {"rehearsal": rehearsed}
        documents = {layout.metrics(task, stage): metrics(result, delivery), layout.evidence(task, stage): record}
        with replacing(*outputs.values(), *documents) as partials:
            for name, partial in zip(outputs, partials, strict=False):
                place(delivery.out / name, partial)
            for document, partial in zip(documents.values(), partials[len(outputs) :], strict=True):
                with filling(partial) as stream:
                    stream.write(indented(document))
