"""Platform `modal`: how a job may end, what is left of it then, and that none is paid for twice."""

import json
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.command import ParityError
from stages.evidence.digests import sha256_file
from stages.jobs import read_job
from stages.platforms.modal import Settings
from stages.platforms.on_modal import bill
from tests.platforms.budget import booked, roles
from tests.platforms.conftest import Finished
from tests.platforms.modal_kit import SETTINGS, Emulator, exported, job_id, make_job, start, submit, until
from tests.platforms.modal_submit import submit as run

PRICES = Settings.model_validate(SETTINGS).prices
ENDINGS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], str, str]] = {
    "a worker that raises": (
        {"end": "fail"},
        [],
        {},
        r"the worker failed on Modal: data row 7: no label\. Run",
        "failed",
    ),
    "a worker killed": ({"end": "die"}, [], {}, r"worker failed on Modal \(out of memory\?\): exit code -9", "failed"),
    "out of memory": ({}, [{"kind": "oom", "step": 2}], {}, r"ran out of memory.*memory_gib", "out of memory"),
    "a lost container": ({}, [{"kind": "kill", "step": 2}], {}, r"lost the job's container.*resume", "lost"),
    "a timeout": ({"pause": 30}, [], {"timeout_seconds": 3}, r"ran into modal.timeout_seconds", "timeout"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_job_that_ends_badly_says_so_and_leaves_nothing(emulated: Emulator, tmp_path: Path, name: str) -> None:
    plan, faults, settings, message, outcome = ENDINGS[name]
    job = make_job(tmp_path / "job", **plan)
    emulated.faults(*faults)
    with pytest.raises(ParityError, match=message):
        run(tmp_path / "state", job, settings)
    assert emulated.tries(job_id(job)) == [outcome]
    assert emulated.left() == []
    assert not (tmp_path / "state/modal" / job_id(job) / "handle.json").exists()
    ((role, charge, final),) = booked(tmp_path / "state")
    assert (role, final) == ("failed", True)
    assert Decimal(charge or 0) > 0


def test_a_failed_job_resumes_and_its_receipt_tells_both_tries(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=3, pause=0.6)
    emulated.faults({"kind": "kill", "step": 3})
    with pytest.raises(ParityError, match="lost"):
        run(tmp_path / "state", job, {})
    found = run(tmp_path / "state", job, {})
    assert [attempt["outcome"] for attempt in found["receipt"]["attempts"]] == ["lost", "succeeded"]
    assert found["result"]["resumed"][0] >= 1


def test_a_preempted_function_goes_on_from_its_last_checkpoint(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=3, pause=0.6)
    emulated.faults({"kind": "preempt", "step": 3})
    found = run(tmp_path / "state", job, {})
    assert [attempt["outcome"] for attempt in found["receipt"]["attempts"]] == ["preempted", "succeeded"]
    assert found["result"]["resumed"][0] >= 1
    assert emulated.runs(job_id(job)) == 1
    assert emulated.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_cancels_the_job_and_stops_the_app(emulated: Emulator, tmp_path: Path, number: int) -> None:
    job = make_job(tmp_path / "job", steps=50, pause=0.5)
    child = start(emulated, tmp_path / "state", job)
    assert child.stdout
    while not (line := child.stdout.readline()).startswith("step 1/"):
        assert line, "the job did not start"
    child.send_signal(number)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 130, output
    assert output.splitlines()[-1] == "error: interrupted"
    assert emulated.tries(job_id(job)) == ["cancelled"]
    assert emulated.left() == []
    assert roles(tmp_path / "state") == [("failed", True)]


@pytest.mark.parametrize("moment", ["queued", "waiting for one that is queued"])
def test_a_job_interrupted_before_it_started_is_cancelled_and_costs_nothing(
    emulated: Emulator, tmp_path: Path, moment: str
) -> None:
    job = make_job(tmp_path / "job", steps=3)
    emulated.faults({"kind": "queue", "times": -1})
    if moment != "queued":
        assert submit(emulated, tmp_path / "state", job, "--kill", "before the handle")[0] == -signal.SIGKILL
    asked = len(emulated.requests("FunctionGetCurrentStats")) + len(emulated.requests("FunctionMap"))
    child = start(emulated, tmp_path / "state", job)
    until(lambda: len(emulated.requests("FunctionGetCurrentStats")) + len(emulated.requests("FunctionMap")) > asked)
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 130, output
    emulated.faults()
    assert emulated.tries(job_id(job)) == []
    assert emulated.left() == []


def test_detached_the_job_outlives_ctrl_c_and_the_same_command_takes_it_up(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", steps=8, pause=0.5)
    child = start(emulated, tmp_path / "state", job, "--detach")
    assert child.stdout
    while not (line := child.stdout.readline()).startswith("step 1/"):
        assert line, "the job did not start"
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "the job runs on; the same command takes it up" in output
    assert emulated.processes() != []
    found = run(tmp_path / "state", job, {})
    assert [attempt["outcome"] for attempt in found["receipt"]["attempts"]] == ["succeeded"]
    assert emulated.runs(job_id(job)) == 1
    assert roles(tmp_path / "state") == [("headline_successful_attempt", True)]
    assert emulated.left() == []


def test_a_token_revoked_while_the_job_runs_takes_one_line_and_the_job_is_taken_up_later(
    emulated: Emulator, tmp_path: Path
) -> None:
    job = make_job(tmp_path / "job", steps=8, pause=0.5)
    child = start(emulated, tmp_path / "state", job)
    assert child.stdout
    while not (line := child.stdout.readline()).startswith("step 1/"):
        assert line, "the job did not start"
    emulated.faults({"kind": "refuse", "times": -1})
    output, _ = child.communicate(timeout=100)
    assert child.returncode == 1
    assert output.splitlines()[-1].startswith("error: Modal refused the token")
    assert "Stop it: modal app stop parity-" in output
    assert roles(tmp_path / "state") == [("failed", False)]
    emulated.faults()
    run(tmp_path / "state", job, {})
    assert emulated.runs(job_id(job)) == 1
    assert emulated.left() == []


def test_starts_that_together_cost_more_than_the_cap_are_stopped(emulated: Emulator, tmp_path: Path) -> None:
    """Modal starts a preempted input again, each time with its whole timeout."""
    rate = bill.rate(read_job(job := make_job(tmp_path / "job", steps=99, pause=0.3)), PRICES)
    emulated.faults({"kind": "preempt", "step": 3})
    with pytest.raises(ParityError, match=r"campaign\.cap_usd is used up: Modal had to start the job again"):
        run(tmp_path / "state", job, {"timeout_seconds": 15}, str(rate * 16))
    assert emulated.tries(job_id(job)) == ["preempted", "failed"]
    assert roles(tmp_path / "state") == [("failed", True)]
    assert emulated.left() == []


REVOKED = {"kind": "refuse", "times": -1}
UNREACHED: dict[str, tuple[dict[str, str], list[dict[str, Any]], str]] = {
    "no token": ({"MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""}, [], "no Modal token: run `modal token new`"),
    "a wrong token": ({"MODAL_TOKEN_ID": "ak-other"}, [], "Modal refused the token"),
    "a revoked token": ({}, [REVOKED], "Modal refused the token"),
    "no network": ({"MODAL_SERVER_URL": "http://127.0.0.1:9"}, [], "Modal: not reached"),
}


# The SDK tries to connect for a minute before it gives up.
SLOW = {"no network": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in UNREACHED])
def test_an_account_that_is_not_reached_takes_one_line(emulated: Emulator, tmp_path: Path, name: str) -> None:
    environment, faults, message = UNREACHED[name]
    emulated.faults(*faults)
    status, output = submit(emulated, tmp_path / "state", make_job(tmp_path / "job"), environment=environment)
    assert status == 1
    assert message in output
    assert [line for line in output.splitlines() if "error" in line] == [output.splitlines()[-1]]
    assert emulated.left() == []
    # What may have arrived is held; a refusal is an attempt that cost nothing.
    unsure = name == "no network"
    assert booked(tmp_path / "state") == [("in_flight" if unsure else "failed_before_training", None, not unsure)]


def test_an_unknown_gpu_is_refused_with_what_to_do(emulated: Emulator, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job")
    record = json.loads((job / "job.json").read_text())
    record["resources"]["gpu"] = "L5"
    (job / "job.json").write_text(json.dumps(record))
    with pytest.raises(ParityError, match=r"no price for L5, only for L4; add it, or ask for another GPU"):
        run(tmp_path / "state", job, {})
    price = SETTINGS["prices"]["gpu_second"]["L4"]
    prices = SETTINGS["prices"] | {"gpu_second": {"L5": price}}
    with pytest.raises(ParityError, match="Modal: Unknown GPU type 'L5'"):
        run(tmp_path / "state", job, {"prices": prices})
    assert emulated.left() == []


# Never paid twice

POINTS = ["before submission", "before the handle", "queued", "running", "fetching", "after"]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_submit_side_is_taken_up_without_a_second_run(emulated: Emulator, tmp_path: Path, point: str) -> None:
    job = make_job(tmp_path / "job", steps=3, pause=0.4, size=9_000_000)
    if point in ("queued", "before the handle"):
        emulated.faults({"kind": "queue", "times": -1})
    status, output = submit(emulated, tmp_path / "state", job, "--kill", point)
    assert status == -signal.SIGKILL, output
    emulated.faults()
    found = run(tmp_path / "state", job, {})
    assert found["files"]["model/model.safetensors"] == sha256_file(exported(tmp_path / "expected", 9_000_000))
    assert emulated.runs(job_id(job)) == 1
    assert emulated.tries(job_id(job)) == ["succeeded"]
    assert emulated.left() == []
    assert roles(tmp_path / "state") == [("headline_successful_attempt", True)]


def test_a_finished_job_is_only_fetched_again_even_without_its_handle(
    emulated: Emulator, finished: Finished, tmp_path: Path
) -> None:
    for state in (finished.state, tmp_path / "another machine"):
        assert run(state, finished.job, {})["files"] == finished.found["files"]
    assert emulated.runs(job_id(finished.job)) == 1
