"""What the tests of platform `modal` share: settings, small jobs, a running emulator, the submitting process."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stages.command import die_with_parent
from stages.jobs import PROJECT, build, read_job, write_job
from stages.platforms.common.process import stop
from stages.platforms.modal import app_name
from stages.protocol import read_protocol
from stages.validation import read_yaml
from tests.platforms.modal_worker import export

WORKER = Path(__file__).with_name("modal_worker.py")
SETTINGS: dict[str, Any] = read_yaml(PROJECT / "params.yaml")["modal"]


def make_job(folder: Path, protocol: str = "embedded", model: Path | None = None, **plan: Any) -> Path:
    """A training job for the stand-in worker, which does as `plan` says; the pilot's takes its model from the hub."""
    source = folder.with_name(folder.name + ".source")
    source.mkdir(parents=True)
    if model is None and protocol == "embedded":
        model = source / "model"
        model.mkdir()
        (model / "model.safetensors").write_bytes(b"weights of a model")
        (model / "config.json").write_text("{}")
    rows = source / "sft-train.jsonl"
    plan = {"unique": str(folder)} | plan
    rows.write_text(json.dumps({"prompt": json.dumps(plan), "completion": " positive"}) + "\n")
    job = build(read_protocol(protocol, PROJECT), "sft", inputs=[rows], model=model, seed=11)
    write_job(job, folder, [rows], model)
    return folder


def exported(folder: Path, size: int) -> Path:
    """The weights that the stand-in exports."""
    export(folder / "model.safetensors", size)
    return folder / "model.safetensors"


class Emulator:
    """A running emulator, and what it was asked for."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.folder, self.environment = folder, environment

    def faults(self, *faults: dict[str, Any]) -> None:
        """Arm faults, each anew even where an equal one has struck before."""
        now = time.time()
        (self.folder / "faults.json").write_text(json.dumps([{"armed": now, **fault} for fault in faults]))

    def struck(self) -> list[str]:
        """Kinds of the faults that have struck since they were armed."""
        armed = {fault["armed"] for fault in json.loads((self.folder / "faults.json").read_text())}
        lines = map(json.loads, (self.folder / "struck.jsonl").read_text().splitlines())
        return [line["kind"] for line in lines if line["armed"] in armed]

    def requests(self, call: str, **fields: Any) -> list[dict[str, Any]]:
        """What was asked in calls of a name, all or those whose `fields` are so."""
        path = self.folder / "requests.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        found = [line["request"] for line in map(json.loads, lines) if line["call"] == call]
        return [request for request in found if fields.items() <= request.items()]

    def runs(self, job_id: str) -> int:
        """How many times a job's Function was called, which is what costs."""
        record = self.state()
        apps = {app["id"] for app in record["apps"].values() if app["name"] == app_name(job_id)}
        functions = {function["id"] for function in record["functions"].values() if function["app"] in apps}
        return sum(call["function"] in functions for call in record["calls"].values())

    def tries(self, job_id: str) -> list[str]:
        """How the tries at a job ended, as its record on the Volume says."""
        paths = sorted((self.volume() / f"jobs/{job_id}/attempts").glob("*.json"))
        return [json.loads(path.read_text())["outcome"] for path in paths]

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return found

    def volume(self) -> Path:
        (found,) = (self.folder / "volumes").iterdir()
        return found

    def processes(self) -> list[str]:
        """Command lines of this emulator's containers and their workers that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if str(self.folder / "containers").encode() in path.read_bytes():
                    found.append(path.with_name("cmdline").read_text())
        return found

    def left(self) -> list[str]:
        """What should be gone once a job is over: containers, running apps, partial files."""
        apps = [app["name"] for app in self.state()["apps"].values() if app["state"] != 5]
        partial = [str(path) for path in self.folder.rglob("*") if "partial" in path.name or "commit-" in path.name]
        return [*self.processes(), *apps, *partial, *map(str, (self.folder / "containers").iterdir())]


@contextlib.contextmanager
def emulator(folder: Path, **environment: str) -> Iterator[Emulator]:
    """An emulator as a process of its own; it ends with this one at the latest."""
    command = [sys.executable, "-m", "emulators.modal", "--folder", str(folder)]
    base = os.environ | {"PYTHONPATH": str(PROJECT)} | environment
    child = subprocess.Popen(command, env=base, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
    try:
        assert child.stdout is not None
        given = json.loads(child.stdout.readline())["environment"]
        kept = {key: value for key, value in base.items() if key not in given}
        yield Emulator(folder, kept | {key: value for key, value in given.items() if value is not None})
    finally:
        stop(child)


def start(
    emulated: Emulator, state: Path, job: Path, *options: str, environment: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.platforms.modal_submit", str(state), str(job), *options]
    return subprocess.Popen(
        command,
        env=emulated.environment | dict(environment),
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_parent,
    )


def submit(
    emulated: Emulator,
    state: Path,
    job: Path,
    *options: str,
    seconds: int = 120,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str]:
    """Run the submitting side to its end: its exit code and output."""
    child = start(emulated, state, job, *options, environment=environment)
    output, _ = child.communicate(timeout=seconds)
    return child.returncode, output


def delivered(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def job_id(folder: Path) -> str:
    return read_job(folder).id


def until(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
