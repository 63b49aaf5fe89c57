"""Training with TRL's `SFTTrainer`, the recipe as recorded, stopped and resumed without a trace in the result.

TRL and transformers resume weights, optimizer, schedule, sampler and random states. What they would start anew, their
running totals (loss since the last log, tokens, seconds), goes into a `checkpoint.json` beside them. It is written
last, so a checkpoint without it was cut short and is passed over.
"""

import contextlib
import csv
import hashlib
import io
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from datasets import Dataset
from pydantic import Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from stages.command import ParityError, explain
from stages.evidence.digests import read_json, whole, write_json
from stages.jobs import Training
from stages.validation import Frozen, Sha256, first_line, validate

MARKER = "checkpoint.json"
PIECES, PIECE = 64, 1 << 20
# What resuming reads. With safetensors there, nobody looks for weights of another kind.
NEEDED = {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"}
COLUMNS = ("step", "epoch", "loss", "grad_norm", "learning_rate", "entropy", "mean_token_accuracy", "num_tokens")


class Totals(Frozen):
    """The trainer's running totals at a checkpoint."""

    seconds: float = Field(ge=0, allow_inf_nan=False, description="train_runtime up to here, over all attempts")
    loss_sum: float = Field(allow_inf_nan=False)
    loss_since_log: list[Annotated[float, Field(allow_inf_nan=False)]] = Field(description="of each process")
    last_logged_step: int
    tokens: int
    metrics: dict[str, list[float]]


class Kept(Frozen):
    """A checkpoint's file and its `fingerprint`."""

    bytes: int
    sha256: Sha256


class Checkpoint(Frozen):
    version: int
    job: Sha256
    step: int
    files: dict[str, Kept]
    totals: Totals


class Trainer(SFTTrainer):
    """`SFTTrainer` that stops on a value that is not finite and carries its totals across attempts."""

    def __init__(self, *, job_id: str, resumed: Totals | None, **arguments: Any):
        super().__init__(**arguments)
        self.job_id, self.resumed = job_id, resumed
        self.prior_seconds = resumed.seconds if resumed else 0.0
        self.started = time.time()

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.require_finite(loss, "loss")
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.require_finite(norm, "gradient norm")
        return norm

    def require_finite(self, value: Any, what: str) -> None:
        if not math.isfinite(float(value)):
            raise ParityError(f"training step {self.state.global_step + 1}: the {what} is {float(value)}; stopped")

    def _run_epoch(self, **arguments: Any) -> None:
        self.restore()
        if self.state.global_step >= self.state.max_steps:
            # The checkpoint of the very last step: the library would train one step more.
            self.control.should_training_stop = True
            return
        super()._run_epoch(**arguments)

    def restore(self) -> None:
        if (totals := self.resumed) is None:
            return
        self.resumed = None
        self._total_loss_scalar = totals.loss_sum
        self._tr_loss += totals.loss_since_log[self.args.process_index]
        self._globalstep_last_logged = totals.last_logged_step
        self._total_train_tokens = totals.tokens
        self._metrics["train"].update({key: list(values) for key, values in totals.metrics.items()})

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        losses = self.accelerator.gather(self._tr_loss.reshape(1))  # which also waits for every process's random state
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        marker = Checkpoint(
            version=1,
            job=self.job_id,
            step=self.state.global_step,
            files={path.name: kept(path) for path in folder.iterdir() if path.name != MARKER},
            totals=Totals(
                seconds=self.prior_seconds + time.time() - self.started,
                loss_sum=self._total_loss_scalar,
                loss_since_log=losses.tolist(),
                last_logged_step=self._globalstep_last_logged,
                tokens=self._total_train_tokens,
                metrics={key: [float(v) for v in values] for key, values in self._metrics["train"].items()},
            ),
        )
        write_json(folder / MARKER, marker.model_dump())


class Lines(TrainerCallback):
    """Plain progress lines, where a bar has no terminal to move on."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs:
            line = {"step": f"{state.global_step}/{state.max_steps}", "loss": f"{logs['loss']:.4f}"}
            print(*(f"{key} {value}" for key, value in line.items()), flush=True)


def kept(path: Path) -> Kept:
    return Kept(bytes=path.stat().st_size, sha256=fingerprint(path))


def fingerprint(path: Path) -> str:
    """SHA-256 of a file; above 64 MiB of one MiB in each 64th of it.

    All of a large one would take as long as saving it does, within the seconds that are measured. What a crash leaves
    is missing by the page or more, not by the bit.
    """
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as stream:
        for at in range(0, size, max(PIECE, size // PIECES)):
            stream.seek(at)
            digest.update(stream.read(PIECE))
    return digest.hexdigest()


def read_checkpoint(folder: Path, job_id: str, processes: int = 1) -> Checkpoint:
    """The marker of a checkpoint that is whole and of this job; raises ParityError for any other."""
    if not folder.is_dir() or folder.is_symlink():
        raise ParityError(f"{folder}: not a folder")
    marker = validate(Checkpoint, read_json(folder / MARKER), folder / MARKER)
    if marker.job != job_id:
        raise ParityError(f"{folder}: of job {marker.job:.12}, this is {job_id:.12}")
    if folder.name != f"checkpoint-{marker.step}":
        raise ParityError(f"{folder}: of step {marker.step}")
    if (found := len(marker.totals.loss_since_log)) != processes:
        raise ParityError(f"{folder / MARKER}: totals of {found} processes, expected {processes}")
    if lacking := NEEDED - marker.files.keys():
        raise ParityError(f"{folder / MARKER}: names no {min(lacking)}")
    if odd := {path.name for path in folder.iterdir()} ^ {*marker.files, MARKER}:
        raise ParityError(f"{folder / min(odd)}: {'missing' if min(odd) in marker.files else 'not of this checkpoint'}")
    for name, expected in marker.files.items():
        path = folder / name
        size = os.path.getsize(path) if path.is_file() and not path.is_symlink() else None
        if size != expected.bytes:
            raise ParityError(f"{path}: {size} bytes, expected {expected.bytes}")
        if (digest := fingerprint(path)) != expected.sha256:
            raise ParityError(f"{path}: sha256 {digest}, expected {expected.sha256}")
    return marker


def last_checkpoint(folder: Path, job_id: str, processes: int = 1) -> tuple[Path, Totals] | None:
    """The newest whole checkpoint of this job; others are named, passed over and removed."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdecimal()]
    for path in sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True):
        try:
            marker = read_checkpoint(path, job_id, processes)
        except ParityError as error:
            print(f"passing over a checkpoint: {error}", flush=True)
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            continue
        print(f"resuming from step {marker.step}", flush=True)
        return path, marker.totals
    return None


