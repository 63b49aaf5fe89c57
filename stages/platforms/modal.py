"""Modal: the job as a Function of an app of its own, its files on a Volume.

The app is deployed, not run for the length of a client's session: a deployed app outlives a killed submit side and is
found again by its name, which is the job's. What keeps a job from being paid twice, in this order: its output on the
Volume; its handle on disk; the call that an app of its name still works on; and the Function itself, which runs one
input at a time and does nothing where the output is there. Once the job has ended, however it did, the app is stopped.
"""

import contextlib
import time
from functools import partial
from pathlib import Path
from typing import Any

from stages.command import ParityError
from stages.evidence.digests import whole
from stages.jobs import MANIFEST, PROJECT, Job, read_manifest
from stages.platforms import HANDLE, Attempt, Context, Handle, Receipt
from stages.platforms.common.reference import foreign, refers
from stages.platforms.common.shield import shielded
from stages.platforms.common.source import lay, worker_files
from stages.platforms.common.stack import requirements
from stages.platforms.common.transfer import receive
from stages.platforms.on_modal import bill
from stages.platforms.on_modal.calls import cancel, follow, stop_app, stopped
from stages.platforms.on_modal.errors import JobError, explained, first_line
from stages.platforms.on_modal.layout import Try, file_path
from stages.platforms.on_modal.store import Store
from stages.validation import Count, Frozen, Moment, Name, plain

MOUNT = "/parity"
CODE = "/root"  # first on the container's Python path
# The Function's own code; folders without __init__.py import as well, so nothing else of the platform goes along.
FUNCTION_CODE = (
    "stages/platforms/common/process.py",
    "stages/platforms/on_modal/function.py",
    "stages/platforms/on_modal/layout.py",
)


class Settings(Frozen):
    environment: Name | None
    volume: Name
    timeout_seconds: Count
    expected_seconds: bill.Expected
    prices: bill.Prices


class Reference(Frozen):
    """What finds a job's app and its call again. Its app has an id where it was deployed, its call once it was made."""

    app: Name
    app_id: Name | None = None
    call: Name | None = None
    submitted_utc: Moment | None = None  # of a job that was found instead


def app_name(job_id: str) -> str:
    return f"parity-{job_id[:32]}"


def own_reference(handle: Handle) -> Reference:
    found = refers(Reference, handle)
    if found.app != app_name(handle.job):
        raise foreign(handle, found.app)
    return found


