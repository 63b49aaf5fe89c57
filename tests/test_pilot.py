"""Promise: the published protocol runs end to end on real rows; only the weights are tiny, and the runs two steps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stages import jobs
from stages.evidence.digests import read_rows
from stages.protocol import read_protocol
from tests.conftest import TINY, clone, read, stage


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory, pilot: Path, qwen_model: Path) -> Path:
    """The pilot's mirror with a tiny Qwen2 in the place of the real one."""
    folder = tmp_path_factory.mktemp("mirror")
    for name in ("stanfordnlp", "Salesforce"):
        (folder / name).symlink_to(pilot / name)
    (folder / "Qwen").mkdir()
    (folder / "Qwen" / "Qwen2.5-0.5B").symlink_to(qwen_model)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, mirror: Path) -> Path:
    """A clone on protocol pilot, its architecture tiny and its runs two steps long."""
    folder = clone(tmp_path_factory.mktemp("pilot") / "project")
    params, protocol = folder / "params.yaml", folder / "protocols/pilot.yaml"
    params.write_text(params.read_text().replace("protocol: embedded", "protocol: pilot"))
    text = re.sub(r"max_steps: \d+", "max_steps: 2", protocol.read_text())
    text = re.sub(r"logging_steps: \d+", "logging_steps: 1", text)
    tiny = TINY | {"max_position_embeddings": 2048, "rope_theta": 10000.0}
    for key, value in tiny.items():
        text = re.sub(rf"{key}: [\d.]+", f"{key}: {value}", text)
    protocol.write_text(text)
    for name, *task in (["check"], ["sources"], ["prepare", "sft"], ["prepare", "pretrain"]):
        done = stage(name, *task, cwd=folder, env={"PARITY_MIRROR": str(mirror)})
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("task", ["sft", "pretrain"])
def test_a_few_steps_of_each_task_train_in_bfloat16_as_planned(task: str, project: Path, mirror: Path) -> None:
    done = stage("train", task, cwd=project, env={"PARITY_MIRROR": str(mirror)})
    assert done.returncode == 0, done.stderr
    found = read(project / f"metrics/{task}/train.json")
    planned = stage("plan", "--json", cwd=project, env={"PARITY_MIRROR": str(mirror)}).stdout
    import json

    plan = json.loads(planned)["training"][task]
    assert {key: found[key] for key in ("num_tokens", "total_flos")} == {
        key: plan[key] for key in ("num_tokens", "total_flos")
    }
    record = read(project / f"metrics/{task}/evidence/train.json")
    assert record["training_tokens_sha256"] == plan["training_tokens_sha256"]
    assert record["job"]["model"]["source"] == "hub"
    exported = {name for name in record["output"] if name.startswith("model/")}
    assert exported == {
        f"model/{name}"
        for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                     "tokenizer_config.json", "training_args.bin")
    }  # fmt: skip
    from safetensors import safe_open

    with safe_open(project / f"data/models/{task}/model.safetensors", "pt") as weights:
        assert weights.get_slice("model.embed_tokens.weight").get_dtype() == "BF16"


def test_labels_are_generated_for_all_real_rows(project: Path, mirror: Path) -> None:
    done = stage("evaluate", "sft", cwd=project, env={"PARITY_MIRROR": str(mirror)})
    assert done.returncode == 0, done.stderr
    assert read(project / "metrics/sft/evaluate.json")["rows"] == 872
    assert len((project / "data/predictions/sft/evaluate.jsonl").read_bytes().splitlines()) == 872


def test_real_paragraphs_are_scored_by_the_worker(project: Path, mirror: Path, tmp_path: Path) -> None:
    """The first forty: on a CPU the real vocabulary makes all of them take minutes."""
    protocol = read_protocol("pilot", project)
    lines = (project / "data/inputs/pretrain-test.jsonl").read_bytes().splitlines(keepends=True)[:40]
    path = tmp_path / "pretrain-test.jsonl"
    path.write_bytes(b"".join(lines))
    job = jobs.build(protocol, "pretrain", inputs=[path], model=project / "data/models/pretrain")
    jobs.write_job(job, tmp_path / "job", [path], project / "data/models/pretrain")
    command = [sys.executable, "-m", "stages.worker", str(tmp_path / "job"), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "out/result.json")["metrics"]
    rows = list(read_rows(tmp_path / "out/predictions.jsonl", {"row": int, "tokens": int, "nll": float}))
    assert found["rows"] == len(rows) == 40
    assert found["tokens"] == sum(row["tokens"] for row in rows)
    assert 10 < found["nll"] < 13  # untrained: about the logarithm of the vocabulary, 11.9
