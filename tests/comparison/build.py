"""Runs made of thin air: metrics, evidence and data that agree with each other as a real run's do."""

import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from stages.command import TASKS
from stages.comparison.gates import verdicts
from stages.corpora.sources import snapshot
from stages.evidence.digests import canonical, sha256_json, sha256_tree
from stages.jobs import WORKER_CODE
from stages.prepare import prepare
from stages.protocol import Protocol, read_protocol
from stages.scoring.metrics import OF_TASK
from tests.conftest import ROOT, run

STAGES = ("baseline", "train", "evaluate")
START = datetime(2026, 11, 1, 8, tzinfo=UTC)
Edit = Callable[[str, dict[str, Any]], None]


def indented(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()


def put(path: Path, content: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def predictions(task: str, good: int, rows: int = 40) -> list[dict[str, Any]]:
    if task == "sft":
        return [{"row": i, "label": "x", "text": "x", "valid": True, "correct": i < good} for i in range(rows)]
    return [{"row": i, "tokens": 10, "nll": 10 * (4 - good / rows)} for i in range(rows)]


class Builder:
    """Writes one run into a project folder. `edit(path, document)` may change what is written, metrics first."""

    def __init__(self, root: Path, platform: str = "local", seed: int = 11, **options: Any):
        self.root, self.platform, self.seed = root, platform, seed
        self.repeat: int = options.get("repeat", 1)
        self.seconds: float = options.get("seconds", 100.0)
        self.charge: str | None = options.get("charge")
        self.final: bool = options.get("final", True)
        self.good: int = options.get("good", 38)
        self.start: datetime = options.get("start", START)
        self.weights: str = options.get("weights", f"weights of {seed}")
        self.edit: Edit = options.get("edit", lambda path, document: None)
        self.protocol: Protocol = read_protocol("embedded", ROOT)
        self.code = sha256_tree(ROOT, WORKER_CODE)
        self.clock = self.start

    def write(self, tasks: tuple[str, ...] = ("sft", "pretrain")) -> None:
        for task in tasks:
            weights = self.model(task)
            for stage in STAGES:
                self.stage(task, stage, weights)
            self.gate(task)

    def model(self, task: str) -> dict[str, str]:
        folder = self.root / "data/models" / task
        files = {"config.json": b"{}", "model.safetensors": f"{task}: {self.weights}".encode()}
        return {name: put(folder / name, content) for name, content in files.items()}

    def stage(self, task: str, stage: str, weights: dict[str, str]) -> None:
        training = stage == "train"
        begun, self.clock = self.clock, self.clock + timedelta(seconds=self.seconds + 20)
        output = self.output(task, stage, weights)
        metrics = self.metrics(task, stage)
        name = f"{task}-{'train' if training else 'test'}.jsonl"
        job = {
            "version": 1,
            "kind": "train" if training else "score",
            "task": task,
            "code": self.code,
            "stack": self.protocol.stack.model_dump(by_alias=True),
            "resources": self.protocol.resources.model_dump(),
            "execution": self.protocol.execution.model_dump(),
            "model": {
                "source": "folder",
                "id": self.protocol.model.id,
                "revision": self.protocol.model.revision,
                "sha256": weights if stage == "evaluate" else {"model.safetensors": "0" * 64},
            },
            "inputs": {name: getattr(getattr(self.protocol.inputs, task), name.split("-")[1][:-6]).sha256},
            "repeat": 1 if stage == "baseline" else self.repeat,
            "training": {"recipe": getattr(self.protocol.train, task).model_dump(), "seed": self.seed}
            if training
            else None,
            "scoring": None,
        }
        evidence = {
            "version": 1,
            "stage": stage,
            "protocol": {
                "name": "embedded",
                "sha256": sha256_json(self.protocol.model_dump(mode="json", by_alias=True)),
            },
            "commit": "1" * 40,
            "dirty": False,
            "rehearsal": False,
            "job": {"id": sha256_json(job), **job},
            "device": "cpu",
            "environment": self.environment(),
            "loaded_weights_sha256": job["model"]["sha256"]["model.safetensors"],
            "training_tokens_sha256": hashlib.sha256(task.encode()).hexdigest() if training else None,
            "model_weights_sha256": weights["model.safetensors"] if training else None,
            "output": output,
            "timings": {
                "submitted_utc": begun.isoformat(),
                "worker_started_utc": (begun + timedelta(seconds=5)).isoformat(),
                "worker_finished_utc": (begun + timedelta(seconds=self.seconds + 5)).isoformat(),
                "verified_utc": (begun + timedelta(seconds=self.seconds + 10)).isoformat(),
                "worker_seconds": self.seconds,
                "delivery_seconds": self.seconds + 10,
                "delivery_clock": "submission to verified output, by the submitting machine's wall clock",
            },
            "receipt": self.receipt(),
        }
        self.seal(evidence, metrics)
        sides = {"delivery_seconds": self.seconds + 10}
        sides |= {"charge_usd": float(self.charge)} if self.charge and self.final else {}
        self.document(f"metrics/{task}/{stage}.json", metrics | sides)
        self.document(f"metrics/{task}/evidence/{stage}.json", evidence)

    def training(self, task: str) -> dict[str, Any]:
        return {"recipe": getattr(self.protocol.train, task).model_dump(), "seed": self.seed}

    def document(self, path: str, content: dict[str, Any]) -> None:
        self.edit(path, content)
        put(self.root / path, indented(content))

    def environment(self) -> dict[str, Any]:
        versions = self.protocol.stack.model_dump(by_alias=True)
        return {
            "python": "3.11.7",
            "system": "Linux 6.1",
            "versions": versions,
            "gpu": {"name": "NVIDIA L4", "memory_bytes": 23659151360, "count": 1, "driver": "550.1.2", "cuda": "12.6"},
            "cpu": {"model": "a CPU", "visible": 4, "affinity": 4, "cgroup_limit": 4.0, "effective": 4},
            "memory": {"total_bytes": 51539607552, "cgroup_limit_bytes": 51539607552},
        }

    def receipt(self) -> dict[str, Any]:
        segments = {"running": {"seconds": self.seconds, "usd": self.charge}} if self.charge else {}
        return {
            "platform": self.platform,
            "attempts": [{"outcome": "succeeded"}],
            "charge_usd": self.charge,
            "final": self.final,
            "segments": segments,
            "resources": {},
            "clean": True,
        }

    def metrics(self, task: str, stage: str) -> dict[str, Any]:
        if stage == "train":
            found = {"train_loss": 0.5, "trainer_seconds": self.seconds - 10, "global_step": 8, "epoch": 1.0}
            return found | {"num_tokens": 100, "total_flos": 1000, "samples_per_second": 2.5}
        good = self.good if stage == "evaluate" else 10
        return OF_TASK[task](predictions(task, good)) | {"seconds": 1.5}  # type: ignore[index]

    def output(self, task: str, stage: str, weights: dict[str, str]) -> dict[str, Any]:
        if stage == "train":
            digest = put(self.root / f"metrics/{task}/loss.csv", b"step,epoch,loss\n2,0.5,1.5\n4,1.0,0.5\n")
            return {f"model/{name}": {"bytes": 1, "sha256": sha} for name, sha in weights.items()} | {
                "log_history.csv": {"bytes": 1, "sha256": digest}
            }
        rows = predictions(task, self.good if stage == "evaluate" else 10)
        path = self.root / f"data/predictions/{task}/{stage}.jsonl"
        digest = put(path, b"".join(canonical(row) + b"\n" for row in rows))
        return {"predictions.jsonl": {"bytes": 1, "sha256": digest}}

    def seal(self, evidence: dict[str, Any], metrics: dict[str, Any]) -> None:
        """The worker's `result.json`, of which only the digest is kept."""
        times = evidence["timings"]
        result = {
            "version": 1,
            "job": evidence["job"]["id"],
            "device": evidence["device"],
            "environment": evidence["environment"],
            "started_utc": times["worker_started_utc"],
            "finished_utc": times["worker_finished_utc"],
            "worker_seconds": times["worker_seconds"],
            "metrics": metrics,
            "loaded_weights_sha256": evidence["loaded_weights_sha256"],
        }
        if evidence["stage"] == "train":
            result |= {key: evidence[key] for key in ("training_tokens_sha256", "model_weights_sha256")}
        evidence["output"]["result.json"] = {"bytes": 1, "sha256": hashlib.sha256(indented(result)).hexdigest()}

    def gate(self, task: str) -> None:
        base, final = (
            json.loads((self.root / f"metrics/{task}/{s}.json").read_text()) for s in ("baseline", "evaluate")
        )
        found = verdicts(self.protocol, task, base, final)  # type: ignore[arg-type]
        self.document(f"metrics/{task}/gate.json", {name: verdict._asdict() for name, verdict in found.items()})


@lru_cache(maxsize=1)
def template() -> Path:
    """An empty project, made once: the protocols and the code that evidence speaks of, in git."""
    root = Path(tempfile.mkdtemp(prefix="parity-template-"))
    atexit.register(shutil.rmtree, root)
    for name in ("protocols", "stages", "reference"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("/data/\n__pycache__/\n")
    shutil.copyfile(ROOT / "params.yaml", root / "params.yaml")
    run("git", "init", "--quiet", "-b", "main", cwd=root)
    commit(root, "start")
    return root


def repository(root: Path) -> Path:
    """A copy of the empty project."""
    return shutil.copytree(template(), root)


def commit(root: Path, message: str) -> str:
    run("git", "add", "-A", cwd=root)
    run("git", "commit", "--quiet", "--allow-empty", "-m", message, cwd=root)
    return run("git", "rev-parse", "HEAD", cwd=root).stdout.strip()


def branch(root: Path, name: str, tasks: tuple[str, ...] = ("sft", "pretrain"), **options: Any) -> str:
    """A branch with one run on it."""
    run("git", "checkout", "--quiet", "-b", name, "main", cwd=root)
    Builder(root, **options).write(tasks)
    made = commit(root, name)
    run("git", "checkout", "--quiet", "main", cwd=root)
    return made


def lock(root: Path) -> None:
    """A `dvc.lock` of everything that the run wrote, and a cache with the listings of its folders."""

    def md5(content: bytes) -> str:
        return hashlib.md5(content, usedforsecurity=False).hexdigest()

    files = [*(root / "metrics").rglob("*.*"), *(root / "data/predictions").rglob("*.jsonl")]
    files += (root / "data/inputs").glob("*.jsonl")
    outs = [{"path": str(p.relative_to(root)), "md5": md5(p.read_bytes())} for p in sorted(files)]
    for folder in sorted((root / "data/models").iterdir()):
        listing = [{"md5": md5(p.read_bytes()), "relpath": p.name} for p in sorted(folder.iterdir())]
        content = json.dumps(listing).encode()
        digest = md5(content) + ".dir"
        put(root / ".dvc/cache/files/md5" / digest[:2] / digest[2:], content)
        outs.append({"path": str(folder.relative_to(root)), "md5": digest})
    models = [dict(out) for out in outs if out["path"].startswith("data/models/")]
    stages = {"all": {"outs": outs}, "evaluate": {"deps": models}}
    (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))


def inputs(root: Path) -> None:
    """The embedded protocol's own input rows, which its pins are of."""
    protocol = read_protocol("embedded", ROOT)
    with tempfile.TemporaryDirectory() as raw:
        snapshot(protocol, None, Path(raw))
        for task in TASKS:
            prepare(protocol, task, Path(raw), root / "data/inputs")
