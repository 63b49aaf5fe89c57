"""Promise: whatever runs at the same time ends in a wait or a refusal that says why, and no result is mixed up."""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.evidence import ledger
from tests.conftest import ROOT, read, run, stage
from tests.faults.kit import picture
from tests.platforms.nodus_setup import Emulator, pointed
from tests.test_pipeline import commit, ran

SEEDS = range(31, 35)
DATA = ("data/models/pretrain", "data/predictions/pretrain/evaluate.jsonl")
RESULTS = ("metrics/pretrain/train.json", "metrics/pretrain/evaluate.json", "metrics/pretrain/loss.csv")
BUDGET = "900.00"  # for eight jobs' holds of a dollar each
CLEAR = r"Unable to acquire lock|is busy, it is being|another process runs job"
HOLD = """
import sys
from dvc.repo import Repo
with Repo().lock:
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def project(small: Path) -> Path:
    """The small project with its inputs in DVC's cache, committed."""
    (small / "sitecustomize.py").unlink()
    run("dvc", "repro", "prepare@pretrain", cwd=small)
    commit(small, "prepared")
    return small


def start(project: Path, *command: str, **environment: str) -> "subprocess.Popen[str]":
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=project, env=os.environ | environment, **pipes)


def read_until(child: "subprocess.Popen[str]", words: str) -> str:
    """What a process says up to the line that has `words`."""
    assert child.stdout is not None
    said = ""
    for line in child.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(f"{words!r} was never said, but:\n{said}")


def copies(project: Path, folder: Path, *numbers: int) -> Iterator[Path]:
    """A clone of the project per seed, each with a cache and a history of its own."""
    for seed in numbers:
        made = shutil.copytree(project, folder / str(seed), symlinks=True)
        text = (made / "params.yaml").read_text()
        (made / "params.yaml").write_text(text.replace("seed: 11 ", f"seed: {seed} "))
        yield made


def experiments(project: Path) -> dict[int, str]:
    """Revision of every finished experiment, by its seed."""
    refs = run("git", "for-each-ref", "--format=%(refname) %(objectname)", "refs/exps", cwd=project).stdout
    found = {}
    for ref, revision in (line.split() for line in refs.splitlines()):
        if re.fullmatch(r"refs/exps/[0-9a-f]{2}/[0-9a-f]{38}/.+", ref):
            params = run("git", "show", f"{revision}:params.yaml", cwd=project).stdout
            found[int(re.findall(r"^seed: (\d+)", params, re.MULTILINE)[0])] = revision
    return found


def results(project: Path, *more: str) -> dict[str, Any]:
    """The picture of the results by names that are the same in every clone, without the price of a platform."""
    found = {path.removeprefix(f"{project}/"): value for path, value in picture(project, *RESULTS, *more).items()}
    for value in found.values():
        if isinstance(value, dict):
            value.pop("charge_usd", None)
    return found


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Emulator]:
    """An account on Nodus that several submit sides use at once."""
    pytest.importorskip("nodus", reason="the SDK is the extra `nodus`")
    running = Emulator(tmp_path / "emulator")
    yield running
    assert running.stop() == 0


@pytest.mark.faults
def test_four_queue_workers_mix_no_results(project: Path, account: Emulator, tmp_path: Path) -> None:
    """On a paid platform, whose holds and charges all stand on one ledger."""
    alone = {}
    for copy in copies(project, tmp_path, *SEEDS):
        for name in ("train", "evaluate"):
            done = stage(name, "pretrain", cwd=copy, env={"PARITY_STATE": str(tmp_path / "alone")})
            assert done.returncode == 0, done.stderr
        alone[int(copy.name)] = results(copy)
    state = tmp_path / "state"
    changes = (f"seed=range({SEEDS.start},{SEEDS.stop})", "platform=nodus", f"campaign.authorization_usd='{BUDGET}'")
    given = [part for change in changes for part in ("-S", change)]
    run("dvc", "exp", "run", "--queue", *given, "evaluate@pretrain", cwd=project)
    with pointed(account.environment):
        run("dvc", "queue", "start", "--jobs", "4", cwd=project, env={"PARITY_STATE": str(state)})
    until = time.monotonic() + 1800
    while re.search(r"\b(Queued|Running)\b", (shown := run("dvc", "queue", "status", cwd=project).stdout)):
        assert time.monotonic() < until, shown
        time.sleep(2)
    assert shown.count("Success") == len(SEEDS), shown
    found = experiments(project)
    assert set(found) == set(SEEDS)
    spans, charges = [], {}
    for seed, revision in found.items():
        out = tmp_path / f"queued-{seed}"
        run("git", "worktree", "add", "--quiet", "--detach", str(out), revision, cwd=project)
        assert results(out) == alone[seed]
        for name in ("train", "evaluate"):
            evidence = read(out / f"metrics/pretrain/evidence/{name}.json")
            charges[evidence["job"]["id"]] = evidence["receipt"]["charge_usd"]
            if name == "train":
                timings = evidence["timings"]
                spans.append((timings["worker_started_utc"], timings["worker_finished_utc"]))
    spans.sort()
    assert any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))  # they did overlap
    entries = ledger.entries("default", state)
    assert [(entry.role, entry.final) for entry in entries] == [("headline_successful_attempt", True)] * 2 * len(SEEDS)
    assert {entry.job: entry.charge_usd for entry in entries} == charges
    paid = [Decimal(job["status"]["cost"]["totalUSD"]) for job in account.objects("Job")]
    assert sorted(paid) == sorted(map(Decimal, charges.values()))
    assert account.running == []
    assert list((state / "nodus").glob("*.lock")) == []


