"""Promise: one seed gives one model, byte for byte, whether or not the run was killed on the way."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages import jobs
from stages.evidence.digests import sha256_file
from stages.protocol import Protocol
from tests.conftest import ROOT, read, run

STEPS = 12


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "sft-train.jsonl"
    rng = random.Random(2)
    made = [
        {
            "completion": f" {rng.choice(['positive', 'negative'])}",
            "prompt": f"the plot is {'not ' * (i % 7)}vivid {i}:",
        }
        for i in range(70)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def job_folder(embedded: Protocol, rows: Path, model: Path, folder: Path, **recipe: Any) -> Path:
    """A training job of 12 steps over three epochs, logged every 2 and kept every 3."""
    seed, processes = recipe.pop("seed", 11), recipe.pop("processes", 1)
    changes = {"max_steps": STEPS, "save_steps": 3, "logging_steps": 2} | recipe
    sft = embedded.train.sft.model_copy(update=changes)
    architecture = embedded.model.architecture.model_validate(
        {key: read(model / "config.json")[key] for key in embedded.model.architecture.model_dump()}
    )
    protocol = embedded.model_copy(
        update={
            "train": embedded.train.model_copy(update={"sft": sft, "processes": processes}),
            "model": embedded.model.model_copy(update={"architecture": architecture}),
        }
    )
    job = jobs.build(protocol, "sft", inputs=[rows], model=model, seed=seed)
    jobs.write_job(job, folder / "job", [rows], model)
    return folder


def worker(folder: Path) -> list[str]:
    return [sys.executable, "-m", "stages.worker", str(folder / "job"), str(folder / "out"), "--state",
            str(folder / "state"), "--device", "cpu"]  # fmt: skip


def finish(folder: Path) -> dict[str, Any]:
    """Run the worker to its end and return its result, the export's digests and the curve; seconds left out."""
    done = subprocess.run(worker(folder), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = read(folder / "out" / "result.json")
    manifest = jobs.verify(folder / "out", result["job"])
    for key in ("trainer_seconds", "samples_per_second"):
        assert result["metrics"].pop(key) > 0
    return {
        "metrics": result["metrics"],
        "tokens": result["training_tokens_sha256"],
        "files": {n: e.sha256 for n, e in manifest.files.items() if n.startswith("model/") or n == "log_history.csv"},
        "said": done.stdout,
        "warned": done.stderr,
    }


def kill_at(folder: Path, line: str, number: signal.Signals = signal.SIGKILL) -> None:
    """Start the worker and send it a signal as soon as it has printed `line`."""
    child = subprocess.Popen(worker(folder), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for said in child.stdout:
        if said.startswith(line):
            os.kill(child.pid, number)
            break
    assert child.wait() == (130 if number == signal.SIGTERM else -number)


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert {key: one[key] for key in ("metrics", "tokens", "files")} == {
        key: other[key] for key in ("metrics", "tokens", "files")
    }


@pytest.fixture(scope="module")
def undisturbed(embedded: Protocol, rows: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return finish(job_folder(embedded, rows, tiny_model, tmp_path_factory.mktemp("undisturbed")))


def test_two_runs_of_one_seed_are_the_same_bytes(
    undisturbed: Any, embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    again = finish(job_folder(embedded, rows, tiny_model, tmp_path / "in another folder"))
    same(again, undisturbed)
    assert "\r" not in again["said"] + again["warned"]  # plain lines where there is no terminal
    assert set(again["files"]) >= {"model/model.safetensors", "model/training_args.bin", "log_history.csv"}


def test_one_process_trains_the_bytes_that_plain_trl_does(
    undisturbed: Any, embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    job = jobs.read_job(job_folder(embedded, rows, tiny_model, tmp_path) / "job")
    assert job.training is not None
    assert job.training.processes == 1
    seeds = {"seed": job.training.seed, "data_seed": job.training.seed, "use_cpu": True, "disable_tqdm": True}
    (tmp_path / "arguments.json").write_text(json.dumps(job.training.recipe.model_dump() | seeds))
    given = (rows, tiny_model, tmp_path / "plain", tmp_path / "arguments.json", job.execution.training_dtype)
    run(sys.executable, "-m", "bench.bare_trl", *map(str, given), cwd=ROOT)
    plain = sha256_file(tmp_path / "plain/model/model.safetensors")
    assert undisturbed["files"]["model/model.safetensors"] == plain


def test_another_seed_is_another_model(
    undisturbed: Any, embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    other = finish(job_folder(embedded, rows, tiny_model, tmp_path, seed=12))
    assert other["files"]["model/model.safetensors"] != undisturbed["files"]["model/model.safetensors"]
    assert other["tokens"] == undisturbed["tokens"]


@pytest.mark.parametrize("step", [2, 2 * random.Random(7).randrange(2, 6), STEPS])
def test_a_run_killed_at_a_step_and_resumed_is_the_same_bytes(
    step: int, undisturbed: Any, embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = job_folder(embedded, rows, tiny_model, tmp_path)
    kill_at(folder, f"step {step}/")
    assert not (folder / "out" / "manifest.json").exists()
    resumed = finish(folder)
    same(resumed, undisturbed)
    assert ("resuming from step" in resumed["said"]) == (step > 3)


def test_a_kill_after_the_last_checkpoint_trains_no_step_more(
    undisturbed: Any, embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = job_folder(embedded, rows, tiny_model, tmp_path)
    finish(folder)
    (folder / "out" / "manifest.json").unlink()
    resumed = finish(folder)
    assert f"resuming from step {STEPS}" in resumed["said"]
    same(resumed, undisturbed)


def test_a_checkpoint_cut_short_is_passed_over_for_the_one_before_it(
    undisturbed: Any, embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = job_folder(embedded, rows, tiny_model, tmp_path)
    finish(folder)
    checkpoints = folder / "state" / "checkpoints"
    assert sorted(path.name for path in checkpoints.glob("checkpoint-*")) == ["checkpoint-12", "checkpoint-9"]
    with (checkpoints / "checkpoint-12" / "model.safetensors").open("ab") as stream:
        stream.truncate(100)
    resumed = finish(folder)
    assert "passing over a checkpoint: " in resumed["said"]
    assert "model.safetensors: 100 bytes, expected " in resumed["said"]
    assert "resuming from step 9" in resumed["said"]
    same(resumed, undisturbed)


@pytest.mark.parametrize(
    ("change", "cut"), [({"seed": 12}, 70), ({"weight_decay": 0.02}, 70), ({}, 69)], ids=("seed", "protocol", "input")
)
def test_a_checkpoint_of_another_job_is_refused(
    embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path, undisturbed: Any, change: dict[str, Any], cut: int
) -> None:
    given = tmp_path / rows.name
    given.write_text("".join(rows.read_text().splitlines(keepends=True)[:cut]))
    folder = job_folder(embedded, given, tiny_model, tmp_path, **change)
    finish(folder)
    job_folder(embedded, rows, tiny_model, tmp_path)
    resumed = finish(folder)
    assert resumed["said"].count("passing over a checkpoint: ") == 2
    same(resumed, undisturbed)


def test_a_loss_that_is_not_finite_stops_the_run_by_its_step(
    embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = job_folder(embedded, rows, tiny_model, tmp_path, learning_rate=1e30, max_grad_norm=1e30)
    done = subprocess.run(worker(folder), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: training step ")
    assert " is nan; stopped" in last or " is inf; stopped" in last
    assert not (folder / "out" / "manifest.json").exists()


def test_a_model_of_another_architecture_than_planned_with_is_refused(
    embedded: Protocol, rows: Path, tiny_model: Path, tmp_path: Path
) -> None:
    job = jobs.build(embedded, "sft", inputs=[rows], model=tiny_model, seed=1)
    jobs.write_job(job, tmp_path / "job", [rows], tiny_model)
    done = subprocess.run(worker(tmp_path), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "config.json: hidden_size: found 32, the protocol says 128" in done.stderr
