"""Promise: nothing is submitted that the campaign does not cover, every attempt is booked, none is paid for twice."""

import time
import types
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages import campaign, delivery, jobs, platforms
from stages.command import ParityError
from stages.evidence import ledger
from stages.platforms import Attempt, Context, Handle, Receipt
from stages.protocol import Params, Protocol, read_params
from tests.conftest import ROOT
from tests.platforms.budget import booked, roles


class Paid:
    """A platform that does a job at once, for a quarter of a dollar, unless it is told otherwise."""

    paid = True
    submitted = 0
    refusal: BaseException | None = None
    ending: BaseException | None = None
    damage: BaseException | None = None
    bill: Receipt | BaseException | None = None
    known: dict[str, Any] | None = None

    def __init__(self, settings: Any, context: Context):
        pass

    def estimate(self, job: jobs.Job) -> str:
        return "0.2"

    def submit(self, job: jobs.Job, folder: Path) -> dict[str, Any]:
        if Paid.refusal:
            raise Paid.refusal
        Paid.submitted += 1
        return dict(Paid.known or {})

    def find(self, job_id: str) -> dict[str, Any] | None:
        return Paid.known

    def wait(self, handle: Handle, folder: Path) -> None:
        if Paid.ending:
            raise Paid.ending

    def fetch(self, handle: Handle, folder: Path, out: Path) -> None:
        if Paid.damage:
            raise Paid.damage
        out.mkdir()
        (out / "result.json").write_text("{}")
        jobs.write_manifest(out, handle.job)

    def receipt(self, handle: Handle, folder: Path) -> Receipt:
        if isinstance(Paid.bill, BaseException):
            raise Paid.bill
        if Paid.bill:
            return Paid.bill
        outcome = "failed" if Paid.ending else "succeeded"
        attempts = [Attempt(outcome=outcome, charge_usd="0.25")]
        return Receipt(platform="modal", attempts=attempts, charge_usd="0.25", final=True)


@pytest.fixture
def params(monkeypatch: pytest.MonkeyPatch) -> Params:
    """A budget of one dollar's cap, once."""
    Paid.submitted = 0
    Paid.refusal = Paid.ending = Paid.damage = Paid.bill = Paid.known = None
    monkeypatch.setattr(platforms, "load", lambda name: types.SimpleNamespace(Platform=Paid))
    found = read_params(ROOT)[0]
    campaign = found.campaign.model_copy(update={"authorization_usd": "1.20", "reserve_usd": "0.00"})
    return found.model_copy(update={"platform": "modal", "campaign": campaign})


@pytest.fixture
def job(embedded: Protocol, tiny_model: Path, tmp_path: Path) -> tuple[jobs.Job, list[Path], Path]:
    path = tmp_path / "sft-test.jsonl"
    path.write_text('{"completion": " positive", "prompt": "a"}\n')
    return jobs.build(embedded, "sft", inputs=[path], model=tiny_model), [path], tiny_model


def run(params: Params, job: Any, state: Path, *, detach: bool = False) -> platforms.Delivery:
    context = delivery.budgeted(params, "evaluate", state, detach=detach)
    with platforms.run("modal", None, context, *job, state) as found:
        assert (found.out / "result.json").is_file()
        return found


def richer(params: Params, dollars: str) -> Params:
    campaign = params.campaign.model_copy(update={"authorization_usd": dollars})
    return params.model_copy(update={"campaign": campaign})


def test_a_finished_job_is_booked_and_fetched_again_for_nothing(params: Params, job: Any, tmp_path: Path) -> None:
    for _ in range(2):
        run(params, job, tmp_path / "state")
    assert Paid.submitted == 1
    assert booked(tmp_path / "state") == [("headline_successful_attempt", "0.25", True)]


