"""A submit side that is killed, interrupted, or given much to fetch."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stages.evidence.digests import canonical
from stages.jobs import build
from stages.platforms import HANDLE
from stages.protocol import Protocol
from tests.conftest import tiny_architecture
from tests.platforms.budget import roles
from tests.platforms.nodus_setup import ROOT, Emulator, delivered, pointed, wait_until

pytest.importorskip("nodus", reason="the SDK is the extra `nodus`")
REPEATS = itertools.count(1)  # every test's job is another
POINTS = ["before submission", "queued", "running", "fetching", "after"]


class Side:
    """A submit side's command line and where its things lie."""

    def __init__(self, emulator: Emulator, folder: Path, **plan: Any):
        self.emulator, self.state = emulator, folder / "state"
        (folder / "light").mkdir(parents=True)
        wanted = {"steps": 6, "pause": 0.1, "repeat": next(REPEATS)} | plan
        (folder / "light" / "wanted.json").write_text(json.dumps(wanted))
        self.command = [sys.executable, "-m", "tests.platforms.nodus_submit"]
        self.command += [str(folder / name) for name in ("state", "files", "light")]
        given = {name: value for name, value in emulator.environment.items() if value is not None}
        self.environment = os.environ | given | {"PYTHONPATH": str(ROOT)}

    def start(self, *point: str) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*self.command, *point], env=self.environment, text=True, cwd=ROOT, **pipes)  # type: ignore[call-overload,no-any-return]

    def finish(self) -> dict[str, Any]:
        done = self.start()
        out, _ = done.communicate(timeout=120)
        assert done.returncode == 0, out
        said: dict[str, Any] = json.loads(out.splitlines()[-1])
        return said

    @property
    def jobs(self) -> list[dict[str, Any]]:
        ids = {path.name[:63] for path in self.state.glob("nodus/*")}
        return [o for o in self.emulator.objects("Job") if o["metadata"]["labels"]["parity-job"] in ids]


@pytest.mark.parametrize("point", POINTS)
def test_a_submit_side_that_is_killed_never_leads_to_a_second_paid_job(
    nodus_emulator: Emulator, tmp_path: Path, point: str
) -> None:
    nodus_emulator.fault(queue={"seconds": 1})
    side = Side(nodus_emulator, tmp_path)
    killed = side.start(point)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert len(side.jobs) == (0 if point == "before submission" else 1)
    said = side.finish()
    assert said["attempts"] == ["succeeded"]
    assert said["final"]
    (job,) = side.jobs
    assert job["metadata"]["name"].endswith("-1")
    # The output was paid for: the handle stays, so that it can be fetched again; what was fetched does not.
    (folder,) = (path for path in side.state.glob("nodus/*") if path.is_dir())
    assert (folder / HANDLE).is_file()
    assert not {"out", "source"} & {path.name for path in folder.iterdir()}
    assert roles(side.state) == [("headline_successful_attempt", True)]
    assert nodus_emulator.running == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_submit_side_cancels_its_job_and_sees_it_end(
    nodus_emulator: Emulator, tmp_path: Path, number: int
) -> None:
    nodus_emulator.fault()
    side = Side(nodus_emulator, tmp_path, steps=999)
    running = side.start()
    wait_until(lambda: side.jobs and side.jobs[0]["status"]["phase"] == "Running")
    running.send_signal(number)
    started = time.monotonic()
    out, _ = running.communicate(timeout=60)
    assert time.monotonic() - started < 15
    assert running.returncode == 130
    assert out.rstrip().endswith("error: interrupted")
    (job,) = side.jobs
    assert job["status"]["phase"] == "Cancelled", out
    assert nodus_emulator.running == []
    assert not list(side.state.rglob(HANDLE))
    assert roles(side.state) == [("failed", True)]


@pytest.mark.parametrize("moment", ["submitting", "queued"])
def test_ctrl_c_before_the_job_runs_cancels_it_too(nodus_emulator: Emulator, tmp_path: Path, moment: str) -> None:
    nodus_emulator.fault(queue={"seconds": 5})
    side = Side(nodus_emulator, tmp_path, steps=999)
    running = side.start()
    started = nodus_emulator.folder / "light"
    wait_until(lambda: side.jobs if moment == "queued" else list(side.state.rglob("job.json")) or started.exists())
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 130, out
    nodus_emulator.fault()
    assert all(job["status"]["phase"] == "Cancelled" for job in side.jobs)
    assert nodus_emulator.running == []
    again = Side(nodus_emulator, tmp_path / "again")
    assert again.finish()["attempts"] == ["succeeded"]


