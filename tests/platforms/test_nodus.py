"""The Nodus platform against its emulator, through the real SDK. The worker is mostly a light one; see nodus_setup."""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from emulators.nodus.billing import RATE
from stages.command import ParityError
from stages.evidence.digests import sha256_file
from stages.jobs import write_job
from stages.platforms import nodus as module
from stages.platforms.common.process import rehearsal
from stages.platforms.on_nodus.client import connect
from stages.protocol import Protocol
from tests.platforms.nodus_setup import (
    ROOT,
    Emulator,
    case,
    delivered,
    light_files,
    model_folder,
    pointed,
    settings,
)

pytest.importorskip("nodus", reason="the SDK is the extra `nodus`")
REPEATS = itertools.count(1)  # every job of this module is another
BILLS = {  # as published: seconds shown and USD, and their sum
    "sft": ({"boot": (9, "0.001767"), "running": (191, "0.036626"), "teardown": (52, "0.010303")}, "0.048696"),
    "pretrain": ({"boot": (215, "0.041332"), "running": (330, "0.063349"), "teardown": (85, "0.016483")}, "0.121164"),
}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    running = Emulator(tmp_path_factory.mktemp("emulator"))
    yield running
    assert running.stop() == 0


@pytest.fixture
def nodus(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Emulator]:
    """The emulator with the SDK pointed at it, the light worker in the place of the real one, no fault left over."""
    emulator.fault()
    with pointed(emulator.environment):
        monkeypatch.setattr(module, "worker_files", lambda: light_files(tmp_path / "light"))
        yield emulator
    assert emulator.running == []
    answers = [request["code"] for request in emulator.requests]
    assert 418 not in answers, "the emulator failed by accident; its traceback is on stderr"


