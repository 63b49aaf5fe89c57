"""The stage `train` against a bare TRL script of 40 lines with the same arguments, on the pilot's recipe."""

import json
import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import yaml

from bench.measure import Record, interleaved, scratch
from stages import layout
from stages.jobs import PROJECT
from stages.protocol import read_protocol

STEPS = 128  # the pilot's
BARE = "bare TRL script"


def project(folder: Path, steps: int, device: str) -> tuple[Path, dict[str, Any]]:
    """A folder in which `stages.train pretrain` runs: the pilot's recipe on the embedded protocol's model and rows."""
    shutil.rmtree(folder, ignore_errors=True)
    protocol = read_protocol("embedded", PROJECT)
    recipe = read_protocol("pilot", PROJECT).train.pretrain.model_copy(
        update={"max_steps": steps, "logging_steps": 4, "save_steps": steps}
    )
    text = yaml.safe_load((PROJECT / "protocols/embedded.yaml").read_text())
    text["train"]["pretrain"] = recipe.model_dump()
    text["execution"]["training_dtype"] = "bfloat16"
    (folder / "protocols").mkdir(parents=True)
    (folder / "protocols/embedded.yaml").write_text(yaml.safe_dump(text))
    parameters = (PROJECT / "params.yaml").read_text()
    (folder / "params.yaml").write_text(parameters.replace("device: auto", f"device: {device}"))
    for stage in ("check", "sources", "prepare pretrain"):
        command([f"stages.{stage.split()[0]}", *stage.split()[1:]], folder)
    places = {"rows": layout.INPUTS / layout.input_names("pretrain")[0], "model": layout.RAW / protocol.model.id}
    arguments = recipe.model_dump() | {"seed": 11, "data_seed": 11, "use_cpu": device == "cpu"}
    (folder / "arguments.json").write_text(json.dumps(arguments | {"disable_tqdm": True}))
    return folder, {name: folder / place for name, place in places.items()}


def command(arguments: list[str], folder: Path) -> tuple[str, float]:
    """Run a Python module to its end: what it printed, and the seconds that a user waits."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "PARITY_STATE": str(folder / "state")}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"bench: {arguments[0]} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout, time.perf_counter() - started


def ours(folder: Path) -> dict[str, Any]:
    shutil.rmtree(folder / "state", ignore_errors=True)  # a finished job would be taken from there
    _, whole = command(["stages.train", "pretrain"], folder)
    trained = json.loads((folder / layout.metrics("pretrain", "train")).read_text())
    weights = json.loads((folder / layout.evidence("pretrain", "train")).read_text())["model_weights_sha256"]
    # As transformers counts, 6 per token and weight but the embedding's; to compute a layer a second time takes 2 more.
    flop = trained["total_flos"] * 8 / 6
    return {"seconds": whole, "trainer_seconds": trained["trainer_seconds"], "sha256": weights, "flop": flop}


def bare(folder: Path, places: dict[str, Any]) -> dict[str, Any]:
    out = folder / "bare"
    shutil.rmtree(out, ignore_errors=True)
    given = [str(places["rows"]), str(places["model"]), str(out), str(folder / "arguments.json"), "bfloat16"]
    said, whole = command(["bench.bare_trl", *given], folder)
    return {"seconds": whole, **json.loads(said.splitlines()[-1])}


def measure(given: Namespace) -> Record:
    record = Record("Training")
    steps = max(2, round(STEPS * given.scale))
    folder, places = project(scratch("training"), steps, given.device)
    trainer: dict[str, list[float]] = {"this project": [], BARE: []}
    digests = set()

    def noted(name: str, found: dict[str, Any]) -> dict[str, Any]:
        trainer[name].append(found["trainer_seconds"])
        digests.add(found["sha256"])
        return found

    works = {
        "this project": lambda: noted("this project", ours(folder)),
        BARE: lambda: noted(BARE, bare(folder, places)),
    }
    seconds, found = interleaved(works, given.rounds)
    if len(digests) != 1 and given.device == "cpu":  # kernels of a GPU may add in another order each time
        raise SystemExit(f"bench: the weights differ: {sorted(digests)}")
    equal = "weights identical" if len(digests) == 1 else f"**{len(digests)} different weights**"
    same = {"equal": equal, "work": {"bfloat16": found["this project"]["flop"]}}
    record.line(f"trainer, {steps} steps", trainer, steps, "steps/s", {BARE: 1 / 1.02}, **same)
    record.line(f"whole stage, {steps} steps", seconds, steps, "steps/s", {BARE: 1 / 1.1}, **same)
    sizes = [max(2, steps * part // 16) for part in (1, 4, 16)]
    folders = {size: project(scratch(f"training-{size}"), size, given.device)[0] for size in sizes}
    taken = {size: ours(at) for size, at in folders.items()}
    for case, key in (("trainer", "trainer_seconds"), ("whole stage", "seconds")):
        record.grown(case, "steps", {size: each[key] for size, each in taken.items()})
    record.notes.append(
        f"The pilot's recipe (bfloat16, 4 rows by 4 accumulated, gradient checkpointing, {steps} of its {STEPS} steps) "
        "with the embedded model."
    )
    return record
