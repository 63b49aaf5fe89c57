"""Promise: one budget for everything on this machine; no attempt is lost, and nothing is spent twice."""

import itertools
import multiprocessing
import os
import signal
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.command import ParityError
from stages.evidence import ledger
from stages.evidence.ledger import Entry
from stages.platforms import Attempt, Receipt
from stages.platforms.on_nodus.bill import attempt as attempt_of
from stages.protocol import Campaign

ONE = Decimal("1.00")
HEADLINE = "headline_successful_attempt"
BUDGET = Campaign(name="test", authorization_usd="5.00", cap_usd="1.00", reserve_usd="1.00")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARITY_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def reserve(job: str = "a" * 64, campaign: Campaign = BUDGET, amount: Decimal = ONE, task: str = "sft") -> str:
    return ledger.reserve(campaign, job=job, platform="nodus", task=task, stage="train", amount=amount)


def settle(
    attempt: str, charge: str | None = "0.50", final: bool = True, role: str = "headline_successful_attempt"
) -> None:
    amount = None if charge is None else Decimal(charge)
    ledger.settle("test", attempt, role=role, charge_usd=amount, final=final)


def left() -> Decimal:
    return ledger.totals(BUDGET, ledger.entries("test")).available


def receipt(charge: str | None = "0.30", final: bool = True, outcome: str = "succeeded") -> Receipt:
    attempts = [Attempt(outcome=outcome, started_utc="2026-11-01T08:00:00+00:00")]
    return Receipt(platform="nodus", attempts=attempts, charge_usd=charge, final=final)


def test_a_hold_stays_until_the_charge_is_final() -> None:
    attempt = reserve()
    assert left() == Decimal("3.00")
    settle(attempt, "0.20", final=False)
    assert left() == Decimal("3.00")
    settle(attempt, "0.20", final=True)
    assert left() == Decimal("3.80")


def test_a_charge_above_its_hold_counts_in_full_before_it_is_final() -> None:
    settle(reserve(), "1.70", final=False)
    assert left() == Decimal("2.30")


def test_what_does_not_fit_is_refused_with_the_figures() -> None:
    for _ in range(4):
        reserve()
    told = "1.00 USD do not fit: 0.00 left of 5.00 authorized .1.00 kept back, 0 spent, 4.00 held or not final"
    with pytest.raises(ParityError, match=told):
        reserve()
    assert len(ledger.entries("test")) == 4


@pytest.mark.parametrize("amount", ["0", "-1", "1.01"])
def test_no_job_may_be_asked_for_above_the_cap_or_for_nothing(amount: str) -> None:
    with pytest.raises(ParityError, match=r"a job may cost 0 to 1\.00"):
        reserve(amount=Decimal(amount))


def test_attempts_have_readable_ids_and_keep_their_order() -> None:
    assert [reserve(), reserve(), reserve(task="pretrain")] == [
        "nodus-sft-train-1",
        "nodus-sft-train-2",
        "nodus-pretrain-train-1",
    ]
    assert [entry.role for entry in ledger.entries("test")] == ["in_flight"] * 3


def test_settling_twice_says_it_once_and_settling_the_unknown_is_refused(state: Path) -> None:
    attempt = reserve()
    settle(attempt)
    size = ledger.path("test").stat().st_size
    settle(attempt)
    assert ledger.path("test").stat().st_size == size
    with pytest.raises(ParityError, match="no attempt nodus-sft-train-9; there are nodus-sft-train-1"):
        settle("nodus-sft-train-9")
    with pytest.raises(ParityError, match="role: found 'best'"):
        settle(attempt, role="best")


def test_a_killed_submission_is_found_again_by_its_job() -> None:
    attempt = reserve(job="b" * 64)
    assert ledger.held("test", job="b" * 64, platform="nodus") == ledger.by_id("test", attempt)
    assert ledger.held("test", job="b" * 64, platform="modal") is None
    settle(attempt)
    assert ledger.held("test", job="b" * 64, platform="nodus") is None


def test_an_attempt_of_which_nothing_is_known_is_taken_up_and_one_that_failed_is_not() -> None:
    attempt = reserve(job="b" * 64)
    assert ledger.in_flight("test", job="b" * 64, platform="nodus") == ledger.by_id("test", attempt)
    ledger.settle_by("test", attempt, receipt("0.05", final=False, outcome="failed"))
    assert ledger.held("test", job="b" * 64, platform="nodus") == ledger.by_id("test", attempt)
    assert ledger.in_flight("test", job="b" * 64, platform="nodus") is None


def test_what_an_earlier_attempt_at_the_job_cost_is_booked_once() -> None:
    """A receipt is of all attempts at its job."""
    first, second = reserve(), reserve()
    ledger.settle_by("test", first, receipt("0.05", outcome="failed"))
    ledger.settle_by("test", second, receipt("0.30"))
    found = {entry.id: (entry.role, entry.charge_usd) for entry in ledger.entries("test")}
    assert found == {first: ("failed", "0.05"), second: (HEADLINE, "0.25")}


def test_an_attempt_that_never_got_a_machine_failed_before_training() -> None:
    attempt = reserve()
    nothing = Receipt(platform="nodus", attempts=[Attempt(outcome="failed")], charge_usd=None, final=True)
    ledger.settle_by("test", attempt, nothing)
    assert ledger.entries("test")[0].role == "failed_before_training"


