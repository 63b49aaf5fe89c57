"""Paid platforms whose every answer is what stands in a file: for the tests of what a wrong answer does."""

import contextlib
import json
import shutil
import types
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages import jobs, platforms
from stages.command import ParityError
from stages.evidence.digests import write_json
from stages.platforms import HANDLE, Context, Handle, Receipt, modal, nodus
from stages.platforms.on_modal import bill as modal_bill
from stages.platforms.on_modal.calls import answered
from stages.platforms.on_modal.layout import Try, job_folder
from stages.platforms.on_modal.store import Store
from stages.platforms.on_nodus import bill as nodus_bill
from stages.platforms.on_nodus import follow, models, outputs
from tests.platforms.modal_kit import SETTINGS
from tests.platforms.nodus_setup import settings

THEN = "2026-11-30T10:00:00+00:00"
NODUS, MODAL, ENDED = "nodus/answers.json", "modal/report.json", "modal/ended.json"


def job_of(root: Path) -> jobs.Job:
    return jobs.read_job(root / "job")


def nodus_answers(name: str) -> dict[str, Any]:
    """What Nodus says of a Job that has ended well."""
    segments = {"bootSeconds": 3, "bootUSD": "0.001", "runningSeconds": 60, "runningUSD": "0.019"}
    cost = {"bySegment": segments, "final": True, "totalUSD": "0.02", "heldUSD": "0"}
    meta = {"name": name, "namespace": "default", "creationTimestamp": THEN}
    spec = {"resources": {"cpu": "4", "gpu": {"count": 1, "type": ["L4"]}}}
    times = {"commandStartedTime": THEN, "finishedTime": "2026-11-30T10:01:00Z"}
    attempt = {"phase": "Succeeded", "exitCode": 0, "timings": times, "actual": {"costUSD": "0.02"}}
    return {
        "Job": {"metadata": meta, "spec": spec, "status": {"phase": "Succeeded", "active": 0, "cost": cost}},
        "Attempt": [{"spec": {"epoch": 1}, "status": attempt}],
        "Estimate": {
            "costUSD": {"p50": "0.02"},
            "blockingReasons": [{"code": "NoFeasibleOffering", "message": "none"}],
        },
        "Volume": {"status": {"phase": "Ready", "lastCommitTime": THEN}},
    }


def lay(root: Path) -> None:
    """Handles of a job on both platforms, its output, and what they answer. The job stands in `root/job` already."""
    job = job_of(root)
    (root / "paid").mkdir()
    (root / "paid/result.json").write_text("{}")
    jobs.write_manifest(root / "paid", job.id)
    references: dict[str, dict[str, Any]] = {
        "nodus": {"name": f"{nodus.stem(job.id)}1", "cache": "warm"},
        "modal": {"app": modal.app_name(job.id), "app_id": "ap-1", "call": "fc-1"},
    }
    for platform, reference in references.items():
        handle = Handle(version=1, platform=platform, job=job.id, submitted_utc=THEN, reference=reference)
        write_json(root / platform / HANDLE, handle.model_dump())
    write_json(root / NODUS, nodus_answers(f"{nodus.stem(job.id)}1"))
    cost = {"cost": "0.10", "costByResource": {"L4": "0.09", "CPU": "0.01"}, "tags": {modal_bill.TAG: job.id[:32]}}
    write_json(root / MODAL, [cost | {"interval": THEN.replace("+00:00", "Z")}])
    folder = root / "modal/volume" / job_folder(job.id)
    entry = Try(call="fc-1", started_utc=THEN, ended_utc="2026-11-30T10:01:00+00:00", outcome="succeeded", cache="warm")
    write_json(folder / "attempts/1.json", entry.model_dump())
    shutil.copy(root / "job/job.json", folder)
    write_json(root / ENDED, {"status": 0, "line": ""})


class Nodus:
    """The SDK's client, as far as it is asked; it reads JSON as the SDK does."""

    def __init__(self, root: Path):
        self.path = root / NODUS

    def answer(self, kind: str) -> Any:
        found = json.loads(self.path.read_bytes())
        return found.get(kind) if isinstance(found, dict) else found

    def get(self, kind: str, name: str) -> Any:
        return self.answer(kind)

    def list(self, kind: str, label_selector: Any) -> Any:
        return self.answer("Attempt") if kind == "Attempt" else [self.answer(kind)]

    def watch(self, kind: str, field_selector: Any) -> Iterator[Any]:
        yield {"type": "MODIFIED", "object": self.answer("Job")}
        raise ParityError("the watch is over")  # a real one is opened again, for as long as the Job lives

    def estimate(self, body: Any) -> Any:
        return self.answer("Estimate"), None

    def healthz(self) -> bool:
        return True

    def patch(self, *_: Any) -> None:
        pass

    def logs(self, *_: Any, follow: bool) -> Iterator[str]:
        return iter(())


