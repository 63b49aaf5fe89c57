"""How a Nodus Job may be refused, run, break off and end: one line each, the ledger right, nothing left behind."""

import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.command import ParityError
from stages.platforms import nodus as module
from stages.platforms.on_nodus import follow
from stages.platforms.on_nodus.client import connect
from stages.protocol import Protocol
from tests.platforms.budget import booked, roles
from tests.platforms.nodus_setup import ROOT, Emulator, delivered, jobs_of, pointed, settings

pytest.importorskip("nodus", reason="the SDK is the extra `nodus`")


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
    assert booked(tmp_path / "state") == [("failed_before_training", None, True)]


def test_a_dry_run_that_says_the_job_would_be_refused_is_believed(nodus: Emulator, job: Any, tmp_path: Path) -> None:
    nodus.fault(no_dry_run={"code": "QuotaExceeded", "message": "no L4 in this project's quota"})
    with (
        pytest.raises(ParityError, match="would be refused: QuotaExceeded: no L4 in this project's quota"),
        delivered(tmp_path / "state", job),
    ):
        pass
    assert jobs_of(nodus, job) == []
    assert booked(tmp_path / "state") == []


def test_a_cap_below_the_hold_is_refused(nodus: Emulator, job: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(ParityError, match=r"BudgetExceeded: .*needed 0\.05"),
        delivered(tmp_path / "state", job, cap="0.01"),
    ):
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
    assert booked(tmp_path / "state") == [("failed", found["status"]["cost"]["totalUSD"], True)]


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


def gives_up(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """The SDK, which tries a server that is away for five minutes, gives up on the Job's state so many times."""
    import nodus

    asked, current = itertools.count(1), follow.current

    def away(*given: Any) -> Any:
        if next(asked) <= times:
            raise nodus.errors.APIConnectionError("no route to host")
        return current(*given)

    monkeypatch.setattr(follow, "current", away)


def test_when_the_sdk_gives_up_on_the_server_the_job_is_still_waited_for(
    nodus: Emulator, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    gives_up(monkeypatch, 2)
    with delivered(tmp_path / "state", job):
        pass
    assert capsys.readouterr().out.count("the server does not answer; the Job runs on, still waiting") == 2
    assert len(jobs_of(nodus, job)) == 1


def test_a_server_that_stays_away_leaves_the_job_to_be_taken_up(
    nodus: Emulator, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gives_up(monkeypatch, float("inf"))
    monkeypatch.setattr(follow, "AWAY_SECONDS", 0.2)
    with pytest.raises(ConnectionError, match="it takes up the job"), delivered(tmp_path / "state", job):
        pass
    assert roles(tmp_path / "state") == [("in_flight", False)]
    monkeypatch.undo()
    with pointed(nodus.environment), delivered(tmp_path / "state", job) as delivery:
        assert delivery.clock.taken_up
    assert len(jobs_of(nodus, job)) == 1
    assert roles(tmp_path / "state") == [("headline_successful_attempt", True)]


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
    assert roles(tmp_path / "state") == [("headline_successful_attempt", True)]


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
    assert roles(tmp_path / "state") == [("headline_successful_attempt", True)]  # it was paid for
