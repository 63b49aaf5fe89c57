"""Promise: a submit side killed at any moment, or one whose disk is full or not ours while it fetches, leads to no
second payment, no lost hold, and nothing that runs on."""

import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from emulators.modal.apps import RATES
from stages.evidence import chain, ledger
from stages.evidence.digests import sha256_file
from stages.jobs import MANIFEST, read_job, read_manifest
from stages.platforms import DELIVERED, HANDLE
from stages.platforms.modal import app_name
from tests.conftest import ROOT
from tests.faults.disk import Disk
from tests.faults.kit import HOOK, Place, Point, interrupted, points
from tests.platforms import modal_kit
from tests.platforms.budget import roles
from tests.platforms.nodus_setup import Emulator, wait_until

REPEATS = itertools.count(1)  # every point's job is another
# Where an output is put while it is fetched, in the job's folder of the state.
FETCHED = re.compile(r"/(\.out\.[0-9]+\.partial|out|listed)/")


def fetching(touched: list[str]) -> list[int]:
    """Which touches, counted from one, open a file of the output that is being fetched."""
    return [n for n, what in enumerate(touched, 1) if what.startswith("open ") and FETCHED.search(what)]


def moment(point: Point, touched: list[str]) -> int:
    """The touch of a point: among all, or among those of the fetch."""
    if not point.name.endswith("fetch"):
        return point.among(len(touched))
    found = fetching(touched)
    return found[int(point.fraction * len(found))]


def job_folder(state: Path, platform: str) -> Path:
    (folder,) = (path for path in (state / platform).iterdir() if path.is_dir())
    return folder


def in_the_fetch(state: Path, platform: str) -> bool:
    """Whether a kill has left an output that was fetched in part."""
    folder = job_folder(state, platform)
    return any(FETCHED.search(f"{path}/") for path in folder.rglob("*")) and not (folder / DELIVERED).exists()


def is_settled(state: Path, charges: list[Decimal]) -> None:
    """Every attempt was reserved once and made final once; together they cost what the platform charged, no more."""
    entries, lines = ledger.entries("default", state), list(chain.lines(ledger.path("default", state)))
    for entry in entries:
        told = [line for line in lines if line.id == entry.id]
        assert [line.event for line in told].count("reserve") == 1
        assert [line.values["final"] for line in told if line.event == "settle"].count(True) == 1
        assert entry.final
        assert told[-1].values["final"]
    assert sorted(entry.committed for entry in entries if entry.committed) == sorted(filter(None, charges))
    assert roles(state).count(("headline_successful_attempt", True)) == 1
    assert {role for role, _ in roles(state)} <= {"headline_successful_attempt", *ledger.FAILED}


def is_tidy(place: Place, platform: str) -> None:
    """The handle and the job stay, so that the output can be fetched again; no lock, no partial folder, no process."""
    folder = job_folder(place.state, platform)
    assert {path.name for path in place.state.iterdir()} == {platform, "campaigns"}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert {path.name for path in folder.iterdir()} == {HANDLE, DELIVERED, "job"}
    assert {path.name for path in (folder / "job").iterdir()} == {"job.json", "inputs", "model"}
    assert {path.name for path in (place.state / "campaigns").iterdir()} == {"default.jsonl", "default.lock"}
    assert list(place.state.rglob(".*")) == []
    assert place.quiet(), place.processes()
    assert list(place.temporary.iterdir()) == []