def test_nothing_is_submitted_that_the_budget_does_not_cover(params: Params, job: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    other = {"job": "0" * 64, "platform": "nodus", "task": "sft", "stage": "train"}
    ledger.reserve(params.campaign, **other, amount=Decimal("1.00"), state=state)
    with pytest.raises(ParityError, match=r"1\.00 USD do not fit: 0\.20 left of 1\.20 authorized"):
        run(params, job, state)
    assert Paid.submitted == 0


@pytest.mark.parametrize("ending", [ParityError("the worker ended with exit code 17"), KeyboardInterrupt()])
def test_a_failed_attempt_is_booked_and_the_next_is_another(
    ending: BaseException, params: Params, job: Any, tmp_path: Path
) -> None:
    state, Paid.ending = tmp_path / "state", ending
    with pytest.raises(type(ending)):
        run(params, job, state)
    Paid.ending = None
    assert [(charge, final) for _, charge, final in booked(state)] == [("0.25", True)]
    run(richer(params, "2.00"), job, state)
    assert Paid.submitted == 2
    assert [role for role, _, _ in booked(state)][-1] == "headline_successful_attempt"


def test_an_attempt_that_a_killed_process_reserved_is_taken_up(params: Params, job: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    delivery.budgeted(params, "evaluate", state).reserve(job[0])  # and then SIGKILL, before the submission
    run(params, job, state)
    assert booked(state) == [("headline_successful_attempt", "0.25", True)]


def test_a_refused_submission_costs_nothing_and_holds_nothing(params: Params, job: Any, tmp_path: Path) -> None:
    state, Paid.refusal = tmp_path / "state", ParityError("the token was refused")
    for _ in range(2):  # the budget has room for one
        with pytest.raises(ParityError, match="the token was refused"):
            run(params, job, state)
    assert booked(state) == [("failed_before_training", None, True)] * 2


def test_where_a_submission_may_have_happened_its_hold_stays_and_is_taken_up(
    params: Params, job: Any, tmp_path: Path
) -> None:
    state, Paid.refusal = tmp_path / "state", ConnectionError(101, "the answer was lost", "Modal")
    with pytest.raises(ConnectionError):
        run(params, job, state)
    assert roles(state) == [("in_flight", False)]
    Paid.refusal = None
    run(params, job, state)
    assert roles(state) == [("headline_successful_attempt", True)]


def test_a_hold_of_less_than_the_cap_is_not_taken_up(params: Params, job: Any, tmp_path: Path) -> None:
    state, Paid.refusal = tmp_path / "state", ConnectionError(101, "the answer was lost", "Modal")
    lower = params.model_copy(update={"campaign": params.campaign.model_copy(update={"cap_usd": "0.50"})})
    with pytest.raises(ConnectionError):
        run(lower, job, state)
    with pytest.raises(ParityError, match=r"modal-sft-evaluate-1 at this job holds 0\.50 USD, less than campaign\.cap"):
        run(params, job, state)


def test_a_job_that_may_live_on_keeps_its_handle(params: Params, job: Any, tmp_path: Path) -> None:
    state, Paid.ending = tmp_path / "state", ConnectionError(101, "not reached", "Modal")
    with pytest.raises(ConnectionError):
        run(params, job, state)
    Paid.ending = None
    run(params, job, state)
    assert Paid.submitted == 1
    assert roles(state) == [("headline_successful_attempt", True)]


@pytest.mark.parametrize("answer", [ParityError("no answer"), ConnectionError(101, "not reached", "Modal")])
def test_a_failed_attempt_whose_charge_is_not_known_stays_held_beside_the_next(
    answer: BaseException, params: Params, job: Any, tmp_path: Path
) -> None:
    state, Paid.ending, Paid.bill = tmp_path / "state", ParityError("exit code 17"), answer
    with pytest.raises(ParityError, match="exit code 17"):
        run(params, job, state)
    assert booked(state) == [("failed", None, False)]
    Paid.ending = None
    with pytest.raises(ParityError, match=r"1\.00 USD do not fit: 0\.20 left"):
        run(params, job, state)
    Paid.bill = None
    run(richer(params, "2.20"), job, state)
    assert roles(state) == [("failed", False), ("headline_successful_attempt", True)]


def test_an_output_that_is_not_whole_is_booked_and_fetched_again(params: Params, job: Any, tmp_path: Path) -> None:
    state, Paid.damage = tmp_path / "state", ParityError("model.safetensors: altered")
    with pytest.raises(ParityError, match="altered"):
        run(params, job, state)
    assert booked(state) == [("headline_successful_attempt", "0.25", True)]
    Paid.damage = None
    run(params, job, state)
    assert Paid.submitted == 1
    assert booked(state) == [("headline_successful_attempt", "0.25", True)]


def test_a_delivery_ends_when_its_output_is_first_verified(params: Params, job: Any, tmp_path: Path) -> None:
    """Fetched again for its late bill, as `dvc repro --force` does, it keeps its seconds."""
    state, late = tmp_path / "state", [Attempt(outcome="succeeded", started_utc=platforms.now())]
    Paid.bill = Receipt(platform="modal", attempts=late, charge_usd=None, final=False)
    first = run(params, job, state)
    assert "charge_usd" not in delivery.metrics(types.SimpleNamespace(metrics={}), first)
    Paid.bill = None
    time.sleep(0.3)
    again = run(params, job, state)
    assert again.clock == first.clock
    assert not first.clock.taken_up
    assert delivery.metrics(types.SimpleNamespace(metrics={}), again)["charge_usd"] == 0.25
    assert booked(state) == [("headline_successful_attempt", "0.25", True)]


def test_a_job_that_was_found_counts_from_its_own_submission(params: Params, job: Any, tmp_path: Path) -> None:
    Paid.known = {"submitted_utc": "2026-11-01T08:00:00+00:00"}
    found = run(params, job, tmp_path / "state")
    assert (found.clock.submitted_utc, found.clock.taken_up) == ("2026-11-01T08:00:00+00:00", True)
    assert found.clock.seconds > 1000


def test_detached_a_job_outlives_ctrl_c_and_is_taken_up(params: Params, job: Any, tmp_path: Path) -> None:
    state, Paid.ending = tmp_path / "state", KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(params, job, state, detach=True)
    assert roles(state) == [("in_flight", False)]
    Paid.ending = None
    assert run(params, job, state).clock.taken_up
    assert Paid.submitted == 1


def test_more_training_processes_than_gpus_are_refused_before_anything_is_held(
    params: Params, embedded: Protocol, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "sft-train.jsonl"
    path.write_text('{"completion": " positive", "prompt": "a"}\n')
    recipes = embedded.train.model_copy(update={"processes": 2})
    two = jobs.build(embedded.model_copy(update={"train": recipes}), "sft", inputs=[path], model=tiny_model, seed=1)
    with pytest.raises(ParityError, match=r"2 need a GPU each, resources\.gpus is 1"):
        run(params, (two, [path], tiny_model), tmp_path / "state")
    assert booked(tmp_path / "state") == []


@pytest.mark.parametrize("known", [None, {}])
def test_a_hold_that_a_killed_process_left_is_reconciled_by_asking_the_platform(
    known: dict[str, Any] | None, params: Params, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the reservation: before the submission there is nothing to pay, after it there is."""
    monkeypatch.setenv("PARITY_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(platforms, "read_settings", lambda *_: None)
    delivery.budgeted(params, "evaluate", tmp_path / "state").reserve(job[0])
    Paid.known = known
    done = ledger.reconcile("default", lambda entry: campaign.platform_receipt(params, {}, entry))
    charge, role = ("0", "failed_before_training") if known is None else ("0.25", "headline_successful_attempt")
    assert booked(tmp_path / "state") == [(role, charge, True)]
    assert list(done.values()) == ["released: never submitted" if known is None else "settled: 0.25 USD, final"]