class Volume:
    """A Modal Volume that is a folder."""

    def __init__(self, root: Path):
        self.root = root / "modal/volume"

    def listdir(self, folder: str) -> list[Any]:
        found = [path for path in (self.root / folder).iterdir() if path.is_file()]
        return [types.SimpleNamespace(path=str(path), size=path.stat().st_size, mtime=1764496800) for path in found]

    def read_file(self, path: str) -> Iterator[bytes]:
        with (self.root / path).open("rb") as stream:
            while block := stream.read(1 << 20):
                yield block


def modal_report(root: Path) -> list[Any]:
    """The billing report, as the SDK makes it of what it is sent; what cannot be sent at all is none of its answers."""
    from google.protobuf.json_format import ParseDict
    from modal.types import BillingReportItem
    from modal_proto import api_pb2

    try:
        rows = json.loads((root / MODAL).read_bytes())
        sent = [ParseDict(row, api_pb2.WorkspaceBillingReportItem(), ignore_unknown_fields=True) for row in rows]
    except Exception as error:
        raise ParityError(f"not to be sent: {type(error).__name__}") from None
    return [BillingReportItem._from_proto(item) for item in sent]


@contextlib.contextmanager
def answering(root: Path) -> Iterator[None]:
    """Both platforms answer with what stands in `root`, and give the job's whole output."""
    import modal as sdk
    import nodus as nodus_sdk

    def fetch(*given: Any) -> None:
        shutil.copytree(root / "paid", given[-1])

    nodus_client = types.SimpleNamespace(api=Nodus(root), errors=nodus_sdk.errors)
    billing = types.SimpleNamespace(report=lambda **_: modal_report(root))
    workspace = types.SimpleNamespace(billing=billing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodus, "connect", lambda _: nodus_client)
        patch.setattr(outputs, "fetch", fetch)
        patch.setattr(follow, "CANCEL_SECONDS", 0)
        patch.setattr(sdk.Volume, "from_name", lambda *_, **__: Volume(root))
        patch.setattr(sdk.Workspace, "from_context", lambda: workspace)
        patch.setattr(modal, "stop_app", lambda *_: True)
        patch.setattr(modal, "stopped", lambda *_: True)
        patch.setattr(modal, "cancel", lambda _: None)
        patch.setattr(Store, "finished", lambda *_: True)
        patch.setattr(modal.Platform, "fetch", lambda *given: fetch(*given))
        yield


def platform_of(name: str, context: Context) -> Any:
    if name == "nodus":
        return nodus.Platform(settings(final_charge_seconds=0), context)
    return modal.Platform(modal.Settings.model_validate(SETTINGS), context)


def follows(root: Path, name: str) -> None:
    """Take up the job of a handle. Whatever that ends in, the attempt is booked, or held since the job may live."""
    booked: list[Receipt] = []
    context = Context(None, Decimal(1), settle=lambda job, receipt: booked.append(receipt))
    folder = root / "paid-flight"
    with answering(root):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(root / "job", folder / "job")
        shutil.copy(root / name / HANDLE, folder)
        handle = platforms.read_handle(folder / HANDLE)
        platform = platform_of(name, context)
        try:
            platforms.follow(platform, context, handle, folder)
        except ParityError:
            assert len(booked) == 1
            raise
        except ConnectionError:
            assert not booked
            assert (folder / HANDLE).is_file()
            raise
        receipt = platform.receipt(handle, folder)
    assert receipt.charge_usd is None or 0 <= Decimal(receipt.charge_usd) < 10**6
    json.dumps(receipt.model_dump(), allow_nan=False)


def asks_nodus(root: Path) -> None:
    """All that Nodus is asked, with no driver around it."""
    with answering(root):
        platform = platform_of("nodus", Context(None, Decimal(1)))
        job = job_of(root)
        platform.estimate(job)
        platform.find(job.id)
        found = follow.follow(platform.nodus, "name")
        nodus_bill.ended_badly(platform.nodus, found)
        models.committed(platform.nodus, "models", THEN)
        models.kept(platform.nodus, job.model)


def reads_volume(root: Path) -> None:
    """What lies on the Modal Volume of a job, but for its files."""
    with answering(root):
        store = Store("volume", None)
        store.tries(job_of(root).id)
        store.job(job_of(root).id)


def bills_modal(root: Path) -> None:
    with answering(root):
        found = modal_bill.fetch(job_of(root).id, THEN, [])
    assert found.usd is None or 0 <= found.usd < 10**6


def ends_modal(root: Path) -> None:
    """What the Function on Modal returns, of what can be sent as JSON."""
    try:
        result = json.loads((root / ENDED).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ParityError(f"not to be sent: {type(error).__name__}") from None
    answered(result)