def contend(gate: Any, answers: Any, campaign: Campaign) -> None:
    gate.wait()
    try:
        answers.put(reserve(job=str(os.getpid()), campaign=campaign))
    except ParityError as error:
        answers.put(str(error))


def test_of_two_processes_racing_for_the_last_dollar_one_gets_it_a_hundred_times() -> None:
    fork = multiprocessing.get_context("fork")
    for n in range(100):
        campaign = Campaign(name=f"race-{n}", authorization_usd="2.00", cap_usd="1.00", reserve_usd="1.00")
        gate, answers = fork.Barrier(2), fork.SimpleQueue()
        racers = [fork.Process(target=contend, args=(gate, answers, campaign)) for _ in range(2)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        found = sorted(answers.get() for _ in racers)
        assert found[1] == "nodus-sft-train-1"
        assert "do not fit: 0.00 left of 2.00 authorized" in found[0]
        assert len(ledger.entries(campaign.name)) == 1


def work_without_end(started: Any) -> None:
    for n in itertools.count():
        campaign = BUDGET.model_copy(update={"authorization_usd": "900000000"})
        attempt = reserve(job=str(n), campaign=campaign)
        started.value = n
        settle(attempt)


def test_sigkill_at_any_point_loses_no_attempt_and_leaves_the_ledger_whole() -> None:
    fork = multiprocessing.get_context("fork")
    for delay in range(12):
        started = fork.Value("i", -1)
        worker = fork.Process(target=work_without_end, args=(started,))
        before = len(ledger.entries("test"))
        worker.start()
        time.sleep(0.01 + delay * 0.003)
        assert worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        found = ledger.entries("test")
        assert len(found) >= before + started.value + 1
        assert sum(not entry.final for entry in found[before:]) <= 1
        assert ledger.reconcile("test", lambda entry: None) == {
            entry.id: "released: never submitted" for entry in found if not entry.final
        }
        assert all(entry.final for entry in ledger.entries("test"))


def test_a_line_that_was_being_written_when_the_machine_died_counts_for_nothing() -> None:
    attempt = reserve()
    file = ledger.path("test")
    whole = file.read_bytes()
    for length in (1, 10, 60):
        file.write_bytes(whole + whole[:length])
        assert [entry.id for entry in ledger.entries("test")] == [attempt]
    settle(attempt)
    assert file.read_bytes().startswith(whole)
    assert ledger.entries("test")[0].final


@pytest.mark.parametrize("line", [0, 1])
def test_an_altered_or_missing_line_is_named(line: int) -> None:
    settle(reserve())
    reserve()
    file = ledger.path("test")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines).replace(b'"1.00"' if line == 0 else b'"0.50"', b'"0.01"', 1))
    with pytest.raises(ParityError, match=rf"test\.jsonl:{line + 1}: altered"):
        ledger.entries("test")
    file.write_bytes(b"".join([*lines[:line], *lines[line + 1 :]]))
    with pytest.raises(ParityError, match=rf"test\.jsonl:{line + 1}: altered"):
        reserve()


@pytest.mark.parametrize(
    ("answer", "role", "committed", "said"),
    [
        (receipt(), "headline_successful_attempt", "0.30", "settled: 0.30 USD, final"),
        (receipt(outcome="failed"), "failed", "0.30", "settled: 0.30 USD, final"),
        (receipt(final=False), "headline_successful_attempt", "1.00", "still held: 0.30 USD so far, not final"),
        (receipt(charge=None, final=False), "headline_successful_attempt", "1.00", "still held: unknown so far"),
        (None, "failed_before_training", "0", "released: never submitted"),
    ],
)
def test_reconciling_goes_by_the_platforms_own_receipt(
    answer: Receipt | None, role: str, committed: str, said: str
) -> None:
    attempt = reserve()
    done = ledger.reconcile("test", lambda entry: answer)
    assert done[attempt].startswith(said)
    (found,) = ledger.entries("test")
    assert (found.role, found.committed) == (role, Decimal(committed))


def test_where_a_platform_cannot_be_asked_the_hold_stays() -> None:
    attempt = reserve()

    def unreachable(entry: Entry) -> Receipt:
        raise ParityError("no network")

    assert ledger.reconcile("test", unreachable) == {attempt: "still held: no network"}
    assert left() == Decimal("3.00")


def test_a_mark_changes_the_role_and_leaves_the_money() -> None:
    attempt = reserve()
    settle(attempt, "0.25")
    ledger.mark("test", attempt, role="superseded", detail="export_configuration")
    (found,) = ledger.entries("test")
    assert (found.role, found.detail, found.charge_usd) == ("superseded", "export_configuration", "0.25")


def test_an_attempt_whose_command_never_began_failed_before_training() -> None:
    """On Nodus: one that was queued, and got no machine that could be started."""
    timings = {"queuedTime": "2026-11-01T08:00:00Z", "finishedTime": "2026-11-01T08:09:00Z"}
    queued = attempt_of({"status": {"phase": "Failed", "reason": "NodeLost", "timings": timings}})
    assert (queued.started_utc, queued.ended_utc) == (None, "2026-11-01T08:09:00Z")
    attempt = reserve()
    ledger.settle_by("test", attempt, Receipt(platform="nodus", attempts=[queued], charge_usd=None, final=True))
    assert ledger.entries("test")[0].role == "failed_before_training"
    begun = attempt_of({"status": {"timings": timings | {"commandStartedTime": "2026-11-01T08:05:00Z"}}})
    assert begun.started_utc == "2026-11-01T08:05:00Z"
