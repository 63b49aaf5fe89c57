"""Platform `modal` with the real worker, and with a large export. Minutes."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.jobs import PROJECT, build, write_job
from stages.protocol import Protocol
from tests.conftest import tiny_architecture
from tests.platforms.modal_kit import Emulator, delivered, emulator, make_job, submit

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("emulator")) as found:
        yield found


def small_job(folder: Path, protocol: Protocol, model: Path) -> Path:
    """A hundred steps of real training, a checkpoint at every tenth."""
    recipe = protocol.train.pretrain.model_copy(
        update={"max_steps": 100, "save_steps": 10, "logging_steps": 5, "per_device_train_batch_size": 4}
    )
    small = protocol.model_copy(
        update={
            "train": protocol.train.model_copy(update={"pretrain": recipe}),
            "model": protocol.model.model_copy(update={"architecture": tiny_architecture(512)}),
        }
    )
    rows = folder.with_name("pretrain-train.jsonl")
    texts = [
        f"The {word} river flows past the {word} town and on to the sea." for word in ["old", "new", "long", "wide"]
    ]
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts * 8))
    job = build(small, "pretrain", inputs=[rows], model=model, seed=11)
    write_job(job, folder, [rows], model)
    return folder


def local(job: Path, out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "stages.worker", str(job), str(out)]
    subprocess.run(command, cwd=PROJECT, env=os.environ | {"PYTHONPATH": str(PROJECT)}, check=True)
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


def test_weights_are_those_of_an_undisturbed_local_run_after_a_preemption(
    emulated: Emulator, tmp_path: Path, embedded: Protocol, tiny_model: Path
) -> None:
    job = small_job(tmp_path / "job", embedded, tiny_model)
    expected = local(job, tmp_path / "local")
    emulated.faults({"kind": "preempt", "step": 20})
    status, output = submit(emulated, tmp_path / "state", job, "--real", seconds=600)
    assert status == 0, output
    found = delivered(output)
    assert [attempt["outcome"] for attempt in found["receipt"]["attempts"]] == ["preempted", "succeeded"]
    resumed = re.search(r"resuming from step (\d+)", output)
    assert resumed
    assert 10 <= int(resumed[1]) < 100
    assert found["result"]["model_weights_sha256"] == expected["model_weights_sha256"]
    assert found["result"]["training_tokens_sha256"] == expected["training_tokens_sha256"]
    assert emulated.left() == []


def test_a_gigabyte_goes_up_and_down_with_flat_memory(emulated: Emulator, tmp_path: Path, capsys: Any) -> None:
    """The figures are printed: peak memory of the submitting side, seconds against `cp` and `sha256sum`."""
    size = 1_000_000_000
    job = make_job(tmp_path / "job", steps=1, size=size)
    began = time.monotonic()
    status, output = submit(emulated, tmp_path / "state", job, seconds=600)
    whole = time.monotonic() - began
    assert status == 0, output
    (weights,) = [path for path in (emulated.volume() / "files").iterdir() if path.stat().st_size == size]
    (tmp_path / "model").mkdir()
    began = time.monotonic()
    shutil.copyfile(weights, tmp_path / "model/model.safetensors")
    subprocess.run(["sha256sum", tmp_path / "model/model.safetensors"], check=True, stdout=subprocess.DEVNULL)
    plain = time.monotonic() - began
    (tmp_path / "model/config.json").write_text("{}")
    weights.unlink()
    second = make_job(tmp_path / "second", model=tmp_path / "model", steps=1)
    status, up = submit(emulated, tmp_path / "state", second, seconds=600)
    assert status == 0, up
    down, upload = delivered(output), delivered(up)
    small = submit(emulated, tmp_path / "state", make_job(tmp_path / "third", steps=1))
    base = delivered(small[1])["peak_mib"]
    with capsys.disabled():
        print(
            f"\n1 GB: job and download {whole:.1f} s, of which the download {down['fetch_seconds']:.1f} s; "
            f"upload {upload['submit_seconds']:.1f} s; cp + sha256sum {plain:.1f} s; "
            f"peak memory {base} MiB without, {down['peak_mib']} MiB down, {upload['peak_mib']} MiB up"
        )
    assert down["peak_mib"] - base < 200
    assert upload["peak_mib"] - base < 200
    assert down["fetch_seconds"] < 10 * plain
