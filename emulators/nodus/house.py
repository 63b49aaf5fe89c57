"""Everything that the emulator knows, below one folder; a later start with the same folder takes it up."""

import json
import threading
from pathlib import Path
from typing import Any

from emulators.nodus.billing import Meter
from emulators.nodus.faults import Faults
from emulators.nodus.store import Object, Store, replace

KEY = "nodus_rehearsal"


class House:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.store = Store(folder / "objects")
        self.faults = Faults(folder / "faults.json")
        self.url = ""  # known once the server listens
        self.away_until = 0.0  # monotonic; until then no connection is answered
        self.lock = threading.Lock()

    def record(self, entry: dict[str, Any]) -> None:
        """Put a request on `requests.jsonl`; its credential is never written."""
        with self.lock, (self.folder / "requests.jsonl").open("a") as stream:
            stream.write(json.dumps(entry) + "\n")

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.removeprefix("sha256:")

    def volume(self, name: str) -> Path:
        return self.folder / "volumes" / name

    def job(self, name: str) -> Path:
        return self.folder / "jobs" / name

    def log(self, name: str) -> Path:
        return self.job(name) / "log"

    def archive(self, job: str) -> Path:
        return self.job(job) / "outputs.tar.zst"

    def meters(self, name: str) -> list[Meter]:
        """One per attempt, oldest first."""
        path = self.job(name) / "meters.json"
        return [Meter(seconds) for seconds in json.loads(path.read_bytes())] if path.is_file() else []

    def save_meters(self, name: str, meters: list[Meter]) -> None:
        replace(self.job(name) / "meters.json", json.dumps([meter.dump() for meter in meters]).encode())

    def attempts(self, job: Object) -> list[Object]:
        meta = job["metadata"]
        label = {"nodus.dev/job": meta["name"]}
        return self.store.select("Attempt", meta["namespace"], lambda o: o["metadata"]["labels"] == label)[0]
