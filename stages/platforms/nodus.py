"""Nodus: the job as a standalone Job of the account that the SDK is signed in to.

A Job's name and labels come from the job's id, so one that lives or has succeeded is found again whatever became of
the process that submitted it, and is never paid for twice. Nothing is declared as an output: Nodus collects what lies
below NODUS_OUTPUT_DIR, wherever that is.
"""

import contextlib
from decimal import ROUND_DOWN, Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from stages.command import ParityError
from stages.jobs import Job, read_manifest
from stages.platforms import Context, Handle, Receipt
from stages.platforms.common.reference import foreign, refers
from stages.platforms.common.source import lay, worker_files
from stages.platforms.common.stack import requirements
from stages.platforms.on_nodus import answers, bill, models, outputs
from stages.platforms.on_nodus.client import connect, explained, first_line
from stages.platforms.on_nodus.follow import cancel, follow
from stages.validation import Frozen, Moment, Name

PYTHON = "3.11"
NO_OFFERING = "NoFeasibleOffering"
WORKER = "python -m stages.worker job"
KEEP = Path(__file__).with_name("on_nodus") / "keep.py"
MODELS, MIRROR = "/mnt/parity/models", "/mnt/parity/mirror"
DURATION = r"^([0-9]+h)?([0-9]+m)?([0-9]+s)?$"


class Settings(Frozen):
    project: Name | None  # null: the one that the SDK is set to
    timeout: Annotated[str, Field(pattern=DURATION, min_length=2, description='a duration such as "1h" or "90m"')]
    models: Name | None  # the Volume that keeps trained models for `evaluate`; null: they are uploaded
    final_charge_seconds: Annotated[int, Field(ge=0)]  # how long a receipt waits for the final charge


class Reference(Frozen):
    """What finds a Job again."""

    name: Name
    cache: Literal["warm", "cold"] | None = None
    submitted_utc: Moment | None = None  # of one that was found instead, so its clock began before


class Plan(NamedTuple):
    """What a Job is to do and have."""

    command: list[str]
    volumes: dict[str, Any]  # by mount path
    environment: dict[str, str]
    files: dict[str, Path]  # to upload, by name


