"""Emulators that a module's tests share."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stages.platforms import modal
from stages.platforms.common import source
from tests.platforms.modal_kit import WORKER, Emulator, emulator, make_job
from tests.platforms.modal_submit import submit as run


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator that this process is led to as a rehearsal would, with the stand-in as the worker."""
    with emulator(tmp_path_factory.mktemp("emulator")) as found, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MODAL_") or name.upper().endswith("_PROXY")]:
            patch.delenv(name)
        for name, value in found.environment.items():
            if name.startswith("MODAL_"):
                patch.setenv(name, value)
        stand_in = source.worker_files() | {"stages/worker.py": WORKER}
        patch.setattr(modal, "worker_files", lambda: stand_in)
        yield found
        import modal as sdk

        sdk.Client.from_env().close()  # it is kept for the process, and would be the next module's


@pytest.fixture
def emulated(running: Emulator) -> Emulator:
    """The running emulator, no fault armed."""
    running.faults()
    return running


class Finished(NamedTuple):
    job: Path
    state: Path
    found: dict[str, Any]


@pytest.fixture(scope="module")
def finished(running: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A job that went well and exported 20 MB."""
    running.faults()
    folder = tmp_path_factory.mktemp("finished")
    job = make_job(folder / "job", steps=1, size=20_000_000)
    return Finished(job, folder / "state", run(folder / "state", job, {}))
