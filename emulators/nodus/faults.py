"""Faults on demand: `faults.json` in the emulator's folder, an object of name -> parameters, read whenever one could
strike. A fault strikes once and is taken off the file, or `times` times. README.md says what each does."""

import json
import threading
from pathlib import Path
from typing import Any

from emulators.nodus.store import replace

ADMISSION = "budget capacity credits no-offering no-dry-run build-fails"
RUNNING = "queue preempt lose oom cap snapshot bill late-bill"
NETWORK = "away close-watch expire cut-logs flip drop missing"


class Faults:
    def __init__(self, path: Path):
        self.path, self.lock = path, threading.Lock()

    def read(self) -> dict[str, dict[str, Any]]:
        try:
            found: dict[str, dict[str, Any]] = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        if unknown := found.keys() - f"{ADMISSION} {RUNNING} {NETWORK}".split():
            raise ValueError(f"{self.path}: unknown fault {sorted(unknown)[0]!r}")
        return found

    def peek(self, name: str) -> dict[str, Any] | None:
        with self.lock:
            return self.read().get(name)

    def take(self, name: str) -> dict[str, Any] | None:
        """The fault's parameters if it is to strike now; it is then counted."""
        with self.lock:
            found = self.read()
            if (fault := found.pop(name, None)) is None:
                return None
            if (left := fault.get("times", 1) - 1) > 0:
                found[name] = fault | {"times": left}
            replace(self.path, json.dumps(found).encode())
            return {"times": 1} | fault
