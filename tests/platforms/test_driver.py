"""Promise: nothing is submitted that the campaign does not cover, every attempt is booked, none is paid for twice."""

import types
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages import delivery, jobs, platforms
from stages.command import ParityError
from stages.evidence import ledger
from stages.platforms import Attempt, Context, Handle, Receipt
from stages.protocol import Params, Protocol, read_params
from tests.conftest import ROOT


class Paid:
    """A platform that does a job at once, for a quarter of a dollar; told to, it fails or is interrupted."""

    paid = True
    submitted = 0
    ending: BaseException | None = None

    def __init__(self, settings: Any, context: Context):
        pass

    def estimate(self, job: jobs.Job) -> str:
        return "0.2"

    def submit(self, job: jobs.Job, folder: Path) -> dict[str, Any]:
        Paid.submitted += 1
        return {}

    def wait(self, handle: Handle, folder: Path) -> None:
        if Paid.ending:
            raise Paid.ending

    def fetch(self, handle: Handle, folder: Path, out: Path) -> None:
        out.mkdir()
        (out / "result.json").write_text("{}")
        jobs.write_manifest(out, handle.job)

    def receipt(self, handle: Handle, folder: Path) -> Receipt:
        outcome = "failed" if Paid.ending else "succeeded"
        attempts = [Attempt(outcome=outcome, charge_usd="0.25")]
        return Receipt(platform="modal", attempts=attempts, charge_usd="0.25", final=True)


@pytest.fixture
def params(monkeypatch: pytest.MonkeyPatch) -> Params:
    """A budget of one dollar's cap, once."""
    Paid.submitted, Paid.ending = 0, None
    monkeypatch.setattr(platforms, "load", lambda name: types.SimpleNamespace(Platform=Paid))
    found = read_params(ROOT)[0]
    campaign = found.campaign.model_copy(update={"authorization_usd": "1.20", "reserve_usd": "0.00"})
    return found.model_copy(update={"platform": "modal", "campaign": campaign})


@pytest.fixture
def job(embedded: Protocol, tiny_model: Path, tmp_path: Path) -> tuple[jobs.Job, list[Path], Path]:
    path = tmp_path / "sft-test.jsonl"
    path.write_text('{"completion": " positive", "prompt": "a"}\n')
    return jobs.build(embedded, "sft", inputs=[path], model=tiny_model), [path], tiny_model


def run(params: Params, job: Any, state: Path) -> None:
    context = delivery.budgeted(params, "evaluate", state)
    with platforms.run("modal", None, context, *job, state) as found:
        assert (found.out / "result.json").is_file()


def booked(state: Path) -> list[tuple[str, str | None, bool]]:
    return [(entry.role, entry.charge_usd, entry.final) for entry in ledger.entries("default", state)]


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
    wider = params.campaign.model_copy(update={"authorization_usd": "2.00"})
    run(params.model_copy(update={"campaign": wider}), job, state)
    assert Paid.submitted == 2
    assert [role for role, _, _ in booked(state)][-1] == "headline_successful_attempt"


def test_an_attempt_that_a_killed_process_reserved_is_taken_up(params: Params, job: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    delivery.budgeted(params, "evaluate", state).reserve(job[0])  # and then SIGKILL, before the submission
    run(params, job, state)
    assert booked(state) == [("headline_successful_attempt", "0.25", True)]