def is_whole(files: dict[str, str], made: Path, job_id: str) -> None:
    """What was delivered is, digest by digest, what the manifest of the platform's own copy says."""
    manifest = read_manifest(made, job_id).files
    assert files == {name: entry.sha256 for name, entry in manifest.items()} | {MANIFEST: sha256_file(made / MANIFEST)}


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
        light.mkdir(parents=True)
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

    def charges(self) -> list[Decimal]:
        return [Decimal(job["status"]["cost"]["totalUSD"]) for job in self.jobs]

    def made(self) -> Path:
        """The output as the Job that succeeded left it on the platform."""
        (job,) = (one for one in self.jobs if one["status"]["phase"] == "Succeeded")
        name, current = job["metadata"]["name"], job["status"]["attempts"]["current"]
        return self.emulator.folder / f"jobs/{name}/{current}/outputs"

    def ended_well(self, said: dict[str, Any]) -> None:
        """One job was paid, all that was delivered is what it made, and nothing is left beside it."""
        ended = self.phases()
        assert ended.count("Succeeded") == 1
        assert set(ended) <= {"Succeeded", "Cancelled"}
        assert all(job["status"]["cost"]["final"] for job in self.jobs)
        assert sum(self.charges()) == Decimal(said["receipt"]["charge_usd"]) > 0
        is_settled(self.place.state, self.charges())
        is_whole(said["files"], self.made(), job_folder(self.place.state, "nodus").name)
        is_tidy(self.place, "nodus")
        assert self.emulator.running == []


