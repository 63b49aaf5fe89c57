"""The Nodus platform against its emulator, through the real SDK. The worker is mostly a light one; see nodus_setup."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from emulators.nodus.billing import RATE
from stages.command import ParityError
from stages.evidence.digests import sha256_file
from stages.jobs import write_job
from stages.platforms import nodus as module
from stages.platforms.common.rehearsal import rehearsal
from stages.platforms.on_nodus.client import connect
from stages.protocol import Protocol
from tests.platforms.nodus_setup import (
    REPEATS,
    Emulator,
    case,
    delivered,
    light_files,
    model_folder,
    pointed,
    settings,
    wait_until,
)

pytest.importorskip("nodus", reason="the SDK is the extra `nodus`")
BILLS = {  # as published: seconds shown and USD, and their sum
    "sft": ({"boot": (9, "0.001767"), "running": (191, "0.036626"), "teardown": (52, "0.010303")}, "0.048696"),
    "pretrain": ({"boot": (215, "0.041332"), "running": (330, "0.063349"), "teardown": (85, "0.016483")}, "0.121164"),
}


def test_the_sdk_is_the_one_that_the_emulator_was_written_for() -> None:
    import nodus

    assert nodus.__version__ == "1.0.32", "go through the emulator's README with the new SDK's source, then move this"


# The Job as it is sent.


def test_the_job_asks_for_the_pilots_resources_cap_and_outputs(
    nodus: Emulator, job: Any, pilot: Path, tmp_path: Path
) -> None:
    with delivered(tmp_path / "state", job) as delivery:
        exported = {path.name for path in (delivery.out / "model").iterdir()}
    published = json.loads((pilot / "execution-record.json").read_text())["resource_controls"]["nodus"]
    cap = json.loads((pilot / "results.json").read_text())["campaign"]["per_live_test_cap_usd"]
    body = nodus.created[-1]
    assert body["spec"]["resources"] == {
        "gpu": {"count": 1, "type": ["L4"]},
        "cpu": str(published["cpu_minimum"]),
        "memory": f"{published['memory_minimum_gib']}Gi",
    }
    assert body["spec"]["maxCostUSD"] == cap
    assert body["spec"]["recovery"]["continuity"] == "Checkpointed"
    assert body["metadata"]["labels"]["parity-job"] == job[0].id[:63]
    # What lies below NODUS_OUTPUT_DIR comes back; no path of a container is written anywhere.
    assert "outputs" not in body["spec"]
    assert "/nodus/" not in json.dumps(body["spec"]["command"])
    assert exported == {"model.safetensors", "config.json"}


def test_the_image_has_the_pinned_stack_and_the_source_only_what_the_job_needs(
    nodus: Emulator, job: Any, tmp_path: Path
) -> None:
    with delivered(tmp_path / "state", job):
        pass
    (image,) = [o for o in nodus.objects("Image") if o["metadata"]["name"] == nodus.created[-1]["spec"]["imageRef"]]
    packages = image["spec"]["steps"][0]["pipInstall"]["packages"]
    assert {"torch==2.14.0", "transformers==5.17.0", "trl==1.13.0", "huggingface-hub==1.27.0"} <= set(packages)
    code = next((nodus.folder / "jobs" / nodus.created[-1]["metadata"]["name"]).glob("1/code"))
    names = {str(path.relative_to(code)) for path in code.rglob("*") if path.is_file()}
    shipped = {*light_files(tmp_path / "light"), "keep.py"}
    assert {name for name in names if "__pycache__" not in name} == shipped | {
        "job/job.json",
        "job/inputs/sft-train.jsonl",
        "job/model/config.json",
        "job/model/model.safetensors",
    }


def test_the_same_job_is_the_same_upload_to_the_byte(
    nodus: Emulator, job: Any, embedded: Protocol, tmp_path: Path
) -> None:
    with delivered(tmp_path / "state", job):
        pass
    os.utime(tmp_path / "files" / "sft-train.jsonl", (0, 0))
    uploads = len(nodus.sent("PUT", ""))
    twin = Emulator(tmp_path / "twin")
    try:
        with pointed(twin.environment), delivered(tmp_path / "other", job):
            pass
        assert twin.created[0]["spec"] == nodus.created[-1]["spec"]
    finally:
        twin.stop()
    assert uploads


def test_a_trained_model_is_scored_from_the_volume_without_an_upload(
    nodus: Emulator, job: Any, embedded: Protocol, tmp_path: Path
) -> None:
    with delivered(tmp_path / "state", job) as delivery:
        model = Path(shutil.copytree(delivery.out / "model", tmp_path / "trained"))
    scoring = case(embedded, tmp_path / "files", seed=None, model=model, repeat=next(REPEATS))
    with delivered(tmp_path / "state", scoring) as delivery:
        assert delivery.receipt.final
    digest = sha256_file(model / "model.safetensors")
    assert f"link {digest}" in nodus.created[-1]["spec"]["command"][-1]
    code = nodus.folder / "jobs" / nodus.created[-1]["metadata"]["name"] / "1" / "code"
    assert (code / "job" / "model").is_symlink()


def test_a_model_that_could_not_be_kept_is_uploaded_for_its_scoring(
    nodus: Emulator,
    job: Any,
    embedded: Protocol,
    tmp_path: Path,
    plan: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan(mib=1)  # weights that no other test's job has kept
    (tmp_path / "keep.py").write_text("print('the model was not kept on the Volume: disk full')\n")
    monkeypatch.setattr(module, "KEEP", tmp_path / "keep.py")
    with delivered(tmp_path / "state", job) as delivery:
        model = Path(shutil.copytree(delivery.out / "model", tmp_path / "trained"))
    (model / "config.json").write_text('{"another": 1}')
    with delivered(tmp_path / "state", case(embedded, tmp_path / "files", seed=None, model=model)):
        pass
    assert nodus.created[-1]["spec"]["command"] == ["python", "-m", "stages.worker", "job"]


def test_a_model_that_the_volume_does_not_keep_goes_with_the_source(
    nodus: Emulator, embedded: Protocol, tmp_path: Path
) -> None:
    model = model_folder(tmp_path / "elsewhere", b"trained elsewhere")
    scoring = case(embedded, tmp_path / "files", seed=None, model=model, repeat=next(REPEATS))
    with delivered(tmp_path / "state", scoring):
        pass
    assert nodus.created[-1]["spec"]["command"] == ["python", "-m", "stages.worker", "job"]
    assert "volumes" not in nodus.created[-1]["spec"]


def hub_case(pilot_protocol: Protocol, folder: Path) -> Any:
    job, inputs, _ = case(pilot_protocol, folder, seed=None, repeat=next(REPEATS))
    hub = job.model.model_copy(update={"source": "hub", "sha256": {}})
    return job.model_copy(update={"model": hub}), inputs, None


def test_the_hubs_model_is_imported_once_by_its_revision(
    pilot_protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_folder(tmp_path / "mirror" / pilot_protocol.model.id)
    monkeypatch.setenv("PARITY_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setattr(module, "worker_files", lambda: light_files(tmp_path / "light"))
    own = Emulator(tmp_path / "emulator")
    try:
        with pointed(own.environment):
            for _ in range(2):
                with delivered(tmp_path / "state", hub_case(pilot_protocol, tmp_path / "files")):
                    pass
        (volume,) = [o for o in own.objects("Volume") if "source" in o["spec"]]
        assert volume["spec"]["source"]["huggingface"] == {
            "repo": pilot_protocol.model.id,
            "revision": pilot_protocol.model.revision,
        }
        assert len([r for r in own.sent("POST", "/volumes") if "source" in r["body"]["spec"]]) == 1
        assert {"name": "PARITY_MIRROR", "value": "/mnt/parity/mirror"} in own.created[-1]["spec"]["env"]
    finally:
        own.stop()


def test_an_import_that_fails_says_so(nodus: Emulator, pilot_protocol: Protocol, tmp_path: Path) -> None:
    with (
        pytest.raises(ParityError, match=r"importing Qwen/Qwen2\.5-0\.5B into Volume \S+: ImportFailed: "),
        delivered(tmp_path / "state", hub_case(pilot_protocol, tmp_path / "files")),
    ):
        pass


# Money.


@pytest.mark.parametrize("task", BILLS)
def test_a_published_bill_comes_out_as_published(nodus: Emulator, job: Any, tmp_path: Path, task: str) -> None:
    parts, total = BILLS[task]
    exact = {name: Decimal(usd) / RATE for name, (_, usd) in parts.items()}
    shown = Decimal(parts["teardown"][0])
    bill = exact | {"teardown": shown, "increment": exact["teardown"] - shown}
    nodus.fault(bill={name: str(value) for name, value in bill.items()})
    with delivered(tmp_path / "state", job) as delivery:
        receipt = delivery.receipt
    assert {name: (part.seconds, part.usd) for name, part in receipt.segments.items()} == parts
    assert receipt.charge_usd == total
    assert sum(Decimal(part.usd) for part in receipt.segments.values()) == Decimal(total)
    assert receipt.final
    assert receipt.clean


def test_a_charge_that_is_not_final_yet_is_not_called_final(nodus: Emulator, job: Any, tmp_path: Path) -> None:
    nodus.fault(late_bill={"seconds": 2})
    with delivered(tmp_path / "state", job, settings(final_charge_seconds=0)) as delivery:
        assert not delivery.receipt.final
        assert delivery.receipt.clean is False  # money is still held
    with delivered(tmp_path / "state", job) as delivery:
        assert delivery.receipt.final
        assert delivery.receipt.clean


def test_a_final_charge_is_waited_for_after_the_output_is_there(nodus: Emulator, job: Any, tmp_path: Path) -> None:
    nodus.fault(late_bill={"seconds": 2})
    started = time.monotonic()
    with delivered(tmp_path / "state", job) as delivery:
        assert delivery.receipt.final
        assert time.monotonic() - started > delivery.clock.seconds + 1


def test_an_earlier_failed_job_of_the_same_id_stays_on_the_record(
    nodus: Emulator, job: Any, tmp_path: Path, plan: Callable[..., None]
) -> None:
    plan(exit=3)
    with pytest.raises(ParityError, match="exit code 3"), delivered(tmp_path / "state", job):
        pass
    plan()
    with delivered(tmp_path / "state", job) as delivery:
        outcomes = [(one.outcome, one.reason) for one in delivery.receipt.attempts]
    assert outcomes == [("failed", "CustomerExit"), ("succeeded", None)]
    assert all(Decimal(one.charge_usd or 0) > 0 for one in delivery.receipt.attempts)


# The emulator.


def test_the_emulator_refuses_a_field_that_the_sdk_does_not_know(nodus: Emulator, job: Any, tmp_path: Path) -> None:
    import nodus as sdk

    platform = module.Platform(settings(), module.Context(None, Decimal(1)))
    body = platform.rehearsed(job[0])
    body["metadata"] = {"name": "odd"}
    body["spec"] |= {"gpuCount": 1}
    with pytest.raises(sdk.errors.NodusError, match=r"spec\.gpuCount") as caught:
        platform.nodus.api.create(body)
    assert caught.value.status == 422


# Rehearsal.


def test_a_rehearsal_reaches_loopback_alone_whatever_account_is_configured(
    embedded: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "home" / ".nodus" / "config"
    config.parent.mkdir(parents=True)
    config.write_text("kind: Config\ncurrent-context: real\n")
    for name, value in {
        "HOME": str(tmp_path / "home"),
        "NODUS_API_URL": "https://api.nodus-compute.ai",
        "NODUS_API_KEY": "nodus_live_key",
        "NODUS_ORG": "acme",
        "NODUS_PROJECT": "production",
        "NODUS_CONTEXT": "real",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "worker_files", lambda: light_files(tmp_path / "light"))
    before = dict(os.environ)
    with rehearsal("nodus", tmp_path / "emulator", None):
        client = connect(None).api.default_client()
        assert client.config.api_url.startswith("http://127.0.0.1:")
        assert (client.config.api_key, client.config.org) == ("nodus_rehearsal", None)
        with delivered(tmp_path / "state", case(embedded, tmp_path / "files")):
            pass
    assert dict(os.environ) == before
    requests = [json.loads(line) for line in (tmp_path / "emulator" / "requests.jsonl").read_text().splitlines()]
    known = [r for r in requests if r["path"].startswith("/apis/")]
    assert known
    assert all(r["authorized"] and "/namespaces/rehearsal/" in r["path"] for r in known)


def test_the_emulator_keeps_everything_between_starts_and_leaves_nothing_running(
    embedded: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Emulator(tmp_path / "emulator")
    monkeypatch.setattr(module, "worker_files", lambda: light_files(tmp_path / "light", steps=40, pause=0.05))
    parts = case(embedded, tmp_path / "files")
    with pointed(own.environment):
        platform = module.Platform(settings(), module.Context(None, Decimal(1)))
        write_job(parts[0], tmp_path / "work" / "job", parts[1], parts[2])
        reference = platform.submit(parts[0], tmp_path / "work")
    log = own.folder / "jobs" / reference["name"] / "log"
    wait_until(lambda: log.is_file() and "step 3/" in log.read_text())
    assert own.running
    own.stop(signal.SIGKILL)
    wait_until(lambda: own.running == [])
    own.start()
    with pointed(own.environment), delivered(tmp_path / "state", parts) as delivery:
        assert [one.outcome for one in delivery.receipt.attempts] == ["lost", "succeeded"]
    assert len(own.created) == 1
    own.stop()