@pytest.mark.faults
def test_two_repros_in_one_clone(project: Path, tmp_path: Path) -> None:
    command = ("dvc", "repro", "evaluate@pretrain")
    undisturbed = shutil.copytree(project, tmp_path / "undisturbed", symlinks=True)
    run(*command, cwd=undisturbed)
    first = start(project, *command)
    said = read_until(first, "Running stage 'train@pretrain'")
    second = run(*command, cwd=project, check=False)
    rest, _ = first.communicate()
    assert first.returncode == 0, said + rest
    # DVC says who has what; where the first was through before it looked, it found everything up to date.
    if second.returncode:
        assert re.search(CLEAR, second.stdout + second.stderr), second.stderr
        assert "Traceback" not in second.stderr
    else:
        assert ran(second.stdout) == set()
    assert ran(run(*command, cwd=project).stdout) == set()
    assert "up to date" in run("dvc", "status", "evaluate@pretrain", cwd=project).stdout
    assert results(project, *DATA) == results(undisturbed, *DATA)
    run("git", "checkout", "--quiet", ".", cwd=project)


# A Python that takes its time to make an environment, whose own Python installs nothing.
SLOW_PYTHON = """#!/bin/sh
echo made >> made
sleep 2
mkdir -p .venv/bin
printf '#!/bin/sh\\necho installed >> made' > .venv/bin/python
chmod +x .venv/bin/python
"""


def test_two_make_setup_in_one_clone_make_one_environment(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "slow").write_text(SLOW_PYTHON)
    (tmp_path / "slow").chmod(0o755)
    both = [start(tmp_path, "make", "setup", "PYTHON=./slow") for _ in range(2)]
    said = [child.communicate()[0] for child in both]
    assert [child.returncode for child in both] == [0, 0], said
    assert (tmp_path / "made").read_text().split() == ["made", "installed"]
    assert (tmp_path / ".venv/.ready").is_file()


def test_a_run_while_another_process_holds_dvcs_lock(project: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with contextlib.closing(holder.stdin):  # type: ignore[type-var]
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        refused = run("dvc", "repro", "check", cwd=project, check=False)
    holder.wait()
    assert refused.returncode != 0
    assert "Unable to acquire lock" in refused.stderr
    assert "Traceback" not in refused.stderr
    run("dvc", "repro", "check", cwd=project)
    assert run("git", "status", "--porcelain", cwd=project).stdout == ""


@pytest.mark.faults
def test_two_rehearsals_take_turns_and_share_a_ledger(project: Path, tmp_path: Path) -> None:
    pytest.importorskip("nodus", reason="the SDK is the extra `nodus`")
    state = {"PARITY_STATE": str(tmp_path / "state")}
    one, two = copies(project, tmp_path, 41, 42)
    for copy in (one, two):
        text = (copy / "params.yaml").read_text()
        (copy / "params.yaml").write_text(
            text.replace("platform: local", "platform: nodus").replace("rehearse: false", "rehearse: true")
        )
    command = (sys.executable, "-m", "stages.train", "pretrain")
    first = start(one, *command, **state)
    said = read_until(first, ": Running")
    second = start(two, *command, **state)
    waited = read_until(second, "waiting")
    assert "waiting: another rehearsal on nodus is under way" in waited
    said += first.communicate()[0]
    assert first.returncode == 0, said
    waited += second.communicate()[0]
    assert second.returncode == 0, waited
    for copy, seed in ((one, 41), (two, 42)):
        evidence = read(copy / "metrics/pretrain/evidence/train.json")
        assert evidence["job"]["training"]["seed"] == seed
        assert [attempt["outcome"] for attempt in evidence["receipt"]["attempts"]] == ["succeeded"]
    entries = ledger.entries("default", tmp_path / "state/rehearsal")
    assert [entry.final for entry in entries] == [True, True]
    assert len({entry.job for entry in entries}) == 2