@pytest.fixture
def job(embedded: Protocol, tmp_path: Path) -> Any:
    return case(embedded, tmp_path / "files", repeat=next(REPEATS))


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Tell the light worker what to do."""

    def told(**wanted: Any) -> None:
        monkeypatch.setattr(module, "worker_files", lambda: light_files(tmp_path / "light", **wanted))

    return told


def jobs_of(emulator: Emulator, parts: Any) -> list[dict[str, Any]]:
    return [o for o in emulator.objects("Job") if o["metadata"]["labels"]["parity-job"] == parts[0].id[:63]]


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
        assert time.monotonic() - started > delivery.seconds + 1


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


# Before anything is paid.


def test_importing_the_platform_is_light() -> None:
    code = "import sys, stages.platforms.nodus as m; print([n for n in ('nodus', 'torch', 'transformers', 'httpx', "
    code += "'zstandard') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_without_a_key_it_says_how_to_sign_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODUS_CONFIG", "/dev/null")
    with pytest.raises(ParityError, match=r"not signed in; run `nodus login`, or set NODUS_API_KEY"):
        connect(None)


def test_a_wrong_key_is_named_and_its_value_is_not(
    nodus: Emulator, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODUS_API_KEY", "nodus_somebodys")
    with pytest.raises(ParityError, match=r"Unauthorized: .*the key was refused") as caught, delivered(tmp_path, job):
        pass
    assert "nodus_somebodys" not in str(caught.value)
    assert "nodus_somebodys" not in (nodus.folder / "requests.jsonl").read_text()


@pytest.mark.parametrize("kind", ["refused", pytest.param("silent", marks=pytest.mark.slow)])
def test_a_server_that_is_away_is_heard_of_within_ten_seconds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if kind == "refused":
            listener.close()
        monkeypatch.setenv("NODUS_API_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("NODUS_API_KEY", "nodus_any")
        started = time.monotonic()
        with pytest.raises(ParityError, match=rf"http://127\.0\.0\.1:{port}: no answer .*Check the network"):
            connect(None)
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("parameters", [{}, {"status": True}], ids=["in the estimate", "as a refusal"])
def test_a_dry_run_without_an_offering_warns_and_goes_on(
    nodus: Emulator, job: Any, tmp_path: Path, parameters: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    nodus.fault(no_dry_run=parameters)
    with delivered(tmp_path / "state", job):
        pass
    assert "warning: nodus: the dry run says NoFeasibleOffering" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("budget", r"BudgetExceeded: .*needed 1\.00 USD, left 0\.12 USD; raise the budget on Nodus"),
        ("credits", r"InsufficientCredits: .*add credits"),
        ("capacity", r"CapacityUnavailable: no L4 is free now; run the same command again later"),
        ("no-offering", r"NoFeasibleOffering: .*no machine has the protocol's resources"),
        ("build-fails", r"failed to build \(StepFailed\): step 1: pip exited with 1; .*Check the protocol"),
    ],
)
def test_a_refused_admission_is_one_line_and_no_job(
    nodus: Emulator, job: Any, embedded: Protocol, tmp_path: Path, fault: str, line: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(module, "requirements", lambda _: [fault])  # an image of its own
    nodus.fault(**{fault: {}})
    with pytest.raises(ParityError, match=line) as caught, delivered(tmp_path / "state", job):
        pass
    assert "\n" not in str(caught.value)
    assert jobs_of(nodus, job) == []


def test_a_cap_below_the_hold_is_refused(nodus: Emulator, job: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tests.platforms.nodus_setup.CONTEXT", module.Context(None, Decimal("0.01")))
    with pytest.raises(ParityError, match=r"BudgetExceeded: .*needed 0\.05"), delivered(tmp_path / "state", job):
        pass


# While it runs.


@pytest.mark.parametrize(
    "faults", [{}, pytest.param({"times": 5}, marks=pytest.mark.slow)], ids=["once", "until no attempt is left"]
)
@pytest.mark.parametrize("name", ["preempt", "lose"])
def test_an_interrupted_job_is_attempted_again_and_goes_on_from_its_checkpoint(
    nodus: Emulator, job: Any, tmp_path: Path, plan: Callable[..., None], name: str, faults: Any
) -> None:
    plan(steps=10, pause=0.05)
    nodus.fault(
        **{name: faults | {"at": "^step 2/|first [^1]", "snapshots": 1}, "snapshot": {"every": 0.05, "times": 99}}
    )
    if faults:
        line = r"5 attempts, 0\.\d+ USD so far\): its machine was"
        with pytest.raises(ParityError, match=line), delivered(tmp_path / "state", job):
            pass
        return
    with delivered(tmp_path / "state", job) as delivery:
        result = json.loads((delivery.out / "result.json").read_text())
        first, second = delivery.receipt.attempts
        segments = delivery.receipt.segments
    assert result["first"] > 1
    assert (first.outcome, second.outcome) == ({"preempt": "preempted", "lose": "lost"}[name], "succeeded")
    assert "restore" in segments
    assert Decimal(delivery.receipt.charge_usd or 0) == sum(Decimal(part.usd) for part in segments.values())


@pytest.mark.parametrize(
    ("wanted", "faults", "chosen", "line"),
    [
        ({"exit": 17}, {}, {}, r"CustomerExit .*exit code 17; its message stands above"),
        ({"steps": 99}, {"oom": {"at": "step 2"}}, {}, r"OOMKilled .*more memory than the machine has"),
        ({"steps": 999}, {}, {"timeout": "2s"}, r"DeadlineExceeded .*raise nodus\.timeout"),
        ({"steps": 99}, {"cap": {"at": "step 2"}}, {}, r"MaxCostReached .*raise campaign\.cap_usd"),
    ],
    ids=["exit code", "out of memory", "deadline", "cap"],
)
def test_a_job_that_ends_badly_says_why_what_to_do_and_what_it_cost(
    nodus: Emulator,
    job: Any,
    tmp_path: Path,
    plan: Callable[..., None],
    wanted: Any,
    faults: Any,
    chosen: Any,
    line: str,
) -> None:
    plan(**wanted)
    nodus.fault(**faults)
    with pytest.raises(ParityError, match=line) as caught, delivered(tmp_path / "state", job, settings(**chosen)):
        pass
    assert "\n" not in str(caught.value)
    assert "USD so far" in str(caught.value)
    (found,) = jobs_of(nodus, job)
    assert found["status"]["phase"] in ("Failed", "Cancelled")


def test_every_line_of_the_log_is_shown_once_though_its_stream_breaks(
    nodus: Emulator, job: Any, tmp_path: Path, plan: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plan(steps=12, pause=0.12)
    nodus.fault(cut_logs={"lines": 4, "times": 2})
    with delivered(tmp_path / "state", job):
        pass
    steps = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert steps == [f"step {number}/12 first 1" for number in range(1, 13)]


def test_closed_watches_and_expired_versions_are_survived(
    nodus: Emulator, job: Any, tmp_path: Path, plan: Callable[..., None]
) -> None:
    plan(steps=10, pause=0.3)
    nodus.fault(close_watch={"seconds": 0.4, "times": 2}, expire={"times": 2})
    with delivered(tmp_path / "state", job):
        pass
    assert 410 in [request["code"] for request in nodus.requests]
    assert nodus.faults_left() == {}


@pytest.mark.slow
def test_a_control_plane_that_is_away_for_a_while_is_survived(
    nodus: Emulator, job: Any, tmp_path: Path, plan: Callable[..., None]
) -> None:
    plan(steps=10, pause=0.2)
    away = threading.Timer(1.5, lambda: nodus.fault(away={"seconds": 4}))
    away.start()
    with delivered(tmp_path / "state", job):
        pass
    assert nodus.faults_left() == {}
    assert len(jobs_of(nodus, job)) == 1


# Bringing it back.


def test_an_altered_output_is_refused_and_fetched_anew_without_another_job(
    nodus: Emulator, job: Any, tmp_path: Path
) -> None:
    nodus.fault(flip={"byte": 200})
    line = r"came back altered.*Run the same command again"
    with pytest.raises(ParityError, match=line), delivered(tmp_path / "state", job):
        pass
    assert not list((tmp_path / "state").rglob("result.json"))
    with delivered(tmp_path / "state", job) as delivery:
        assert (delivery.out / "result.json").is_file()
    assert len(jobs_of(nodus, job)) == 1


def test_a_broken_transfer_is_taken_up_where_it_broke(
    nodus: Emulator, job: Any, tmp_path: Path, plan: Callable[..., None]
) -> None:
    plan(mib=2)
    nodus.fault(drop={"after": 500_000, "times": 3})
    with delivered(tmp_path / "state", job) as delivery:
        assert (delivery.out / "model" / "model.safetensors").stat().st_size == 2 << 20
    assert nodus.faults_left() == {}


def test_an_output_that_is_listed_late_is_waited_for(nodus: Emulator, job: Any, tmp_path: Path) -> None:
    nodus.fault(missing={"times": 2})
    with delivered(tmp_path / "state", job) as delivery:
        assert (delivery.out / "result.json").is_file()


def test_a_missing_output_is_one_line(
    nodus: Emulator, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.outputs, "LATE_SECONDS", 1)
    nodus.fault(missing={"times": 99})
    with pytest.raises(ParityError, match=r"its output is not there.*raise repeat"), delivered(tmp_path / "state", job):
        pass


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


def wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
