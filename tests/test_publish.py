"""Promise: what is published follows its schema, and nothing leaves that no rule allows."""

import json
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stages.audit import check_publication
from stages.command import ParityError
from stages.comparison.publication import schema
from stages.comparison.runs import read_runs
from stages.evidence import ledger
from stages.evidence.digests import write_json
from stages.protocol import read_params
from stages.publish import documents
from tests.comparison.build import START, branch, repository
from tests.comparison.tamper import digit, edit
from tests.conftest import ROOT, stage


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = repository(tmp_path / "project")
    monkeypatch.chdir(root)
    return root


def pair(repo: Path, edit: Callable[[str, dict[str, Any]], None] = lambda path, found: None) -> list[str]:
    branch(repo, "alice-secret-branch", platform="nodus", charge="0.10")
    branch(repo, "b", platform="modal", charge="0.20", start=START + timedelta(hours=1), edit=edit)
    return ["alice-secret-branch", "b"]


def test_two_runs_of_a_user_are_published_by_the_schemas(repo: Path) -> None:
    names = pair(repo)
    done = stage("publish", *names, "--out", "out", "--owner", "Example Labs", cwd=repo, env={"PYTHONPATH": str(repo)})
    assert done.returncode == 0, done.stderr
    for name in ("results", "execution-record"):
        jsonschema.validate(json.loads((repo / "out" / f"{name}.json").read_text()), schema(name))
    found = json.loads((repo / "out/results.json").read_text())
    assert found["measurement_owner"] == "Example Labs"
    assert [stage_["nodus"]["recorded_successful_attempt_usd"] for stage_ in found["stages"]] == ["0.30", "0.30"]
    assert found["claims"]["observed_successful_attempt_cost_advantage"] is True
    assert len(found["provenance"]["source_report_sha256"]) == 12
    assert "alice" not in (repo / "out/results.json").read_text() + (repo / "out/execution-record.json").read_text()


def test_a_campaign_that_no_branch_holds_is_exported_published_and_audited(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that DVC made is older than any export, which goes to the workspace."""
    monkeypatch.setenv("PARITY_STATE", str(tmp_path / "state"))
    names = pair(repo)
    budget = read_params(repo)[0].campaign
    for run in read_runs(names):
        for role, charge in (("failed", "0.05"), ("headline_successful_attempt", "0.10")):
            job, place = run.tasks["sft"].evidence["train"].job.id, {"platform": str(run.platform), "task": "sft"}
            attempt = ledger.reserve(budget, job=str(job), stage="train", amount=Decimal("1.00"), **place)
            ledger.settle(budget.name, attempt, role=role, charge_usd=Decimal(charge), final=True)

    def command(name: str, *arguments: str) -> None:
        done = stage(name, *arguments, cwd=repo, env={"PYTHONPATH": str(repo)})
        assert done.returncode == 0, done.stdout + done.stderr

    command("campaign", "export")
    command("publish", *names, "--out", "out")
    command("audit", *names, "--publication", "out")
    campaign = json.loads((repo / "out/results.json").read_text())["campaign"]
    assert (len(campaign["attempts"]), campaign["recorded_usage_usd"]) == (4, "0.30000000")
    assert campaign["nodus_sft_including_failed_attempt_usd"] == "0.35"
    command("campaign", "export", "--out", "elsewhere.json")
    (repo / "metrics/campaign.json").unlink()
    command("publish", *names, "--out", "again", "--campaign", "elsewhere.json")
    command("audit", *names, "--publication", "out", "--campaign", "elsewhere.json")
    for name in ("results.json", "execution-record.json"):
        assert (repo / "again" / name).read_bytes() == (repo / "out" / name).read_bytes()


def test_what_each_platform_says_of_its_resources_can_leave(repo: Path) -> None:
    told: dict[str, dict[str, Any]] = {
        "nodus": {"gpu": {"count": 1, "type": ["L4"]}, "cpu": "4", "memory": "48Gi"},
        "modal": {"gpu": "L4", "gpus": 1, "cpus": 4, "memory_gib": 48, "charge_usd_by_resource": {"gpu": "0.1"}},
    }

    def edit(path: str, found: dict[str, Any]) -> None:
        if "evidence" in path:
            found["receipt"]["resources"] = told[found["receipt"]["platform"]]

    branch(repo, "a", platform="nodus", charge="0.10", edit=edit)
    branch(repo, "b", platform="modal", charge="0.20", edit=edit)
    made = documents(["a", "b"])
    controls = made["execution-record.json"]["resource_controls"]  # type: ignore[index]
    assert (controls["nodus"]["cpu_request"], controls["nodus"]["memory_request_mib"]) == (4, 49152)
    assert (controls["modal"]["cpus"], controls["modal"]["memory_gib"]) == (4, 48)
    assert controls["identical_host_or_cpu_limits"] is True
    assert "charge_usd_by_resource" not in json.dumps(made)


def test_the_schemas_are_sound_and_hold_the_published_documents_shape(pilot: Path) -> None:
    for name in ("results", "execution-record"):
        jsonschema.Draft202012Validator.check_schema(schema(name))
        assert set(json.loads((pilot / f"{name}.json").read_text())) == set(schema(name)["properties"])


def test_the_path_of_what_may_not_leave_is_named_and_nothing_is_written(repo: Path) -> None:
    def edit(path: str, found: dict[str, Any]) -> None:
        if "evidence" in path:
            found["environment"]["gpu"]["name"] = "host.example.com"

    names = pair(repo, edit)
    done = stage("publish", *names, "--out", "out", cwd=repo, env={"PYTHONPATH": str(repo)})
    assert done.returncode == 1
    assert "publication stopped at /stages/0/modal/gpu: no rule allows this value to leave" in done.stderr
    assert not (repo / "out").exists()


@pytest.mark.parametrize(
    ("names", "problem"),
    [(["pilot:nodus"], "found 1 sides"), (["pilot:nodus", "alice-secret-branch"], "the protocols differ")],
)
def test_what_cannot_be_published_is_said(repo: Path, names: list[str], problem: str) -> None:
    pair(repo)
    with pytest.raises(ParityError, match=problem):
        documents(names)


@pytest.mark.parametrize("owner", ["alice@example.com", "/home/alice", "host.example.com", "{0}", ""])
def test_an_owner_is_a_name_in_plain_words(repo: Path, owner: str) -> None:
    if owner:
        with pytest.raises(ParityError, match="--owner"):
            documents(["pilot:nodus", "pilot:modal"], owner)
    else:
        assert documents(["pilot:nodus", "pilot:modal"], None)


def test_a_published_claim_or_figure_that_was_edited_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names = ["pilot:nodus", "pilot:modal"]
    for name, document in documents(names).items():
        write_json(tmp_path / name, document)
    assert {line.outcome for line in check_publication(names, tmp_path, None)} == {"recomputed and equal"}
    claim = "algorithmic_speedup_established"
    edit(tmp_path / "results.json", lambda found: found["claims"].update({claim: True}))
    edit(tmp_path / "execution-record.json", digit("inputs", 0, "sha256"))  # type: ignore[arg-type]
    found = {line.what: line for line in check_publication(names, tmp_path, None) if line.outcome == "differs"}
    assert found.keys() == {f"results.json/claims/{claim}", "execution-record.json/inputs/0/sha256"}
    assert found[f"results.json/claims/{claim}"][2:] == ("True", "False")
