"""Promise: of a model's folder, weights in safetensors and plain settings are read; nothing in it is ever run."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from stages import jobs
from stages.command import ParityError
from stages.protocol import Protocol
from stages.worker import load_model
from tests.conftest import tiny_architecture
from tests.faults.test_checkpoints import Evil

CODE = """
from pathlib import Path
Path({target!r}).mkdir()
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
class Config(Qwen2Config): pass
class Model(Qwen2ForCausalLM): pass
class Tokenizer(Qwen2Tokenizer): pass
"""


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model, tmp_path / "model")


@pytest.fixture
def job(embedded: Protocol, model: Path, tmp_path: Path) -> jobs.Job:
    """A job that scores it."""
    (tmp_path / "sft-test.jsonl").write_text('{"completion": " positive", "prompt": "fine"}\n')
    architecture = tiny_architecture(json.loads((model / "config.json").read_text())["vocab_size"])
    tiny = embedded.model_copy(update={"model": embedded.model.model_copy(update={"architecture": architecture})})
    return jobs.build(tiny, "sft", inputs=[tmp_path / "sft-test.jsonl"], model=model)


def load(job: jobs.Job, folder: Path) -> Any:
    return load_model(job, folder, "float32", "cpu")


def add(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "training_args.bin", "model.bin", "adapter_model.bin", "a.pkl"])
def test_a_pickle_beside_the_weights_is_never_opened(job: jobs.Job, model: Path, tmp_path: Path, name: str) -> None:
    (model / name).write_bytes(pickle.dumps(Evil(tmp_path / "evil")))
    load(job, model)
    assert name not in jobs.model_files(model)
    assert not (tmp_path / "evil").exists()


def test_a_pickle_in_the_place_of_the_weights_is_refused(job: jobs.Job, model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(tmp_path / "evil")))
    with pytest.raises(ParityError, match=r"the model cannot be loaded: OSError: .*model\.safetensors"):
        load(job, model)
    with pytest.raises(ParityError, match="weights load from safetensors only"):
        jobs.job_model(job.model, model)  # type: ignore[arg-type]
    (model / "pytorch_model.bin").rename(model / "model.safetensors")
    with pytest.raises(ParityError, match="the model cannot be loaded: Safetensor"):
        load(job, model)
    assert not (tmp_path / "evil").exists()


def test_weights_that_lack_a_tensor_are_refused_instead_of_made_up(job: jobs.Job, model: Path) -> None:
    path = model / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ParityError, match=r"the weights lack model\.layers\.1\.mlp\.up_proj\.weight"):
        load(job, model)


@pytest.mark.parametrize("kind", ["qwen2", "evil"])
def test_code_in_the_folder_is_never_run(job: jobs.Job, model: Path, tmp_path: Path, kind: str) -> None:
    (model / "evil.py").write_text(CODE.format(target=str(tmp_path / "evil")))
    classes = {
        "AutoConfig": "evil.Config",
        "AutoModelForCausalLM": "evil.Model",
        "AutoTokenizer": ["evil.Tokenizer", None],
    }
    add(model / "config.json", auto_map=classes, model_type=kind)
    add(model / "tokenizer_config.json", auto_map=classes, tokenizer_class="Tokenizer")
    if kind == "evil":  # which only the code in the folder knows
        with pytest.raises(ParityError, match="the model cannot be loaded"):
            load(job, model)
    else:
        load(job, model)
    assert not (tmp_path / "evil").exists()


def test_an_evil_export_is_hashed_and_scored_and_never_opened(
    job: jobs.Job, model: Path, embedded: Protocol, tmp_path: Path
) -> None:
    """`training_args.bin` travels with the export under its digest; the job folder that scores it has none."""
    from stages.worker import work

    (model / "training_args.bin").write_bytes(pickle.dumps(Evil(tmp_path / "evil")))
    jobs.write_job(job, tmp_path / "job", [tmp_path / "sft-test.jsonl"], model)
    assert not (tmp_path / "job/model/training_args.bin").exists()
    work(tmp_path / "job", tmp_path / "out", tmp_path / "state", "cpu")
    jobs.verify(tmp_path / "out", job.id)
    jobs.write_manifest(model, job.id)
    assert "training_args.bin" in jobs.verify(model, job.id).files
    assert not (tmp_path / "evil").exists()
