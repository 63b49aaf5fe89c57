"""Shared by the faults: a small project that has run, and what its run left."""

from pathlib import Path

import pytest

from tests.conftest import clone, stage
from tests.faults.kit import HOOK

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
