"""What a user waits for where nothing is computed: `dvc repro` with nothing to do, start-up, comparing many runs."""

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import yaml

from bench.measure import Record, interleaved, scratch
from stages.jobs import PROJECT

LIBRARIES = "importing what a bare script does"
IMPORTS = "import torch, datasets, transformers, trl; from transformers import AutoModelForCausalLM; trl.SFTTrainer"
COMMANDS = ("check", "plan", "train", "compare", "worker")
RUNS = 100
LIMIT = 5.0  # seconds to compare them
PROMISE = f"the promise, {LIMIT:g} s"


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        sys.exit(f"bench: {' '.join(command[:4])} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def environment() -> dict[str, str]:
    who = {f"GIT_{who}_{what}": "bench@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | who | {"PYTHONPATH": str(PROJECT), "PATH": path}


def finished(folder: Path) -> int:
    """A clone of this project in which every stage's outputs are there and on record; the number of stages."""
    from dvc.repo import Repo

    from tests.conftest import clone

    shutil.rmtree(folder, ignore_errors=True)
    os.environ |= {key: value for key, value in environment().items() if key.startswith("GIT_")}
    clone(folder)
    with Repo(str(folder)) as repo:
        stages = list(repo.index.stages)
        outs = [Path(out.fs_path) for stage in stages for out in stage.outs]
    for path in outs:
        target = path if path.suffix else path / "file"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{path.relative_to(folder)}\n")
    run(folder, "dvc", "commit", "--force", "--quiet")
    return len(stages)


def trivial(folder: Path, stages: int) -> None:
    """A pipeline of as many stages that do nothing, one after another, run once."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "0").write_text("0")
    steps = {f"s{n}": {"cmd": f"cp {n} {n + 1}", "deps": [str(n)], "outs": [str(n + 1)]} for n in range(stages)}
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": steps}))
    run(folder, "git", "init", "--quiet")
    run(folder, "dvc", "init", "--quiet")
    run(folder, "dvc", "repro", "--quiet")


def idle(folder: Path) -> None:
    if "up to date" not in (said := run(folder, "dvc", "repro")):
        sys.exit(f"bench: `dvc repro` found something to do:\n{said[-2000:]}")


def measure_repro(record: Record, rounds: int) -> None:
    ours, bare = scratch("repro"), scratch("trivial")
    stages = finished(ours)
    trivial(bare, stages)
    other = f"{stages} trivial stages"
    works = {
        "this project": lambda: idle(ours),
        other: lambda: idle(bare),
    }
    interleaved(works, 1)
    seconds, _ = interleaved(works, rounds)
    case, equal = f"dvc repro, nothing to do, {stages} stages", "all stages skipped"
    record.line(case, seconds, 1, "runs/s", equal=equal, work={"starts": 1})


def measure_start(record: Record, rounds: int) -> None:
    """Until a command knows what it is asked, and until `check`, which reads all settings, has ended."""

    def start(folder: Path, *arguments: str) -> None:
        run(folder, sys.executable, "-m", *arguments)

    helped = [f"stages.{name}" for name in COMMANDS]
    works = {f"{name} --help": (lambda name=name: start(PROJECT, name, "--help")) for name in helped}
    works["stages.check"] = lambda: start(scratch("repro"), "stages.check")
    names = list(works)
    works[LIBRARIES] = lambda: run(PROJECT, sys.executable, "-c", IMPORTS)
    seconds, _ = interleaved(works, rounds)
    for name in names:
        pair = {name: seconds[name], LIBRARIES: seconds[LIBRARIES]}
        record.line(f"python -m {name}", pair, 1, "starts/s", work={"starts": 1})


def repository(folder: Path, runs: int) -> list[str]:
    """A repository with a branch per run: seeds and repeats on two platforms, both tasks' metrics and evidence."""
    from tests.comparison.build import START, branch
    from tests.comparison.build import repository as make

    shutil.rmtree(folder, ignore_errors=True)
    root = make(folder)
    for n in range(runs):
        options = {"platform": ("nodus", "modal")[n % 2], "seed": n // 2 % 10, "repeat": 1 + n // 20}
        start = START + timedelta(hours=n)
        branch(root, f"run-{n}", **options, charge=f"0.1{n:03}", seconds=60 + n % 7, start=start)
    return [f"run-{n}" for n in range(runs)]


def compare(folder: Path, names: Sequence[str]) -> None:
    run(folder, sys.executable, "-m", "stages.compare", *names, "--json", "--html", "page.html")


def measure_compare(record: Record, given: Namespace) -> None:
    folder = scratch("compare")
    names = repository(folder, max(6, round(RUNS * given.scale)))
    sizes = [2, len(names)]
    for size in sizes:
        seconds, _ = interleaved({"this project": lambda size=size: compare(folder, names[:size])}, given.rounds)
        promised = {PROMISE: [LIMIT] * given.rounds}
        record.line(f"compare {size} runs", seconds | promised, size, "runs/s", {PROMISE: 1.0}, work={"starts": 1})
    sizes = [max(2, len(names) * part // 16) for part in (1, 4, 16)]
    grown = {size: (lambda size=size: compare(folder, names[:size])) for size in sizes}
    record.grow("compare", "runs", grown, given.rounds)


def measure(given: Namespace) -> Record:
    record = Record("Latency")
    measure_repro(record, given.rounds)
    measure_start(record, given.rounds)
    measure_compare(record, given)
    return record
