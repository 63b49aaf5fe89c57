"""The worker's code as a platform ships it: exactly what the job id covers, in a fixed order, and nothing else."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from stages.jobs import PROJECT, WORKER_CODE


def worker_files(root: Path = PROJECT) -> dict[str, Path]:
    """The Python files at or below `WORKER_CODE`, by their path in the project."""
    found = {file for path in WORKER_CODE for file in [root / path, *(root / path).rglob("*.py")] if file.is_file()}
    return {str(file.relative_to(root)): file for file in sorted(found)}


def lay(files: Mapping[str, Path], folder: Path) -> None:
    """Copy `files` to their names below `folder`, which then holds nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
