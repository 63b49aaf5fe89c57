"""Promise: a submit side killed at any moment leads to no second payment, no lost hold, and nothing that runs on."""

import itertools
import json
import signal
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stages.evidence import ledger
from stages.evidence.digests import sha256_file
from stages.platforms import DELIVERED, HANDLE
from tests.conftest import ROOT
from tests.faults.kit import HOOK, Place, Point, interrupted, points
from tests.platforms import modal_kit
from tests.platforms.nodus_setup import Emulator

REPEATS = itertools.count(1)  # every point's job is another


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(HOOK)
    return folder


@pytest.fixture(scope="module")
def nodus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    pytest.importorskip("nodus", reason="the SDK is the extra `nodus`")
    folder = tmp_path_factory.mktemp("nodus")
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "tmp"))
        running = Emulator(folder / "emulator")
    yield running
    assert running.stop() == 0
    assert list((folder / "tmp").iterdir()) == []


class Side:
    """A submit side of one job: its command, and what became of the job on the platform and on the ledger."""

    def __init__(self, emulator: Emulator, place: Place, hook: Path):
        self.emulator, self.place, self.hook = emulator, place, hook
        light = place.folder / "light"
        light.mkdir()
        (light / "wanted.json").write_text(json.dumps({"steps": 4, "pause": 0.05, "mib": 2, "repeat": next(REPEATS)}))
        self.command = ["-m", "tests.faults.paid", str(place.state), str(place.folder / "files"), str(light)]

    def environment(self, at: int = 0, number: int = signal.SIGKILL) -> dict[str, str]:
        given = {name: value for name, value in self.emulator.environment.items() if value is not None}
        return self.place.armed("tests.faults.paid", at, number) | given | {"PYTHONPATH": f"{self.hook}:{ROOT}"}

    def run(self, at: int = 0, number: int = signal.SIGKILL) -> Any:
        return self.place.run(self.environment(at, number), *self.command)

    @property
    def jobs(self) -> list[dict[str, Any]]:
        ids = {path.name[:63] for path in self.place.state.glob("nodus/*")}
        return [one for one in self.emulator.objects("Job") if one["metadata"]["labels"]["parity-job"] in ids]

    def phases(self) -> list[str]:
        return [job["status"]["phase"] for job in self.jobs]


@pytest.fixture(scope="module")
def touches(nodus: Emulator, hook: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many files a submit side touches that nobody disturbs."""
    side = Side(nodus, Place(tmp_path_factory.mktemp("undisturbed"), ROOT), hook)
    done = side.run()
    assert done.returncode == 0, done.stderr
    assert side.phases() == ["Succeeded"]
    return side.place.touches("tests.faults.paid")


@pytest.mark.parametrize("point", points("nodus", 14, sample=(6, 11)))
def test_a_submit_side_on_nodus(point: Point, nodus: Emulator, touches: int, hook: Path, tmp_path: Path) -> None:
    side = Side(nodus, Place(tmp_path, ROOT), hook)
    killed = side.run(point.among(touches), point.signal)
    interrupted(killed, point.signal)
    assert side.place.quiet()
    done = side.run()
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert set(said["files"]) == {"manifest.json", "result.json", "model/config.json", "model/model.safetensors"}
    # A notice cancels what had not ended; a kill without one is taken up. Nothing is ever done twice.
    ended = side.phases()
    assert ended.count("Succeeded") == 1
    assert set(ended) <= {"Succeeded", "Cancelled"}
    assert point.signal == signal.SIGTERM or len(ended) == 1
    entries = ledger.entries("default", side.place.state)
    assert all(entry.final for entry in entries)
    charged = sum(Decimal(job["status"]["cost"]["totalUSD"]) for job in side.jobs)
    assert sum(entry.committed for entry in entries) == charged == Decimal(said["receipt"]["charge_usd"])
    (folder,) = (path for path in side.place.state.glob("nodus/*"))
    assert {path.name for path in folder.iterdir()} == {HANDLE, DELIVERED, "job"}
    assert nodus.running == []
    assert side.place.quiet()
    assert list(side.place.temporary.iterdir()) == []


def test_a_second_submit_side_of_a_job_waits_and_pays_nothing(nodus: Emulator, hook: Path, tmp_path: Path) -> None:
    side = Side(nodus, Place(tmp_path, ROOT), hook)
    first, second = (side.place.start(side.environment(), *side.command) for _ in range(2))
    said = [child.communicate() for child in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    outs = [out for out, _ in said]
    # On a machine so busy that the second came when the first was through, it found a finished job instead.
    assert sum("waiting: another process runs job" in out for out in outs) <= 1
    results = [json.loads(out.splitlines()[-1]) for out in outs]
    assert results[0]["files"] == results[1]["files"]
    assert side.phases() == ["Succeeded"]
    (entry,) = ledger.entries("default", side.place.state)
    assert entry.final
    assert entry.charge_usd == results[0]["receipt"]["charge_usd"]


@pytest.fixture(scope="module")
def modal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[modal_kit.Emulator]:
    with modal_kit.emulator(tmp_path_factory.mktemp("modal")) as found:
        yield found


def on_modal(emulated: modal_kit.Emulator, place: Place, hook: Path, at: int = 0, number: int = signal.SIGKILL) -> Any:
    """Run the submit side of the job in `place`; both of its streams, and its exit code."""
    armed = place.armed("tests.platforms.modal_submit", at, number)
    ours = {name: armed[name] for name in armed if name.startswith("FAULT_") or name in ("TMPDIR", "PARITY_STATE")}
    environment = emulated.environment | ours | {"PYTHONPATH": f"{hook}:{ROOT}"}
    return place.run(environment, "-m", "tests.platforms.modal_submit", str(place.state), str(place.folder / "job"))


@pytest.fixture(scope="module")
def modal_touches(modal: modal_kit.Emulator, hook: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    place = Place(tmp_path_factory.mktemp("undisturbed"), ROOT)
    modal_kit.make_job(place.folder / "job", steps=3, size=9_000_000)
    done = on_modal(modal, place, hook)
    assert done.returncode == 0, done.stderr
    return place.touches("tests.platforms.modal_submit")


@pytest.mark.parametrize("point", points("modal", 10, sample=(5,)))
def test_a_submit_side_on_modal(
    point: Point, modal: modal_kit.Emulator, modal_touches: int, hook: Path, tmp_path: Path
) -> None:
    place = Place(tmp_path, ROOT)
    job = modal_kit.make_job(place.folder / "job", steps=3, size=9_000_000)
    killed = on_modal(modal, place, hook, point.among(modal_touches), point.signal)
    interrupted(killed, point.signal)
    assert place.quiet()
    done = on_modal(modal, place, hook)
    assert done.returncode == 0, done.stderr
    expected = modal_kit.exported(tmp_path / "expected", 9_000_000)
    assert modal_kit.delivered(done.stdout)["files"]["model/model.safetensors"] == sha256_file(expected)
    tries = modal.tries(modal_kit.job_id(job))
    assert tries.count("succeeded") == 1
    assert set(tries) <= {"succeeded", "cancelled"}
    assert point.signal == signal.SIGTERM or modal.runs(modal_kit.job_id(job)) == 1
    assert modal.left() == []
    assert list(place.temporary.iterdir()) == []