class Platform:
    paid = True

    def __init__(self, settings: Settings, context: Context):
        self.settings, self.detach = settings, context.detach
        self.cap = context.cap_usd.quantize(Decimal("0.000001"), ROUND_DOWN)
        self.nodus = connect(settings.project)

    # Before submission.

    def estimate(self, job: Job) -> str | None:
        """A dry run, which makes nothing on Nodus. That no offering fits is a warning: the pilot's was wrong."""
        try:
            with explained(self.nodus, "estimating the cost"):
                with answers.parsed("the dry run"):
                    answer, _ = self.nodus.api.estimate(self.rehearsed(job))
                found = answers.read(answers.Estimate, answer, "the dry run")
        except ParityError as error:
            if NO_OFFERING not in str(error):
                raise
            found = answers.Estimate(blockingReasons=[answers.Refusal(code=NO_OFFERING)])
        for reason in found.refusals or []:
            if reason.code != NO_OFFERING:
                said = f"{first_line(reason.code)}: {first_line(reason.message)}"
                raise ParityError(f"nodus: the Job would be refused: {said}")
        if found.refusals:
            print(f"warning: nodus: the dry run says {NO_OFFERING}; submitting all the same", flush=True)
        return found.cost_usd.p50 if found.cost_usd else None

    def rehearsed(self, job: Job) -> dict[str, Any]:
        """The Job's body as far as its price depends on it, on the image's base: a dry run builds nothing."""
        wanted = job.resources
        resources: dict[str, Any] = {"cpu": str(wanted.cpus), "memory": f"{wanted.memory_gib}Gi"}
        if wanted.gpu:
            resources["gpu"] = {"count": wanted.gpus, "type": [wanted.gpu]}
        spec = {
            "image": f"nodus/python:{PYTHON}",
            "command": WORKER.split(),
            "resources": resources,
            "timeout": self.settings.timeout,
            "maxCostUSD": str(self.cap),
        }
        return {"kind": "Job", "metadata": {"generateName": "parity-"}, "spec": spec}

    # Submission.

    def submit(self, job: Job, folder: Path) -> dict[str, Any]:
        """Start the job, or find the Job that already does it or has done it."""
        with explained(self.nodus, "looking for Jobs of this job"):
            tries = self.tries(job.id)
        for found in reversed(tries):
            if found.status.phase not in ("Failed", "Cancelled"):
                print(f"nodus: taking up Job {found.name}, submitted before", flush=True)
                return reference(found)
        name = f"{stem(job.id)}{len(tries) + 1}"
        with explained(self.nodus, f"submitting Job {name}"):
            cache = models.cached(self.nodus, job.model)
            arguments = self.arguments(job, folder)
            try:
                self.nodus.Job.create(name=name, **arguments)
            except KeyboardInterrupt:
                if not self.detach:
                    self.stop(name)  # it may have been created all the same
                raise
        return {"name": name, "cache": cache}

    def find(self, job_id: str) -> dict[str, Any] | None:
        with explained(self.nodus, "looking for Jobs of this job"):
            tries = self.tries(job_id)
        return reference(tries[-1]) if tries else None

    def tries(self, job_id: str) -> list[answers.Job]:
        """Every Job of this job id, oldest first."""
        return answers.jobs(self.nodus, {"parity-job": models.label(job_id)})

    def arguments(self, job: Job, folder: Path) -> dict[str, Any]:
        """What the Job is made of, the image built and the volumes there."""
        wanted = job.resources
        gpu = f"{wanted.gpu}:{wanted.gpus}" if wanted.gpus > 1 else wanted.gpu
        image = self.nodus.Image.debian_slim(PYTHON).pip_install(*requirements(job.stack))
        image.build(show_logs=True)
        plan = self.plan(job, folder)
        lay(plan.files, folder / "source")
        return {
            "image": image,
            "command": plan.command,
            "source": folder / "source",
            "gpu": gpu,
            "cpu": wanted.cpus,
            "memory": f"{wanted.memory_gib}Gi",
            "timeout": self.settings.timeout,
            "max_cost": self.cap,
            "checkpoint": True,
            "volumes": plan.volumes,
            "env": plan.environment,
            "labels": {"parity-job": models.label(job.id), "parity-task": job.task, "parity-kind": job.kind},
            "allow_large_source": True,
        }

    def plan(self, job: Job, folder: Path) -> Plan:
        """By where the model is: on a Volume, imported or kept; or, where it is on none, uploaded."""
        given = folder / "job"
        files = worker_files() | {"job/job.json": given / "job.json", "keep.py": KEEP}
        files |= {f"job/inputs/{name}": given / "inputs" / name for name in job.inputs}
        command, volumes, environment = WORKER, {}, {"TQDM_DISABLE": "1"}  # bars are no lines
        if job.model.source == "hub":
            volumes[f"{MIRROR}/{job.model.id}"] = models.imported(self.nodus, job.model)
            environment["PARITY_MIRROR"] = MIRROR
        elif self.settings.models and (digest := models.kept(self.nodus, job.model)):
            command = f"python keep.py link {digest} && exec {command}"
        else:
            files |= {f"job/model/{name}": (given / "model" / name).resolve() for name in job.model.sha256}
        if self.settings.models and job.training:
            command = f"{command} && exec python keep.py store"
        if self.settings.models and command != WORKER:
            volumes[MODELS] = self.nodus.Volume.from_name(self.settings.models, create_if_missing=True)
            environment |= {"PARITY_MODELS": MODELS, "PARITY_MODELS_VOLUME": self.settings.models}
            return Plan(["sh", "-euc", command], volumes, environment, files)
        return Plan(command.split(), volumes, environment, files)

    # Afterwards.

    def wait(self, handle: Handle, folder: Path) -> None:
        name = own_reference(handle).name
        try:
            job = self.over(name)
        except KeyboardInterrupt:
            if not self.detach:
                self.stop(name)
            raise
        if job.status.phase == "Succeeded":
            return
        problem = cancel(self.nodus, name)  # one suspended at its cap
        with explained(self.nodus, f"reading why Job {name} ended"):
            line = bill.ended_badly(self.nodus, job)
        raise ParityError(line + (f". {problem}" if problem else ""))

    def over(self, name: str) -> answers.Job:
        """The Job once it has ended. One that succeeded before is not followed again: its log was shown then."""
        with explained(self.nodus, f"looking for Job {name}"):
            found = answers.job(self.nodus, name)
        if found is not None and found.status.phase == "Succeeded":
            return found
        return follow(self.nodus, name)

    def stop(self, name: str) -> None:
        """On Ctrl-C: cancel, and say where that could not be seen to work."""
        print(f"nodus: cancelling Job {name}", flush=True)
        if problem := cancel(self.nodus, name):
            print(f"warning: nodus: {problem}", flush=True)

    def fetch(self, handle: Handle, folder: Path, out: Path) -> None:
        name = own_reference(handle).name
        outputs.fetch(self.nodus, name, out)
        trained = read_manifest(out, handle.job).files.get(f"model/{models.WEIGHTS}")
        if trained and self.settings.models:
            with contextlib.suppress(self.nodus.errors.NodusError):  # `evaluate` then uploads the model
                found = answers.job(self.nodus, name)
                if found and models.committed(self.nodus, self.settings.models, found.metadata.created):
                    models.remember(self.nodus, name, trained.sha256)

    def receipt(self, handle: Handle, folder: Path) -> Receipt:
        own = own_reference(handle)
        wait = self.settings.final_charge_seconds
        found = bill.receipt(self.nodus, own.name, lambda: self.tries(handle.job), wait)
        cache = {"cache": own.cache} if own.cache else {}
        return found.model_copy(update={"resources": found.resources | cache})


def stem(job_id: str) -> str:
    """What the names of all Jobs of a job begin with."""
    return f"parity-{job_id[:32]}-"


def own_reference(handle: Handle) -> Reference:
    found = refers(Reference, handle)
    if not found.name.startswith(stem(handle.job)):
        raise foreign(handle, found.name)
    return found


def reference(found: answers.Job) -> dict[str, Any]:
    """Of a Job that was not submitted by this process, so its clock began before."""
    return {"name": found.name, "submitted_utc": found.metadata.created}