class Platform:
    paid = True

    def __init__(self, settings: Settings, context: Context):
        self.settings, self.cap, self.detach = settings, context.cap_usd, context.detach

    def store(self) -> Store:
        return Store(self.settings.volume, self.settings.environment)

    def estimate(self, job: Job) -> str:
        """By the usual length of such a job; `modal.timeout_seconds` bounds what it can cost, and the cap that."""
        rate = bill.rate(job, self.settings.prices)
        if (most := rate * self.settings.timeout_seconds) > self.cap:
            raise ParityError(
                f"params.yaml: modal.timeout_seconds: {self.settings.timeout_seconds} s may cost {most:.2f} USD, "
                f"campaign.cap_usd is {self.cap}; lower the one or raise the other"
            )
        return f"{rate * getattr(self.settings.expected_seconds, job.kind):.4f}"

    def submit(self, job: Job, folder: Path) -> dict[str, Any]:
        with explained():
            store, name = self.store(), app_name(job.id)
            if store.finished(job.id):
                print("the job's output is on Modal already", flush=True)
                return Reference(app=name, submitted_utc=store.submitted_utc(job.id)).model_dump()
            if found := self.under_way(job.id, store):
                print(f"the job runs on Modal already: call {found.call}", flush=True)
                return found.model_dump()
            store.put_job(job, folder / "job")
            return self.start(job, folder, store).model_dump(exclude={"submitted_utc"})

    def under_way(self, job_id: str, store: Store) -> Reference | None:
        """The call that an app of the job's name works on. One still queued is waited for, until it says its id."""
        import modal
        from modal.exception import NotFoundError

        name, environment = app_name(job_id), self.settings.environment
        found = Reference(app=name)
        try:
            app_id = modal.App.lookup(name, environment_name=environment).app_id
            found = Reference(app=name, app_id=app_id, submitted_utc=store.submitted_utc(job_id))
            function = modal.Function.from_name(name, "work", environment_name=environment)
            while (stats := function.get_current_stats()).backlog or stats.num_running_inputs:
                open_calls = [entry.call for entry in store.tries(job_id).values() if entry.outcome is None]
                if open_calls:
                    return found.model_copy(update={"call": open_calls[-1]})
                time.sleep(1)
        except NotFoundError:
            pass
        except KeyboardInterrupt:
            if not self.detach:
                self.leave_nothing(found)
            raise
        return None

    def find(self, job_id: str) -> dict[str, Any] | None:
        with explained():
            store = self.store()
            calls = [entry.call for entry in store.tries(job_id).values()]
            if calls or store.finished(job_id):
                return Reference(app=app_name(job_id), call=calls[-1] if calls else None).model_dump()
            found = self.under_way(job_id, store)
            return found.model_dump() if found else None

    def start(self, job: Job, folder: Path, store: Store) -> Reference:
        """Deploy the job's app and call its Function; an error or Ctrl-C here leaves no app."""
        import modal

        app, function = self.define(job, folder / "code", store)
        reference = Reference(app=app_name(job.id))
        try:
            with modal.enable_output():  # the image is built here, the first time for minutes
                app.deploy(environment_name=self.settings.environment)
            paid_for = float(self.cap / bill.rate(job, self.settings.prices))
            call = function.spawn(job.id, self.settings.volume, paid_for)
        except BaseException:
            self.leave_nothing(reference.model_copy(update={"app_id": app.app_id}))
            raise
        return reference.model_copy(update={"app_id": app.app_id, "call": call.object_id})

    def define(self, job: Job, code: Path, store: Store) -> tuple[Any, Any]:
        """The app and its Function. Modal itself restarts a preempted input, so no retries are asked for."""
        import modal

        from stages.platforms.on_modal.function import work

        lay(worker_files() | {name: PROJECT / name for name in FUNCTION_CODE}, code)
        image = modal.Image.debian_slim("3.11").pip_install(*requirements(job.stack)).add_local_dir(code, CODE)
        app = modal.App(app_name(job.id), tags={bill.TAG: bill.tag(job.id)}, include_source=False)
        wanted = job.resources
        function = app.function(
            name="work",
            image=image,
            gpu=f"{wanted.gpu}:{wanted.gpus}" if wanted.gpu else None,
            cpu=(wanted.cpus, wanted.cpus),
            memory=(wanted.memory_gib * 1024, wanted.memory_gib * 1024),
            timeout=self.settings.timeout_seconds,
            volumes={MOUNT: store.volume},
            max_containers=1,
            single_use_containers=True,
        )(work)
        return app, function

    def wait(self, handle: Handle, folder: Path) -> None:
        own = own_reference(handle)
        try:
            with explained():
                store = self.store()
                if not store.finished(handle.job):
                    follow(own.call, detach=self.detach)
                    if not store.finished(handle.job):
                        raise JobError("lost", "the job's output is gone from the Volume. Run the same command again")
        except (ParityError, KeyboardInterrupt) as error:
            if self.detach and isinstance(error, KeyboardInterrupt):
                raise
            outcome = error.outcome if isinstance(error, JobError) else "cancelled"
            self.leave_nothing(own)
            self.settle(handle.job, own.call, outcome, str(error) or "interrupted")
            raise
        with explained():
            self.stop(own)

    def stop(self, reference: Reference) -> bool:
        return stop_app(reference.app, reference.app_id, self.settings.environment)

    def leave_nothing(self, reference: Reference) -> None:
        """Cancel a job's call and stop its app, after an error; what cannot be stopped is named."""
        with shielded():
            try:
                with explained():
                    cancel(reference.call)
                    stopped, problem = self.stop(reference), "it took too long"
            except (ParityError, OSError) as error:
                stopped, problem = False, first_line(error)
            if not stopped:
                print(f"the app may run on ({problem}). Stop it: modal app stop {reference.app}", flush=True)

    def settle(self, job_id: str, call: str | None, outcome: str, reason: str) -> None:
        """Put on record how the last try ended; without the record the error at hand still counts more."""
        with shielded(), contextlib.suppress(ParityError, OSError), explained():
            self.store().settle(job_id, call, outcome, reason)

    def fetch(self, handle: Handle, folder: Path, out: Path) -> None:
        """Every file by the manifest, which is put last; what a broken transfer left is continued."""
        with explained():
            store = self.store()
            text = store.manifest(handle.job)
            if text is None:
                raise self.vanished(store, handle, folder, MANIFEST)
            with whole(folder / "listed" / MANIFEST) as stream:
                stream.write(text)
            for name, entry in read_manifest(folder / "listed", handle.job).files.items():
                blocks = partial(store.blocks, file_path(entry.sha256), entry.bytes)
                try:
                    receive(name, entry, blocks, out / name)
                except FileNotFoundError:
                    raise self.vanished(store, handle, folder, name) from None
            (folder / "listed" / MANIFEST).replace(out / MANIFEST)

    def vanished(self, store: Store, handle: Handle, folder: Path, name: str) -> ParityError:
        """A finished job's file that is gone: the job has to be done anew, so nothing may say that it is done."""
        if store.finished(handle.job):
            store.forget_output(handle.job)
        (folder / HANDLE).unlink(missing_ok=True)
        return ParityError(
            f"{name}: gone from Volume {self.settings.volume}, so the output is lost. "
            "Run the same command again to run the job anew, which is charged again"
        )

    def charge(self, handle: Handle, entries: list[Try]) -> bill.Bill:
        """What the job has cost so far. A bill that cannot be read, as by who may not, costs no finished job."""
        try:
            with explained():
                return bill.fetch(handle.job, handle.submitted_utc, entries)
        except (ParityError, OSError) as error:
            print(f"the job's bill was not read ({first_line(error)}); the receipt has no charge", flush=True)
            return bill.Bill(None, False, {})

    def receipt(self, handle: Handle, folder: Path) -> Receipt:
        own = own_reference(handle)
        with explained():
            store = self.store()
            entries = list(store.tries(handle.job).values())
            asked = store.job(handle.job)
            clean = stopped(own.app, own.app_id, self.settings.environment)
        charge = self.charge(handle, entries)
        resources = asked.resources.model_dump() if asked else {}
        resources |= {"timeout_seconds": self.settings.timeout_seconds, "charge_usd_by_resource": charge.by_resource}
        if entries and entries[-1].cache:
            resources["cache"] = entries[-1].cache
        return Receipt(
            platform="modal",
            attempts=[attempt(entry) for entry in entries],
            charge_usd=None if charge.usd is None else plain(charge.usd),
            final=charge.final and clean,
            resources=resources,
            clean=clean,
        )


def attempt(entry: Try) -> Attempt:
    """A try that did not say how it ended was followed by another: Modal started it again."""
    return Attempt(
        outcome=entry.outcome or "preempted",
        reason=entry.reason,
        started_utc=entry.started_utc,
        ended_utc=entry.ended_utc,
    )
