"""The worker: a job folder in, an output folder out, the same on every platform.

    python -m stages.worker JOB [OUT] [--state DIR] [--device auto|cpu|cuda]

OUT defaults to NODUS_OUTPUT_DIR, DIR (where checkpoints are kept between attempts) to NODUS_STATE_DIR.
"""

import os
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stages import command
from stages.command import ParityError
from stages.evidence.digests import canonical, read_json, read_rows, sha256_file, whole, write_json
from stages.jobs import ROW_KEYS, Job, explained, read_job, write_manifest
from stages.protocol import LabelScorer

# Said before any library is imported: no hub behind our back, no forked tokenizer threads.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
if not sys.stderr.isatty():
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def pick_device(wanted: str) -> str:
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise ParityError("device: cuda was asked for and torch sees none; use device: cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def model_folder(job: Job, folder: Path) -> Path:
    """Where the job's model lies: in the job folder, in the mirror, or, fetched now, in the hub's cache."""
    from stages.corpora.hub import check_pins, fetch_model

    if job.model.source == "folder":
        return folder / "model"
    mirrored = Path(os.environ.get("PARITY_MIRROR") or "nowhere") / job.model.id
    found = mirrored if (mirrored / "config.json").is_file() else fetch_model(job.model.id, job.model.revision)
    check_pins(job.model.sha256, found)
    return found


def loaded_weights(job: Job, folder: Path) -> str | None:
    """SHA-256 of the weights that the job begins with; a pinned file has been held against it already."""
    path = folder / "model.safetensors"
    return job.model.sha256.get(path.name) or (sha256_file(path) if path.is_file() else None)


def check_architecture(job: Job, folder: Path) -> None:
    """Refuse a model whose config.json is not of the architecture that the protocol names, and plans with."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not isinstance(rope := config.get("rope_parameters") or {}, dict):
        raise ParityError(f"{folder / 'config.json'}: no model's configuration")
    for key, expected in job.model.architecture.model_dump().items():
        found = config.get(key, rope.get(key))
        if found != expected:
            raise ParityError(f"{folder / 'config.json'}: {key}: found {found!r:.80}, the protocol says {expected!r}")


def load_model(job: Job, folder: Path, dtype: str, device: str) -> tuple[Any, Any]:
    """The model and tokenizer in `folder`; weights come from safetensors only, no code of a repository is run."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check_architecture(job, folder)
    torch.backends.cuda.matmul.allow_tf32 = job.execution.tf32
    safe = {"trust_remote_code": False, "local_files_only": True}
    with explained(folder):
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation=job.execution.attention,
            use_safetensors=True,
            output_loading_info=True,
            **safe,
        )
        # What a file lacks the library makes up, at random.
        if lacking := sorted(loading["missing_keys"]):
            raise ParityError(f"{folder}: the weights lack {lacking[0]}")
        tokenizer = AutoTokenizer.from_pretrained(folder, **safe)
        return model.to(device), tokenizer


def train_here(job: Job, folder: Path, out: Path, state: Path, device: str) -> dict[str, Any]:
    """Train in this process, which may be one of several; returns the metrics and the training tokens' digest."""
    from stages.training.rows import tokenize, training_tokens_sha256

    assert job.training is not None
    (name,) = job.inputs
    base = model_folder(job, folder)
    rows = list(read_rows(folder / "inputs" / name, ROW_KEYS[job.task]))
    tokens = tokenize(rows, base, job.training.recipe.max_length, Path("inputs") / name)
    from stages.training.trainer import train

    model, tokenizer = load_model(job, base, job.execution.training_dtype, device)
    metrics = train(
        job.training, rows, tokens, model, tokenizer, job_id=job.id, checkpoints=state, out=out, device=device
    )
    return {"metrics": metrics, "training_tokens_sha256": training_tokens_sha256(tokens)}


def run_training(job: Job, folder: Path, out: Path, state: Path, device: str) -> dict[str, Any]:
    from stages.training.processes import launch

    assert job.training is not None
    train = train_here if job.training.processes == 1 else launch
    result, base = train(job, folder, out, state, device), model_folder(job, folder)
    trained = sha256_file(out / "model" / "model.safetensors")
    return result | {"loaded_weights_sha256": loaded_weights(job, base), "model_weights_sha256": trained}


def run_scoring(job: Job, folder: Path, out: Path, device: str) -> dict[str, Any]:
    assert job.scoring is not None
    (name,) = job.inputs
    rows = list(read_rows(folder / "inputs" / name, ROW_KEYS[job.task]))
    from stages.scoring import labels, nll
    from stages.scoring.metrics import label_metrics, nll_metrics

    base = model_folder(job, folder)
    model, tokenizer = load_model(job, base, job.execution.evaluation_dtype, device)
    started = time.perf_counter()
    scorer = job.scoring.scorer
    if isinstance(scorer, LabelScorer):
        predictions = labels.score(model.eval(), tokenizer, rows, scorer, job.scoring.labels)
        metrics = label_metrics(predictions)
    else:
        predictions = nll.score(model.eval(), tokenizer, rows, scorer)
        metrics = nll_metrics(predictions)
    metrics["seconds"] = time.perf_counter() - started
    with whole(out / "predictions.jsonl") as stream:
        stream.writelines(canonical(row) + b"\n" for row in predictions)
    return {"metrics": metrics, "loaded_weights_sha256": loaded_weights(job, base)}


def empty(folder: Path) -> None:
    """Make `folder` an empty one; it stays where it is, since a platform may have mounted it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def work(folder: Path, out: Path, state: Path, wanted: str) -> None:
    """Do the job in `folder` and seal its output in `out`."""
    from stages.evidence.environment import probe

    started, clock = datetime.now(UTC), time.perf_counter()
    job = read_job(folder)
    empty(out)
    state.mkdir(parents=True, exist_ok=True)
    device = pick_device(wanted)
    result = run_training(job, folder, out, state, device) if job.training else run_scoring(job, folder, out, device)
    result |= {
        "version": 1,
        "job": job.id,
        "device": device,
        "environment": probe(),
        "started_utc": started.isoformat(),
        "finished_utc": datetime.now(UTC).isoformat(),
        "worker_seconds": time.perf_counter() - clock,
    }
    write_json(out / "result.json", result)
    write_manifest(out, job.id)


def main() -> None:
    arguments = command.parser("stages.worker", __doc__)
    arguments.add_argument("job", type=Path, metavar="JOB")
    arguments.add_argument("out", type=Path, metavar="OUT", nargs="?", default=os.environ.get("NODUS_OUTPUT_DIR"))
    arguments.add_argument("--state", type=Path, default=os.environ.get("NODUS_STATE_DIR"))
    arguments.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    given = arguments.parse_args()
    if given.out is None:
        arguments.error("OUT is missing and NODUS_OUTPUT_DIR is not set")
    folder, out = given.job.resolve(), Path(given.out).resolve()
    state = Path(given.state).resolve() if given.state else out.with_name(out.name + ".state")
    state.mkdir(parents=True, exist_ok=True)
    # Relative from here, so that no path of this machine gets into what the trainer exports.
    os.chdir(state)
    work(folder, out, Path("checkpoints"), given.device)


if __name__ == "__main__":
    command.run(main)