@contextlib.contextmanager
def refused(checkpoint: Path | None, trainer: Trainer) -> Iterator[None]:
    """What the libraries meet in a checkpoint before its totals are restored becomes one line.

    Of pickles torch reads plain tensors only, and says so with an error of its own.
    """
    try:
        yield
    except Exception as error:
        if checkpoint is None or trainer.resumed is None or explain(error):
            raise
        what = f"{type(error).__name__}: {first_line(error)}"
        raise ParityError(f"{checkpoint}: cannot be resumed from; remove it and run again ({what})") from error


def arguments(training: Training, folder: Path, device: str) -> SFTConfig:
    """The recipe as `SFTConfig`; what is set beside it concerns reporting and the place, not the result.

    Its global batch stays: several processes divide the micro-batches of a step among them.
    """
    recipe = training.recipe.model_dump()
    recipe["gradient_accumulation_steps"] //= training.processes
    return SFTConfig(
        **recipe,
        seed=training.seed,
        data_seed=training.seed,
        output_dir=str(folder),
        use_cpu=device == "cpu",
        ddp_backend={"cpu": "gloo", "cuda": "nccl"}[device] if training.processes > 1 else None,
        report_to="none",
        disable_tqdm=not sys.stdout.isatty(),
    )


def train(
    training: Training,
    rows: Sequence[dict[str, Any]],
    expected: Sequence[Sequence[int]],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    job_id: str,
    checkpoints: Path,
    out: Path,
    device: str,
) -> dict[str, Any]:
    """Train `model` on `rows`, leave the export in `out/model` and the curve in `out/log_history.csv`.

    `expected` are the rows' token ids as planned; the trainer's must equal them. Returns metrics, seconds among them.
    """
    config = arguments(training, checkpoints, device)
    with config.main_process_first(local=False):  # which clears away what the others then do not see
        checkpoint = last_checkpoint(checkpoints, job_id, training.processes)
    trainer = Trainer(
        job_id=job_id,
        resumed=checkpoint[1] if checkpoint else None,
        model=model,
        args=config,
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer,
    )
    if [list(ids) for ids in trainer.train_dataset["input_ids"]] != [list(ids) for ids in expected]:
        raise ParityError("TRL tokenized the training rows otherwise than planned; is its version the pinned one?")
    trainer.remove_callback(PrinterCallback)
    if trainer.args.disable_tqdm:
        trainer.add_callback(Lines())
    with refused(checkpoint[0] if checkpoint else None, trainer):
        trainer.train(resume_from_checkpoint=str(checkpoint[0]) if checkpoint else None)
    trainer.save_model(str(out / "model"))
    if trainer.is_world_process_zero():
        write_curve(out / "log_history.csv", trainer.state.log_history)
    return summary(trainer)


def summary(trainer: Trainer) -> dict[str, Any]:
    """The run's figures in the trainer's own names, its seconds over all attempts."""
    history = trainer.state.log_history
    last = {key: value for entry in history for key, value in entry.items()}
    seconds = trainer.prior_seconds + last["train_runtime"]
    batch = trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps * trainer.args.world_size
    rows = batch * trainer.state.max_steps
    return {
        "global_step": trainer.state.global_step,
        "epoch": last["epoch"],
        "train_loss": last["train_loss"],
        "mean_token_accuracy": last["mean_token_accuracy"],
        "entropy": last["entropy"],
        "num_tokens": trainer._total_train_tokens,
        "total_flos": int(last["total_flos"]),
        "trainer_seconds": seconds,
        "samples_per_second": rows / seconds,
    }


def write_curve(path: Path, history: Sequence[dict[str, float]]) -> None:
    """The logged points of the loss curve as CSV, one row per logging step."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(entry for entry in history if "loss" in entry)
    with whole(path) as stream:
        stream.write(text.getvalue().encode())