@pytest.fixture(scope="module")
def touched(nodus: Emulator, hook: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a submit side that nobody disturbs does to which files."""
    side = Side(nodus, Place(tmp_path_factory.mktemp("undisturbed"), ROOT), hook)
    done = side.run()
    assert done.returncode == 0, done.stderr
    assert side.phases() == ["Succeeded"]
    return side.place.touched("tests.faults.paid")


def answer(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """What a submit side that has ended well says last."""
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("point", [*points("nodus", 14, sample=(6, 11)), *points("nodus fetch", 2)])
def test_a_submit_side_on_nodus(point: Point, nodus: Emulator, touched: list[str], hook: Path, tmp_path: Path) -> None:
    side = Side(nodus, Place(tmp_path, ROOT), hook)
    killed = side.run(moment(point, touched), point.signal)
    interrupted(killed, point.signal)
    assert side.place.quiet()
    if point.name == "nodus fetch":
        assert side.phases() == ["Succeeded"]
        assert point.signal == signal.SIGTERM or in_the_fetch(side.place.state, "nodus")
    said = answer(side.run())
    assert set(said["files"]) == {"manifest.json", "result.json", "model/config.json", "model/model.safetensors"}
    # A notice cancels what had not ended; a kill without one is taken up. Nothing is ever done twice.
    assert point.signal == signal.SIGTERM or len(side.jobs) == 1
    side.ended_well(said)


def test_a_second_submit_side_of_a_job_waits_and_pays_nothing(nodus: Emulator, hook: Path, tmp_path: Path) -> None:
    side = Side(nodus, Place(tmp_path, ROOT), hook)
    first = side.place.start(side.environment(), *side.command)
    wait_until(lambda: any(side.place.state.glob("nodus/*/job")), 60)
    first.send_signal(signal.SIGSTOP)  # held still, it surely has the job when the second comes
    second = side.place.start(side.environment(), *side.command)
    assert second.stdout is not None
    waiting = second.stdout.readline()
    first.send_signal(signal.SIGCONT)
    said = [child.communicate() for child in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert waiting.startswith("waiting: another process runs job")
    assert "waiting" not in said[0][0]
    results = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert results[0]["files"] == results[1]["files"]
    assert side.phases() == ["Succeeded"]
    (entry,) = ledger.entries("default", side.place.state)
    assert entry.charge_usd == results[0]["receipt"]["charge_usd"]
    side.ended_well(results[0])


# A disk that is full, or can be written no more, when the output of a paid job comes back.

STRIKES: dict[str, tuple[Callable[[Disk], None], str]] = {
    "full": (lambda disk: disk.fill(1 << 20), "No space left on device; free some space and run it again"),
    "no inodes": (lambda disk: disk.take_inodes(3), "No space left on device; free some space and run it again"),
    "read-only": (Disk.lock, "Read-only file system; choose a folder that can be written"),
}


@pytest.mark.faults
@pytest.mark.parametrize("fault", STRIKES)
def test_the_output_of_a_paid_job_on_a_bad_disk_is_fetched_later_and_not_paid_again(
    fault: str, nodus: Emulator, touched: list[str], hook: Path, tmp_path: Path
) -> None:
    """The job is over and its fetch has begun when the disk goes bad under it; then it is in order again."""
    disk = Disk(tmp_path / "disk")
    try:
        side = Side(nodus, Place(tmp_path, ROOT), hook)
        side.place.state = disk.view(tmp_path / "disk/state")
        side.command = ["-m", "tests.faults.paid", str(tmp_path / "disk/state"), *side.command[3:]]

        def submit(at: int = 0) -> "subprocess.CompletedProcess[str]":
            return disk.run([sys.executable, *side.command], ROOT, env=side.environment(at))

        interrupted(submit(fetching(touched)[0]), signal.SIGKILL)
        strike, words = STRIKES[fault]
        strike(disk)
        failed = submit()
        assert failed.returncode == 1, (failed.stdout, failed.stderr)
        (line,) = failed.stderr.splitlines()
        assert line.startswith("error: ")
        assert words in line
        assert side.phases() == ["Succeeded"]
        (entry,) = ledger.entries("default", side.place.state)
        assert entry.final or entry.held_usd == "1.00"
        disk.free()
        said = answer(submit())
        assert len(side.jobs) == 1
        side.ended_well(said)
    finally:
        disk.close()


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


def metered(emulated: modal_kit.Emulator, job: Path) -> list[Decimal]:
    """What each container of a job has cost on the emulator, by its own record of their times."""
    record, wanted = emulated.state(), read_job(job).resources
    apps = {app["id"] for app in record["apps"].values() if app["name"] == app_name(modal_kit.job_id(job))}
    seconds = [Decimal(str(round(ended - began, 3))) for app, began, ended in record["uses"] if app in apps]
    rate = RATES["gpu"] * wanted.gpus + RATES["cpu"] * wanted.cpus + RATES["memory"] * wanted.memory_gib
    return [rate * each for each in seconds]


@pytest.fixture(scope="module")
def modal_touched(modal: modal_kit.Emulator, hook: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = Place(tmp_path_factory.mktemp("undisturbed"), ROOT)
    modal_kit.make_job(place.folder / "job", steps=3, size=9_000_000)
    answer(on_modal(modal, place, hook))
    return place.touched("tests.platforms.modal_submit")


@pytest.mark.parametrize("point", [*points("modal", 10, sample=(5,)), *points("modal fetch", 2)])
def test_a_submit_side_on_modal(
    point: Point, modal: modal_kit.Emulator, modal_touched: list[str], hook: Path, tmp_path: Path
) -> None:
    place = Place(tmp_path, ROOT)
    job = modal_kit.make_job(place.folder / "job", steps=3, size=9_000_000)
    job_id = modal_kit.job_id(job)
    killed = on_modal(modal, place, hook, moment(point, modal_touched), point.signal)
    interrupted(killed, point.signal)
    assert place.quiet()
    if point.name == "modal fetch":
        assert modal.tries(job_id) == ["succeeded"]
        assert in_the_fetch(place.state, "modal")
    said = answer(on_modal(modal, place, hook))
    expected = modal_kit.exported(tmp_path / "expected", 9_000_000)
    assert said["files"]["model/model.safetensors"] == sha256_file(expected)
    is_whole(said["files"], modal.volume() / f"jobs/{job_id}", job_id)
    tries = modal.tries(job_id)
    assert tries.count("succeeded") == 1
    assert set(tries) <= {"succeeded", "cancelled"}
    assert point.signal == signal.SIGTERM or modal.runs(job_id) == 1
    charges = metered(modal, job)
    assert sum(charges) == Decimal(said["receipt"]["charge_usd"]) > 0
    is_settled(place.state, charges)
    assert modal.left() == []
    is_tidy(place, "modal")
