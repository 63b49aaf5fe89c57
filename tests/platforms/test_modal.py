"""Platform `modal` against its emulator, all but the worker real: what is asked for, goes up, comes back and costs."""

import importlib.metadata
import json
import re
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from stages.command import ParityError
from stages.evidence.digests import sha256_file
from stages.jobs import PROJECT, read_job
from stages.platforms import Context, modal
from stages.platforms.common import source
from stages.platforms.on_modal import bill, store
from stages.platforms.on_modal.store import Store
from stages.protocol import read_protocol
from stages.validation import validate
from tests.platforms.budget import roles
from tests.platforms.conftest import Finished
from tests.platforms.modal_kit import SETTINGS, Emulator, delivered, exported, job_id, make_job, submit
from tests.platforms.modal_submit import submit as run

TESTED_WITH = "1.6.4"

# What is asked of Modal


def test_the_pilots_job_asks_for_its_resources_pins_and_mounts(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", protocol="pilot", steps=1)
    run(tmp_path / "state", job, {})
    asked = emulated.requests("FunctionCreate")[-1]["function"]
    assert asked["resources"] == {
        "gpu_config": {"gpu_type": "L4", "count": 1},
        "milli_cpu": 4000,
        "milli_cpu_max": 4000,
        "memory_mb": 49152,
        "memory_mb_max": 49152,
    }
    assert asked["timeout_secs"] == SETTINGS["timeout_seconds"]
    assert "retry_policy" not in asked
    assert [(mount["mount_path"], mount["volume_id"]) for mount in asked["volume_mounts"]] == [
        ("/parity", emulated.state()["volumes"]["parity"])
    ]
    commands = [
        line for image in emulated.requests("ImageGetOrCreate")[-2:] for line in image["image"]["dockerfile_commands"]
    ]
    (base,) = [line for line in commands if line.startswith("FROM python:")]
    assert base.startswith("FROM python:3.11.")
    (install,) = [line for line in commands if "torch==" in line]
    for name, version in read_protocol("pilot", PROJECT).stack.model_dump(by_alias=True).items():
        assert f"{name}=={version}" in install


def test_the_workers_code_goes_along_and_nothing_else(emulated: Emulator, finished: Finished) -> None:
    mounts = [[file["filename"] for file in mount.get("files", [])] for mount in emulated.requests("MountGetOrCreate")]
    expected = sorted(f"{modal.CODE}/{name}" for name in [*source.worker_files(), *modal.FUNCTION_CODE])
    assert all(sorted(files) in ([], expected) for files in mounts)
    assert expected in map(sorted, mounts)
    assert not re.search(r"\.git|\.env|data/|params", " ".join(expected))


def test_the_sdk_is_the_one_that_this_was_tested_with() -> None:
    pinned = re.search(r"^modal==(.*)$", (PROJECT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert importlib.metadata.version("modal") == pinned[1] == TESTED_WITH, (
        "the modal client moved: run these tests, read its changes, then change TESTED_WITH and the pin"
    )


def test_submitting_starts_in_under_three_seconds_and_stays_light(emulated: Emulator, tmp_path: Path) -> None:
    job, started = make_job(tmp_path / "job", steps=1), time.time()
    status, output = submit(emulated, tmp_path / "state", job)
    assert status == 0, output
    lines = map(json.loads, (emulated.folder / "requests.jsonl").read_text().splitlines())
    assert min(line["at"] for line in lines if line["at"] > started) - started < 3
    assert delivered(output)["heavy"] == []


def test_importing_the_platform_imports_no_sdk() -> None:
    code = (
        "import sys, stages.platforms.modal as m; print({'modal', 'torch', 'transformers'} & sys.modules.keys() or '')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# What goes up and comes back


def test_a_trained_model_is_there_for_what_follows(emulated: Emulator, finished: Finished, tmp_path: Path) -> None:
    weights = emulated.volume() / "files" / sha256_file(exported(tmp_path / "trained", 20_000_000))
    assert weights.stat().st_size == 20_000_000
    second = make_job(tmp_path / "second", model=tmp_path / "trained", steps=1)
    run(tmp_path / "state", second, {})
    uploaded = [file["path"] for request in emulated.requests("VolumePutFiles2") for file in request["files"]]
    assert f"files/{weights.name}" not in uploaded
    assert f"jobs/{job_id(second)}/job.json" in uploaded


def test_no_weights_travel_as_arguments_of_the_call(emulated: Emulator, finished: Finished) -> None:
    assert max(len(json.dumps(request)) for request in emulated.requests("FunctionMap")) < 2000


def test_blocks_are_fetched_several_at_a_time(
    emulated: Emulator, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most, lock = 0, 0, threading.Lock()
    download = store.download

    def counted(url: str, length: int) -> bytes:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.2)
        try:
            return download(url, length)
        finally:
            with lock:
                under_way -= 1

    monkeypatch.setattr(store, "download", counted)
    assert run(finished.state, finished.job, {})["files"] == finished.found["files"]
    assert most == 3  # all of 20 MB


def test_outputs_come_back_as_the_worker_made_them(emulated: Emulator, finished: Finished, tmp_path: Path) -> None:
    expected, receipt = exported(tmp_path / "expected", 20_000_000), finished.found["receipt"]
    assert finished.found["files"]["model/model.safetensors"] == sha256_file(expected)
    assert (
        Decimal(receipt["charge_usd"]) == sum(map(Decimal, receipt["resources"]["charge_usd_by_resource"].values())) > 0
    )
    assert (receipt["final"], receipt["clean"]) == (True, True)
    assert [attempt["outcome"] for attempt in receipt["attempts"]] == ["succeeded"]
    assert emulated.left() == []


def test_a_connection_dropped_for_good_is_resumed_where_it_broke(emulated: Emulator, tmp_path: Path) -> None:
    job, size = make_job(tmp_path / "job", steps=1, size=30_000_000), 30_000_000
    emulated.faults({"kind": "drop", "after": 1000, "times": -1, "start": 16 << 20})
    with pytest.raises(ConnectionError, match="run the same command again: it takes up the job"):
        run(tmp_path / "state", job, {})
    partial = tmp_path / "state/modal" / job_id(job) / "out/model/model.safetensors"
    assert partial.stat().st_size == 16 << 20
    emulated.faults()
    assert run(tmp_path / "state", job, {})["files"]["model/model.safetensors"]
    asked = [
        int(request.get("start", 0)) for request in emulated.requests("VolumeGetFile2", len=str(size - (16 << 20)))
    ]
    assert asked == [16 << 20]
    assert emulated.runs(job_id(job)) == 1


def test_a_slow_answer_and_a_connection_dropped_once_are_not_noticed(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=1, size=9_000_000)
    emulated.faults(
        {"kind": "delay", "call": "FunctionMap", "seconds": 1},
        {"kind": "drop", "after": 1000, "folder": "files", "start": 8 << 20},
    )
    run(tmp_path / "state", job, {})
    assert emulated.runs(job_id(job)) == 1
    assert emulated.struck() == ["delay", "drop"]


def test_an_output_altered_on_its_way_is_refused_and_fetched_anew(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=1, size=9_000_000)
    emulated.faults({"kind": "flip", "start": 8 << 20})
    with pytest.raises(ParityError, match=r"model.safetensors: came back as 9000000 bytes, sha256 .* fetch it anew"):
        run(tmp_path / "state", job, {})
    run(tmp_path / "state", job, {})
    assert emulated.runs(job_id(job)) == 1


def test_an_output_cut_short_on_the_volume_is_refused_and_made_anew(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=1, size=123_456)
    _finish_unfetched(emulated, tmp_path / "state", job)
    weights = _weights(emulated, job)
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ParityError, match=r"gone from Volume parity.* run the job anew, which is charged again"):
        run(tmp_path / "state", job, {})
    run(tmp_path / "state", job, {})
    assert emulated.runs(job_id(job)) == 2


def test_an_output_that_vanished_is_said_to_be_lost_and_then_made_anew(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=1, size=123_457)
    _finish_unfetched(emulated, tmp_path / "state", job)
    _weights(emulated, job).unlink()
    with pytest.raises(ParityError, match=r"gone from Volume parity.* run the job anew, which is charged again"):
        run(tmp_path / "state", job, {})
    run(tmp_path / "state", job, {})
    assert emulated.runs(job_id(job)) == 2
    assert roles(tmp_path / "state") == [("headline_successful_attempt", True)] * 2


def _finish_unfetched(emulated: Emulator, state: Path, job: Path) -> None:
    """Let a job succeed while its download fails."""
    emulated.faults({"kind": "flip", "folder": "files"})
    with pytest.raises(ParityError, match="came back"):
        run(state, job, {})


def _weights(emulated: Emulator, job: Path) -> Path:
    manifest = json.loads((emulated.volume() / f"jobs/{job_id(job)}/manifest.json").read_text())
    digest: str = manifest["files"]["model/model.safetensors"]["sha256"]
    return emulated.volume() / "files" / digest


def test_an_input_altered_on_the_volume_is_named_and_then_brought_anew(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=1)
    ((name, digest),) = read_job(job).inputs.items()
    store = Store(SETTINGS["volume"], None)
    store.put({f"files/{digest}": b"x" * (job / "inputs" / name).stat().st_size})
    with pytest.raises(ParityError, match=r"sft-train.jsonl: sha256 .*, job.json says"):
        run(tmp_path / "state", job, {})
    run(tmp_path / "state", job, {})
    assert sha256_file(emulated.volume() / "files" / digest) == digest


# Money


def test_the_estimate_is_the_price_lists(tmp_path: Path) -> None:
    job = read_job(make_job(tmp_path / "job"))
    settings = validate(modal.Settings, SETTINGS, "params.yaml")
    assert bill.rate(job, settings.prices) == Decimal("0.000222") + 4 * Decimal("0.0000131") + 48 * Decimal(
        "0.00000222"
    )
    context = Context(None, Decimal("1.00"))
    assert modal.Platform(settings, context).estimate(job) == "0.1524"


def test_a_timeout_that_could_cost_more_than_the_cap_is_refused(emulated: Emulator, tmp_path: Path) -> None:
    with pytest.raises(ParityError, match=r"timeout_seconds: 2400 s may cost 0.91 USD, campaign.cap_usd is 0.50"):
        run(tmp_path / "state", make_job(tmp_path / "job"), {}, "0.50")


def test_a_late_bill_is_not_final(emulated: Emulator, tmp_path: Path) -> None:
    emulated.faults({"kind": "late_bill", "times": -1})
    receipt = run(tmp_path / "state", make_job(tmp_path / "job", steps=1), {})["receipt"]
    assert (receipt["charge_usd"], receipt["final"]) == (None, False)


def test_the_bill_is_asked_for_by_the_hour_and_by_the_jobs_tag(emulated: Emulator, finished: Finished) -> None:
    asked = emulated.requests("WorkspaceBillingReport")[-1]
    assert (asked["resolution"], asked["tag_names"]) == ("h", [bill.TAG])


def test_a_job_that_never_started_is_billed_for_nothing_once_its_hour_would_be_in_the_report(
    emulated: Emulator, finished: Finished
) -> None:
    def asked(age: timedelta) -> tuple[Decimal | None, bool]:
        found = bill.fetch("0" * 64, (datetime.now(UTC) - age).isoformat(), [])
        return found.usd, found.final

    assert asked(timedelta(minutes=5)) == (None, False)
    assert asked(timedelta(hours=5)) == (None, True)


def test_a_bill_adds_its_own_rows_and_is_final_with_the_last_hour() -> None:
    from modal.types import BillingReportItem

    def row(hour: int, cost: str, tag: str) -> BillingReportItem:
        begin = datetime(2026, 11, 30, hour, tzinfo=UTC)
        return BillingReportItem("ap", "", "main", begin, Decimal(cost), {"L4": Decimal(cost)}, {bill.TAG: tag})

    own, ended = "a" * 64, datetime(2026, 11, 30, 11, 5, tzinfo=UTC)
    rows = [row(10, "0.10", "a" * 32), row(10, "9.00", "b" * 32)]
    assert bill.total(rows, own, ended) == (Decimal("0.10"), False, {"L4": "0.10"})
    rows.append(row(11, "0.0123", "a" * 32))
    assert bill.total(rows, own, ended) == (Decimal("0.1123"), True, {"L4": "0.1123"})
