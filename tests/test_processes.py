"""Promise: several processes train on the same global batches as one, and resume without a trace in the result."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stages import jobs
from stages.command import ParityError
from stages.protocol import Protocol, Recipes
from stages.training.plan import plan
from stages.training.processes import LOGS, WORKER
from stages.training.rows import tokenize
from tests.conftest import ROOT
from tests.test_training import STEPS, finish, job_folder, kill_at, rows, same, worker

__all__ = ["rows"]  # a fixture


@pytest.fixture(scope="module")
def undisturbed(embedded: Protocol, rows: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = job_folder(embedded, rows, tiny_model, tmp_path_factory.mktemp("two"), processes=2)
    return finish(folder) | {"folder": folder}


def test_two_processes_do_what_the_plan_says_for_two(undisturbed: Any, rows: Path, tiny_model: Path) -> None:
    job = jobs.read_job(undisturbed["folder"] / "job")
    assert job.training is not None
    read_rows = [json.loads(line) for line in rows.read_text().splitlines()]
    lengths = [len(ids) for ids in tokenize(read_rows, tiny_model, job.training.recipe.max_length, rows)]
    last = plan(lengths, job.training.recipe, job.training.seed, processes=2)[-1]
    assert undisturbed["metrics"]["num_tokens"] == last.tokens
    assert undisturbed["metrics"]["global_step"] == last.step == STEPS
    parameters = job.model.architecture.non_embedding_parameters
    assert undisturbed["metrics"]["total_flos"] == last.flos(parameters)


def test_two_processes_come_to_nearly_the_losses_of_one(
    undisturbed: Any, embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """Within the first epoch both take the same rows in each step; only the order of additions differs."""
    two = job_folder(embedded, rows, tiny_model, tmp_path / "2", processes=2, max_steps=4)
    one = job_folder(embedded, rows, tiny_model, tmp_path / "1", processes=1, max_steps=4)
    results = [finish(folder) for folder in (one, two)]
    losses = [result["metrics"]["train_loss"] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert results[0]["metrics"]["num_tokens"] == results[1]["metrics"]["num_tokens"]
    assert results[0]["tokens"] == results[1]["tokens"]


@pytest.mark.parametrize(
    ("step", "number"), [(4, signal.SIGKILL), (8, signal.SIGTERM), (STEPS, signal.SIGKILL)], ids=str
)
def test_two_processes_killed_and_resumed_leave_the_same_bytes(
    step: int,
    number: signal.Signals,
    undisturbed: Any,
    embedded: Protocol,
    rows: Path,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    folder = job_folder(embedded, rows, tiny_model, tmp_path, processes=2)
    kill_at(folder, f"step {step}/", number)
    assert processes_of(folder) == []
    resumed = finish(folder)
    # torch's own cache, one per user, may come into being.
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []
    assert not (folder / "state" / LOGS).exists()
    assert resumed["said"].count("resuming from step") == 1
    same(resumed, undisturbed)


def test_a_process_whose_worker_is_gone_before_it_began_ends(tmp_path: Path) -> None:
    environment = os.environ | {WORKER: str(os.getpid()), "LOCAL_RANK": "0"}  # its parent, not its parent's parent
    command = [sys.executable, "-m", "stages.training.processes", *map(str, [tmp_path] * 3), "cpu"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: the worker ended before its processes began\n")


def processes_of(folder: Path) -> list[str]:
    """Command lines that still name `folder` a few seconds after their parent is gone."""
    until = time.monotonic() + 20
    while True:
        found = [line for line in map(command_line, Path("/proc").glob("[0-9]*")) if str(folder) in line]
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_when_one_of_them_dies_the_others_go_and_the_error_says_so(
    embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = job_folder(embedded, rows, tiny_model, tmp_path, processes=2, max_steps=4000)
    child = subprocess.Popen(worker(folder), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    next(line for line in child.stdout if line.startswith("step 2/"))
    ranks = [
        int(path.name) for path in Path("/proc").glob("[0-9]*")
        if "stages.training.processes\0" in (line := command_line(path)) and "accelerate" not in line
        and str(folder) in line
    ]  # fmt: skip
    assert len(ranks) == 2
    os.kill(max(ranks), signal.SIGKILL)
    said = child.communicate()[1]
    assert child.returncode == 1
    assert "error: one of the 2 training processes was ended by SIGKILL (out of memory?)" in said
    assert "Traceback" not in said
    assert processes_of(folder) == []


def test_an_error_in_one_of_them_is_one_line(embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path) -> None:
    folder = job_folder(embedded, rows, tiny_model, tmp_path, processes=2, learning_rate=1e30, max_grad_norm=1e30)
    done = subprocess.run(worker(folder), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: training step ")
    assert done.stderr.count("\n") == 1


def test_a_batch_that_cannot_be_shared_is_refused(embedded: Protocol) -> None:
    with pytest.raises(ValueError, match=r"3 cannot share the 2 micro-batches of sft\.gradient_accumulation_steps"):
        Recipes.model_validate(embedded.train.model_dump() | {"processes": 3})


def test_without_a_gpu_for_each_process_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from stages.training.processes import check_devices

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ParityError, match="2 need a GPU each, this machine has 1"):
        check_devices(2, "cuda")


@pytest.mark.parametrize(
    ("device", "processes", "backend"), [("cpu", 2, "gloo"), ("cuda", 2, "nccl"), ("cuda", 1, None)]
)
def test_processes_speak_gloo_on_a_cpu_and_nccl_on_gpus(
    device: str, processes: int, backend: str | None, undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.training import trainer

    # The real class joins the process group, and there is none here.
    monkeypatch.setattr(trainer, "SFTConfig", lambda **given: SimpleNamespace(**given))
    training = jobs.read_job(undisturbed["folder"] / "job").training
    assert training is not None
    config = trainer.arguments(training.model_copy(update={"processes": processes}), tmp_path, device)
    assert config.ddp_backend == backend
    assert config.gradient_accumulation_steps * processes == training.recipe.gradient_accumulation_steps
