"""The submit side of a paid job on either platform's emulator: its command, and what came of job, money and files.

Its state folder may lie on a disk of its own: `state` is then its path as the process sees it.
"""

import itertools
import json
import re
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

from emulators.modal.apps import RATES
from stages.evidence import chain, ledger
from stages.evidence.digests import sha256_file
from stages.jobs import MANIFEST, read_job, read_manifest
from stages.platforms import DELIVERED, HANDLE
from stages.platforms.modal import app_name
from tests.conftest import ROOT
from tests.faults.kit import Place
from tests.platforms import modal_kit
from tests.platforms.budget import roles
from tests.platforms.nodus_setup import Emulator

REPEATS = itertools.count(1)  # every point's job is another
# Where an output is put while it is fetched, in the job's folder of the state.
FETCHED = re.compile(r"/(\.out\.[0-9]+\.partial|out|listed)/")


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


class NodusSide:
    """The submit side of one job on Nodus."""

    def __init__(self, emulator: Emulator, place: Place, hook: Path, state: Path | None = None):
        self.emulator, self.place, self.hook = emulator, place, hook
        light = place.folder / "light"
        light.mkdir(parents=True)
        (light / "wanted.json").write_text(json.dumps({"steps": 4, "pause": 0.05, "mib": 2, "repeat": next(REPEATS)}))
        self.command = ["-m", "tests.faults.paid", str(state or place.state), str(place.folder / "files"), str(light)]

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


def metered(emulated: modal_kit.Emulator, job: Path) -> list[Decimal]:
    """What each container of a job has cost on the emulator, by its own record of their times."""
    record, wanted = emulated.state(), read_job(job).resources
    apps = {app["id"] for app in record["apps"].values() if app["name"] == app_name(modal_kit.job_id(job))}
    seconds = [Decimal(str(round(ended - began, 3))) for app, began, ended in record["uses"] if app in apps]
    rate = RATES["gpu"] * wanted.gpus + RATES["cpu"] * wanted.cpus + RATES["memory"] * wanted.memory_gib
    return [rate * each for each in seconds]


class ModalSide:
    """The submit side of one job on Modal."""

    def __init__(self, emulator: modal_kit.Emulator, place: Place, hook: Path, state: Path | None = None):
        self.emulator, self.place, self.hook = emulator, place, hook
        self.job = modal_kit.make_job(place.folder / "job", steps=3, size=9_000_000)
        self.command = ["-m", "tests.platforms.modal_submit", str(state or place.state), str(self.job)]

    def environment(self, at: int = 0, number: int = signal.SIGKILL) -> dict[str, str]:
        armed = self.place.armed("tests.platforms.modal_submit", at, number)
        ours = {name: armed[name] for name in armed if name.startswith("FAULT_") or name in ("TMPDIR", "PARITY_STATE")}
        return self.emulator.environment | ours | {"PYTHONPATH": f"{self.hook}:{ROOT}"}

    def run(self, at: int = 0, number: int = signal.SIGKILL) -> Any:
        return self.place.run(self.environment(at, number), *self.command)

    def tries(self) -> list[str]:
        return self.emulator.tries(modal_kit.job_id(self.job))

    def runs(self) -> int:
        return self.emulator.runs(modal_kit.job_id(self.job))

    def ended_well(self, said: dict[str, Any]) -> None:
        """One try was paid, all that was delivered is what it made, and nothing is left beside it."""
        job_id = modal_kit.job_id(self.job)
        expected = modal_kit.exported(self.place.folder / "expected", 9_000_000)
        assert said["files"]["model/model.safetensors"] == sha256_file(expected)
        is_whole(said["files"], self.emulator.volume() / f"jobs/{job_id}", job_id)
        assert self.tries().count("succeeded") == 1
        assert set(self.tries()) <= {"succeeded", "cancelled"}
        charges = metered(self.emulator, self.job)
        assert sum(charges) == Decimal(said["receipt"]["charge_usd"]) > 0
        is_settled(self.place.state, charges)
        assert self.emulator.left() == []
        is_tidy(self.place, "modal")
