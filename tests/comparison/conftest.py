"""Shared by the comparison's tests: a repository to put runs into, entered."""

from pathlib import Path

import pytest

from tests.comparison.build import repository


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = repository(tmp_path / "project")
    monkeypatch.chdir(root)
    return root
