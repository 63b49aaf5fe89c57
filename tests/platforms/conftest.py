"""Emulators that a module's tests share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stages.platforms import modal
from stages.platforms import nodus as nodus_platform
from stages.platforms.common import source
from stages.protocol import Protocol
from tests.platforms import nodus_setup
from tests.platforms.modal_kit import WORKER, Emulator, emulator, make_job
from tests.platforms.modal_submit import submit as run
from tests.platforms.nodus_setup import REPEATS, case, light_files


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


@pytest.fixture(scope="module")
def nodus_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nodus_setup.Emulator]:
    running = nodus_setup.Emulator(tmp_path_factory.mktemp("emulator"))
    yield running
    assert running.stop() == 0


@pytest.fixture
def nodus(
    nodus_emulator: nodus_setup.Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[nodus_setup.Emulator]:
    """The emulator with the SDK pointed at it, the light worker in the place of the real one, no fault left over."""
    nodus_emulator.fault()
    for name, value in nodus_emulator.environment.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(nodus_platform, "worker_files", lambda: light_files(tmp_path / "light"))
    yield nodus_emulator
    assert nodus_emulator.running == []
    answers = [request["code"] for request in nodus_emulator.requests]
    assert 418 not in answers, "the emulator failed by accident; its traceback is on stderr"


@pytest.fixture
def job(embedded: Protocol, tmp_path: Path) -> Any:
    return case(embedded, tmp_path / "files", repeat=next(REPEATS))


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Tell the light worker what to do."""

    def told(**wanted: Any) -> None:
        monkeypatch.setattr(nodus_platform, "worker_files", lambda: light_files(tmp_path / "light", **wanted))

    return told