def test_detached_the_job_outlives_ctrl_c_and_the_same_command_takes_it_up(
    nodus_emulator: Emulator, tmp_path: Path
) -> None:
    nodus_emulator.fault()
    side = Side(nodus_emulator, tmp_path, steps=40)
    running = side.start("detached")
    wait_until(lambda: list(side.state.rglob(HANDLE)))
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "the job runs on; the same command takes it up" in out
    assert nodus_emulator.running != []
    assert side.finish()["attempts"] == ["succeeded"]
    assert len(side.jobs) == 1
    assert roles(side.state) == [("headline_successful_attempt", True)]


def trained(emulator: Emulator, folder: Path, tiny_model: Path, protocol: Protocol, repeat: int) -> dict[str, Any]:
    """Train a tiny model with the real worker as a Job; what came of it."""
    recipe = protocol.train.sft.model_copy(
        update={"max_steps": 12, "save_steps": 4, "logging_steps": 2, "per_device_train_batch_size": 2}
    )
    rows = folder / "sft-train.jsonl"
    rows.parent.mkdir(parents=True)
    words = ["good", "bad", "fine", "poor"]
    texts = [
        {"prompt": f"{words[n % 4]} {n}", "completion": f" {'positive' if n % 2 else 'negative'}"} for n in range(64)
    ]
    rows.write_bytes(b"".join(canonical(row) + b"\n" for row in texts))
    job = build(protocol, "sft", inputs=[rows], model=tiny_model, seed=11, repeat=repeat)
    architecture = tiny_architecture(512)
    job = job.model_copy(
        update={
            "training": job.training.model_copy(update={"recipe": recipe}) if job.training else None,
            "model": job.model.model_copy(update={"architecture": architecture}),
        }
    )
    with pointed(emulator.environment), delivered(folder / "state", (job, [rows], tiny_model)) as delivery:
        result: dict[str, Any] = json.loads((delivery.out / "result.json").read_text())
        log = (emulator.folder / "jobs" / emulator.created[-1]["metadata"]["name"] / "log").read_text()
        exported = sorted(path.name for path in (delivery.out / "model").iterdir())
        outcomes = [one.outcome for one in delivery.receipt.attempts]
        return result | {"log": log, "exported": exported, "outcomes": outcomes}


@pytest.mark.slow
def test_a_preempted_training_ends_in_the_weights_of_an_undisturbed_one(
    nodus_emulator: Emulator, tmp_path: Path, tiny_model: Path, embedded: Protocol, pilot: Path
) -> None:
    nodus_emulator.fault()
    plain = trained(nodus_emulator, tmp_path / "plain", tiny_model, embedded, 1)
    published = json.loads((pilot / "results.json").read_text())["stages"][0]["nodus"]["export_files"]
    assert set(plain["exported"]) <= set(published)
    for repeat, notice in enumerate((True, False), 2):
        strike = {"at": "^step 6/", "notice": notice, "snapshots": 1}
        nodus_emulator.fault(preempt=strike, snapshot={"every": 0.02, "times": 999})
        resumed = trained(nodus_emulator, tmp_path / f"notice {notice}", tiny_model, embedded, repeat)
        assert resumed["outcomes"] == ["preempted", "succeeded"]
        assert "resuming from step" in resumed["log"]
        for digest in ("model_weights_sha256", "training_tokens_sha256"):
            assert resumed[digest] == plain[digest]


@pytest.mark.slow
def test_a_large_output_needs_no_large_memory(
    nodus_emulator: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodus_emulator.fault()
    side = Side(nodus_emulator, tmp_path, steps=1, mib=64, blocks=16)
    said = side.finish()
    (archive,) = nodus_emulator.folder.glob(f"jobs/{side.jobs[0]['metadata']['name']}/outputs.tar.zst")
    started = time.perf_counter()
    subprocess.run(["cp", str(archive), str(tmp_path / "copy")], check=True)
    subprocess.run(["sha256sum", str(tmp_path / "copy")], check=True, stdout=subprocess.DEVNULL)
    plain = time.perf_counter() - started
    with capsys.disabled():
        print(
            f"\n1 GiB through outputs: {said['fetch_seconds']:.1f} s, cp and sha256sum {plain:.1f} s; "
            f"peak {said['peak_kib'] >> 10} MiB, {said['before_kib'] >> 10} MiB before"
        )
    assert archive.stat().st_size > 1 << 30
    assert said["peak_kib"] < 300 << 10
