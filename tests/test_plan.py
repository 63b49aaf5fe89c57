"""Promise: tokens, padded tokens and FLOPs are known before a second of training, and the trainer reports the same."""

import json
from pathlib import Path

import pytest

from stages.command import ParityError
from stages.evidence.digests import read_rows
from stages.jobs import ROW_KEYS
from stages.prepare import prepare
from stages.protocol import Protocol
from stages.training.plan import plan
from stages.training.rows import tokenize
from tests.conftest import ROOT, stage


@pytest.fixture(scope="session")
def pilot_inputs(tmp_path_factory: pytest.TempPathFactory, pilot: Path, pilot_protocol: Protocol) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for task in ("sft", "pretrain"):
        prepare(pilot_protocol, task, pilot, folder)
    return folder


def test_the_published_figures_come_out_of_the_plan(pilot: Path, pilot_inputs: Path) -> None:
    arguments = ("--protocol", "pilot", "--inputs", str(pilot_inputs), "--json")
    done = stage("plan", *arguments, cwd=ROOT, env={"PARITY_MIRROR": str(pilot)})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    keys = ("steps", "num_tokens", "padded_tokens", "total_flos")
    assert [found["training"]["pretrain"][key] for key in keys] == [128, 327_954, 471_148, 1_011_737_878_035_456]
    assert [found["training"]["sft"][key] for key in keys if key != "num_tokens"] == [160, 104_576, 224_565_317_763_072]
    assert found["scoring"]["pretrain"] == {"windows": 2_111, "forward_tokens": 323_473, "target_tokens": 286_056}


@pytest.mark.parametrize("task", ["sft", "pretrain"])
def test_the_trainer_reports_what_was_planned(
    task: str, pilot_protocol: Protocol, pilot_inputs: Path, qwen_model: Path, tmp_path: Path
) -> None:
    """Real rows and tokenizer, the recorded recipe, a tiny Qwen2: after two steps, two evaluations of the plan."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from stages.jobs import Training
    from stages.training.trainer import Trainer, arguments

    recipe = getattr(pilot_protocol.train, task).model_copy(update={"max_steps": 2, "logging_steps": 1, "bf16": False})
    path = pilot_inputs / f"{task}-train.jsonl"
    rows = list(read_rows(path, ROW_KEYS[task]))
    lengths = [len(ids) for ids in tokenize(rows, qwen_model, recipe.max_length, path)]
    model = AutoModelForCausalLM.from_pretrained(qwen_model)
    trainer = Trainer(
        job_id="0" * 64,
        resumed=None,
        model=model,
        args=arguments(Training(recipe=recipe, seed=11, processes=1), tmp_path, "cpu"),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(qwen_model),
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    planned = plan(lengths, recipe, 11)
    assert [entry["num_tokens"] for entry in logged] == [step.tokens for step in planned]
    assert trainer.state.total_flos == planned[-1].flos(model.num_parameters(exclude_embeddings=True))


def test_an_epochs_last_step_takes_the_micro_batches_that_are_left(embedded: Protocol) -> None:
    recipe = embedded.train.sft.model_copy(
        update={"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "max_steps": 4}
    )
    steps = plan([10] * 9, recipe, 1)  # 5 micro-batches an epoch, the last of 1 row: steps of 6, 3, 6 and 3 rows
    assert [step.rows for step in steps] == [6, 9, 15, 18]
    assert [step.tokens for step in steps] == [60, 90, 150, 180]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a " * 200, "completion": " positive"}, "x.jsonl:2: .* its instruction or label would be cut"),
        ({"prompt": "a", "completion": ""}, "x.jsonl:2: no token of the completion is supervised"),
        ({"prompt": "Sentiment: posi", "completion": "tive"}, "x.jsonl:2: the prompt's tokens are no prefix"),
    ],
)
def test_a_row_that_would_train_on_nothing_is_refused_by_name(row: dict[str, str], said: str, tiny_model: Path) -> None:
    good = {"prompt": "Sentiment:", "completion": " positive"}
    with pytest.raises(ParityError, match=said):
        tokenize([good, row], tiny_model, 128, Path("x.jsonl"))


def test_a_paragraph_without_a_token_to_predict_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ParityError, match=r"x.jsonl:1: 1 token with the end of text, nothing to predict"):
        tokenize([{"text": ""}], tiny_model, 128, Path("x.jsonl"))


def test_a_plan_of_other_inputs_than_the_protocol_pins_is_refused(pilot: Path, pilot_inputs: Path) -> None:
    done = stage("plan", "--inputs", str(pilot_inputs), cwd=ROOT, env={"PARITY_MIRROR": str(pilot)})
    assert done.returncode == 1
    assert "not what the protocol embedded pins" in done.stderr
