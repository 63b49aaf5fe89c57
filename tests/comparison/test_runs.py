"""Promise: runs are read as they are at a revision, and what is missing, newer or damaged is said, never made up."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.command import ParityError
from stages.comparison.compare import build, document
from stages.comparison.runs import read_runs
from stages.evidence.digests import MOST_BYTES
from tests.comparison.build import Builder, branch, commit
from tests.comparison.judge import agreed
from tests.conftest import ROOT, run, stage


def edit_of(path: str, change: Callable[[dict[str, Any]], None]) -> Callable[[str, dict[str, Any]], None]:
    return lambda found, content: change(content) if found == path else None


def test_two_branches_compare_without_touching_the_working_tree(repo: Path) -> None:
    branch(repo, "a", platform="nodus", charge="0.10")
    branch(repo, "b", platform="modal", charge="0.20")
    before = run("git", "status", "--porcelain", cwd=repo).stdout
    comparison = build(read_runs(["a", "b"]))
    assert [side.label for side in comparison.sides] == ["nodus", "modal"]
    found = comparison.pairs[0].tasks["sft"].differences["charge_usd"]
    assert (str(found.subject), str(found.other), found.reduction_percent) == ("0.30", "0.60", 50.0)
    assert run("git", "status", "--porcelain", cwd=repo).stdout == before
    assert not comparison.problems


def test_a_branch_a_tag_a_commit_and_an_experiment_are_all_names(repo: Path) -> None:
    made = branch(repo, "a")
    run("git", "tag", "v1", made, cwd=repo)
    run("git", "update-ref", f"refs/exps/{made[:2]}/{made[2:]}/tart-name", made, cwd=repo)
    for name in ("a", "v1", made, made[:10], "tart-name"):
        (found,) = read_runs([name])
        assert found.tasks.keys() == {"sft", "pretrain"}


def test_an_experiment_of_two_baselines_is_ambiguous(repo: Path) -> None:
    for made in (branch(repo, "a"), branch(repo, "b")):
        run("git", "update-ref", f"refs/exps/{made[:2]}/{made[2:]}/twin", made, cwd=repo)
    with pytest.raises(ParityError, match="twin: an experiment of 2 baselines; give its commit"):
        read_runs(["twin"])


@pytest.mark.parametrize("name", ["nowhere", "--all", "main:metrics", "a\nb", "pilot:nobody", "pilot:../x"])
def test_a_name_that_is_nothing_is_refused_in_one_line(repo: Path, name: str) -> None:
    with pytest.raises(ParityError, match=r"no(ne of a git revision| such published run)"):
        read_runs([name])


def test_the_workspace_is_a_run_as_it_stands(repo: Path) -> None:
    Builder(repo, seed=5).write()
    (found,) = read_runs(["."])
    assert found.tasks["sft"].seed == 5


def test_a_project_in_a_subfolder_of_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a repository" / "its project"
    run("git", "init", "--quiet", str(inner.parent), cwd=tmp_path)
    inner.mkdir()
    Builder(inner).write()
    commit(inner, "run")
    monkeypatch.chdir(inner)
    (found,) = read_runs(["HEAD"])
    assert found.tasks.keys() == {"sft", "pretrain"}


def test_no_metrics_anywhere_is_an_error_and_beside_a_run_a_remark(repo: Path) -> None:
    branch(repo, "a")
    with pytest.raises(ParityError, match="main: no metrics; run `dvc repro`"):
        read_runs(["main"])
    comparison = build(read_runs(["a", "main"]))
    assert comparison.problems == {"main": ("no metrics of sft", "no metrics of pretrain")}
    assert [side.label for side in comparison.sides] == ["local"]


def test_one_task_only_is_compared_as_far_as_it_goes(repo: Path) -> None:
    branch(repo, "a", platform="nodus", charge="0.10")
    branch(repo, "b", tasks=("sft",), platform="modal", charge="0.20")
    comparison = build(read_runs(["a", "b"]))
    assert comparison.pairs[0].tasks.keys() == {"sft"}
    assert comparison.problems["b"] == ("no metrics of pretrain",)
    assert "tasks" in {deviation.item for deviation in comparison.deviations}


def test_a_newer_evidence_schema_is_said_and_its_metrics_still_compare(repo: Path) -> None:
    newer = edit_of("metrics/sft/evidence/train.json", lambda found: found.update(version=2))
    branch(repo, "a")
    branch(repo, "b", seed=12, edit=newer)
    comparison = build(read_runs(["a", "b"]))
    (problem,) = comparison.problems["b"]
    assert problem.startswith("metrics/sft/evidence/train.json: version 2, this program reads version 1; left out")
    pair = comparison.pairs[0].tasks["sft"]
    assert "trainer_seconds" in pair.differences
    assert "delivery_seconds" not in pair.differences
    assert all(match == (None, ()) for match in pair.matching.values())
    assert {(d.item, d.sentence) for d in comparison.deviations if d.task == "sft"} == {
        ("evidence", "Not every training job has evidence that can be read."),
        ("attempts", "Attempts are not recorded on every side."),
    }


def test_another_protocol_is_said_and_nothing_is_claimed(repo: Path) -> None:
    def other(path: str, found: dict[str, Any]) -> None:
        if "evidence" in path:
            found["protocol"] = {"name": "pilot", "sha256": "2" * 64}

    branch(repo, "a", platform="nodus", charge="0.10")
    branch(repo, "b", platform="modal", charge="0.20", edit=other)
    comparison = build(read_runs(["a", "b"]))
    assert {"protocol", "protocol_content"} <= {deviation.item for deviation in comparison.deviations}
    cost = comparison.pairs[0].claims[0]
    assert (cost.holds, cost.reason) == (False, "the protocols differ: embedded and pilot")
    assert comparison.pairs[0].tasks["sft"].gates == {}


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("metrics/sft/train.json", "{", "metrics/sft/train.json: not valid JSON"),
        ("metrics/sft/train.json", '{"train_loss": NaN}', "NaN is no JSON number"),
        ("metrics/sft/evidence/train.json", "{}", "metrics/sft/evidence/train.json: version: missing"),
        ("metrics/sft/loss.csv", "step,loss\n1,x\n", "metrics/sft/loss.csv: no loss curve"),
        ("metrics/campaign.json", "[]", "metrics/campaign.json: top level"),
        ("protocols/embedded.yaml", "a: [", "protocol:1:5: not valid YAML"),
    ],
)
def test_a_damaged_file_is_a_remark_of_its_run(repo: Path, path: str, content: str, problem: str) -> None:
    Builder(repo).write()
    (repo / path).write_text(content)
    (found,) = read_runs(["."])
    assert any(problem in each for each in found.problems)


def test_a_giant_of_one_commit_is_a_remark_and_what_is_read_after_it_is_right(repo: Path) -> None:
    branch(repo, "a")
    branch(repo, "b", seed=12)
    alone = read_runs(["b"])
    run("git", "checkout", "--quiet", "a", cwd=repo)
    (repo / "metrics/sft/train.json").write_bytes(b" " * (MOST_BYTES + 1))
    commit(repo, "a giant")
    run("git", "checkout", "--quiet", "main", cwd=repo)
    giant, after = read_runs(["a", "b"])
    assert len(giant.problems) == 2
    assert ":metrics/sft/train.json: more than 16777216 bytes" in giant.problems[0]
    assert giant.problems[1] == "sft: no metrics of train"
    assert "evaluate" in giant.tasks["sft"].metrics
    assert [after] == alone


def test_a_missing_figure_is_not_recorded_and_never_zero(repo: Path) -> None:
    branch(repo, "a", edit=edit_of("metrics/sft/train.json", lambda found: found.pop("trainer_seconds")))
    branch(repo, "b", seed=12)
    made = document(build(read_runs(["a", "b"])))
    assert "trainer_seconds" not in made["pairs"][0]["tasks"]["sft"]["differences"]
    assert made["sides"][0]["charge_including_failed_usd"] == {"sft": None, "pretrain": None}
    shown = stage("compare", "a", "b", cwd=repo, env={"PYTHONPATH": str(repo), "COLUMNS": "200"}).stdout
    assert "not recorded" in shown


def test_json_markdown_and_table_of_the_command(repo: Path) -> None:
    branch(repo, "nodus", platform="nodus", charge="0.10")
    branch(repo, "modal", platform="modal", charge="0.20")
    env = {"PYTHONPATH": str(repo), "COLUMNS": "200"}
    made = json.loads(stage("compare", "--json", cwd=repo, env=env).stdout)
    assert [side["label"] for side in made["sides"]] == ["nodus", "modal"]
    markdown = stage("compare", "--markdown", cwd=repo, env=env).stdout
    assert markdown.startswith("# The same training job on every platform\n\n## Answer\n\n- Fine-tuning: nodus charged")
    table = stage("compare", cwd=repo, env=env)
    assert table.returncode == 0
    assert "nodus charged 50.00 % less than modal: 0.30 against 0.60 USD" in table.stdout
    assert "not estimated" in table.stdout


def test_dvc_metrics_diff_agrees_with_every_number_it_shares(repo: Path) -> None:
    for name in ("dvc.yaml", ".dvc/config", ".dvc/.gitignore"):
        (repo / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, repo / name)
    commit(repo, "a pipeline")
    branch(repo, "a", good=38, seconds=100.0)
    branch(repo, "b", seed=12, good=31, seconds=90.25)
    told = json.loads(run("dvc", "metrics", "diff", "a", "b", "--json", "--all", cwd=repo).stdout)
    numbers, compared = agreed(document(build(read_runs(["a", "b"]))), told)
    assert numbers > 30
    assert compared == 8


def test_submitting_machines_compare_without_torch_transformers_or_scipy(repo: Path) -> None:
    probe = "import sys, stages.compare, stages.publish, stages.campaign, stages.audit, stages.report;"
    probe += "print(sorted({'torch', 'transformers', 'scipy', 'jinja2', 'datasets'} & set(sys.modules)))"
    found = run("python", "-c", probe, cwd=repo, env={"PYTHONPATH": str(repo)}).stdout
    assert found.strip() == "[]"
