"""Shared by the faults: a small project ready to run, one that has run once, and a user full of secrets."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from tests.conftest import clone, run, stage
from tests.faults.kit import HOOK
from tests.test_pipeline import commit
from tests.test_pipeline import shorten as shorten_all

EIGHT_STEPS = {
    "max_steps: 80\n": "max_steps: 8\n",
    "save_steps: 40": "save_steps: 2",
    "logging_steps: 10": "logging_steps: 2",
}
MARK = f"-{0x5C81E4:x}"  # in every planted value; computed, so that no source and no commit has it
PLANTED = {
    name: f"planted-{name.lower().replace('_', '-')}{MARK}"
    for name in (
        *("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "NODUS_API_KEY", "HF_TOKEN"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    )
}
FILES = {
    ".modal.toml": "[planted]\nactive = true\n"
    'token_id = "planted-modal-file-idMARK_HERE"\ntoken_secret = "planted-modal-fileMARK_HERE"\n',
    ".nodus/config": "kind: Config\ncurrent-context: planted\n"
    "contexts:\n- name: planted\n  context: {cluster: c, user: u}\n"
    "clusters:\n- name: c\n  cluster: {server: 'http://127.0.0.1:9'}\n"
    "users:\n- name: u\n  user: {token: planted-nodus-fileMARK_HERE}\n",
    ".netrc": "machine 127.0.0.1 login planted-netrc-loginMARK_HERE password planted-netrcMARK_HERE\n",
    ".aws/credentials": "[default]\naws_access_key_id = planted-aws-file-idMARK_HERE\n"
    "aws_secret_access_key = planted-aws-fileMARK_HERE\n",
    ".cache/huggingface/token": "planted-hub-fileMARK_HERE",
}


def shorten(project: Path) -> None:
    """Eight steps of `pretrain`, a checkpoint at every second."""
    path = project / "protocols/embedded.yaml"
    text = path.read_text()
    for before, after in EIGHT_STEPS.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    path.write_text(text)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with its inputs in place, ready to train `pretrain` for eight steps; it finds the hook of a kill."""
    project = clone(tmp_path_factory.mktemp("small") / "project")
    shorten(project)
    (project / "sitecustomize.py").write_text(HOOK)
    for name, *task in (["check"], ["sources"], ["prepare", "sft"], ["prepare", "pretrain"]):
        assert stage(name, *task, cwd=project).returncode == 0
    return project


@pytest.fixture(scope="session")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who is signed in everywhere, by variables and by the SDKs' own files in HOME."""
    home = tmp_path_factory.mktemp("home")
    for name, content in FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content.replace("MARK_HERE", MARK))
        (home / name).chmod(0o600)
    return PLANTED | {"HOME": str(home)}


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory, secrets: dict[str, str]) -> Path:
    """A project whose pipeline a user full of secrets has run once, on a few steps, committed. Cloned, never changed.

    What the run printed stands beside it, in `said.txt`.
    """
    folder = clone(tmp_path_factory.mktemp("ran") / "project")
    for path in (folder / "metrics", folder / "dvc.lock"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shorten_all(folder)
    done = run("dvc", "repro", "--verbose", cwd=folder, env=secrets)
    (folder.parent / "said.txt").write_text(done.stdout + done.stderr)
    commit(folder, "the first run")
    return folder


def bare(project: Path, target: Path) -> Path:
    """A teammate's clone: what git has, and nothing of DVC's data."""
    run("git", "clone", "--quiet", str(project), str(target), cwd=project)
    return target


def stocked(project: Path, target: Path) -> Path:
    """A clone of a project with all its data, in a cache of its own."""
    bare(project, target)
    shutil.copytree(project / ".dvc/cache", target / ".dvc/cache")
    run("dvc", "checkout", "--quiet", cwd=target)
    return target


def data(project: Path) -> dict[str, bytes]:
    """Every file below `data/`."""
    return {str(p.relative_to(project)): p.read_bytes() for p in (project / "data").rglob("*") if p.is_file()}


def objects(project: Path) -> dict[str, str]:
    """Path below `data/` -> MD5 of all that DVC keeps, folders as a whole and file by file."""
    lock = yaml.safe_load((project / "dvc.lock").read_text())
    outs = [out for stage in lock["stages"].values() for out in stage["outs"] if out["path"].startswith("data/")]
    found = {out["path"]: out["md5"] for out in outs}
    for path, md5 in list(found.items()):
        if md5.endswith(".dir"):
            listing = yaml.safe_load((project / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).read_text())
            found |= {f"{path}/{entry['relpath']}": entry["md5"] for entry in listing}
    return found


def damage(path: Path, how: str) -> None:
    """Flip a bit of a file, cut it short or take it away; times and permissions stay as they were, as on a bad disk."""
    if how == "missing":
        path.unlink()
        return
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content if how == "flipped" else content[: len(content) // 2])
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
