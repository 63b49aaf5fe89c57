"""Shared by the faults: a small project ready to run, and one that has run once, its data in DVC's cache."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import clone, run, stage
from tests.faults.kit import HOOK
from tests.test_pipeline import commit
from tests.test_pipeline import shorten as shorten_all

EIGHT_STEPS = {
    "max_steps: 80\n": "max_steps: 8\n",
    "save_steps: 40": "save_steps: 2",
    "logging_steps: 10": "logging_steps: 2",
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
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose pipeline has run once, on a few rows and steps, committed. Copied, never changed."""
    folder = clone(tmp_path_factory.mktemp("ran") / "project")
    for path in (folder / "metrics", folder / "dvc.lock"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shorten_all(folder)
    run("dvc", "repro", cwd=folder)
    commit(folder, "the first run")
    return folder


def another(project: Path, target: Path) -> Path:
    """A clone of a project with all its data, in its own cache."""
    run("git", "clone", "--quiet", str(project), str(target), cwd=project)
    shutil.copytree(project / ".dvc/cache", target / ".dvc/cache")
    run("dvc", "checkout", "--quiet", cwd=target)
    return target


def bare(project: Path, target: Path) -> Path:
    """A teammate's clone: what git has, and nothing of DVC's data."""
    run("git", "clone", "--quiet", str(project), str(target), cwd=project)
    return target
