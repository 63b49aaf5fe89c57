"""Shared parts of the tests: a clone to run the pipeline in, the published pilot's files, and tiny real models."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.corpora import generated
from stages.protocol import Architecture, Protocol, read_protocol

ROOT = Path(__file__).resolve().parent.parent
PILOT = ROOT.parent / "shared" / "pilot"
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture(scope="session", autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No account, no hub and no state of this machine gets into a test."""
    gone = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "NODUS_API_KEY", "HF_TOKEN", "PARITY_MIRROR", "PARITY_TRACEBACK")
    before = dict(os.environ)
    for name in (*gone, *(name for name in before if name.startswith(("GIT_", "DVC_")))):
        os.environ.pop(name, None)
    os.environ |= {
        "PARITY_STATE": str(tmp_path_factory.mktemp("state")),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path_factory.mktemp("hub")),
        "PATH": f"{Path(sys.executable).parent}:{before['PATH']}",
        "PYTHONPATH": "",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "NODUS_CONFIG": "/dev/null",
        "MODAL_CONFIG_PATH": "/dev/null",
        **{f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def pilot() -> Path:
    """The folder of the published pilot's files, which is also a mirror."""
    if not PILOT.is_dir():
        pytest.skip("the published pilot's files are not beside the repository (../shared/pilot)")
    return PILOT


@pytest.fixture(scope="session")
def embedded() -> Protocol:
    return read_protocol("embedded", ROOT)


@pytest.fixture(scope="session")
def pilot_protocol() -> Protocol:
    return read_protocol("pilot", ROOT)


def clone(target: Path) -> Path:
    """A git clone of the working tree as it stands, uncommitted changes included."""
    run("git", "clone", "--quiet", str(ROOT), str(target), cwd=ROOT)
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
        else:
            (target / name).unlink(missing_ok=True)
    run("git", "add", "-A", cwd=target)
    run("git", "commit", "--quiet", "--allow-empty", "-m", "as it stands", cwd=target)
    return target


def run(*command: str, cwd: Path, check: bool = True, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command; a failure shows what it printed."""
    environment = os.environ | options.pop("env", {})
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, **options)
    assert not check or done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def stage(name: str, *arguments: str, cwd: Path, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run `python -m stages.<name>` without demanding that it succeeds."""
    return run(sys.executable, "-m", f"stages.{name}", *arguments, cwd=cwd, check=False, **options)


def tiny_architecture(vocab_size: int) -> Architecture:
    return Architecture(
        **TINY,
        num_key_value_heads=2,
        vocab_size=vocab_size,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, embedded: Protocol) -> Path:
    """A tiny untrained Qwen2 with the embedded corpora's tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    corpora = [embedded.corpora.sft, embedded.corpora.pretrain]
    generated.write_tokenizer(corpora, embedded.select.sft.prompt, 512, folder)
    generated.write_weights(tiny_architecture(512), 1, folder)
    return folder


@pytest.fixture(scope="session")
def qwen_model(tmp_path_factory: pytest.TempPathFactory, pilot: Path) -> Path:
    """A tiny untrained Qwen2 with the real Qwen2.5 tokenizer and so the real vocabulary."""
    folder = tmp_path_factory.mktemp("qwen")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(pilot / "Qwen" / "Qwen2.5-0.5B-tokenizer" / name, folder / name)
    generated.write_weights(tiny_architecture(151936), 1, folder)
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A fresh clone of the working tree, nothing run in it."""
    return clone(tmp_path / "a project with spaces")
