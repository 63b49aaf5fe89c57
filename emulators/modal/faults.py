"""Faults on demand: `faults.json` in the emulator's folder, a list of objects that is read anew at every turn.

    {"kind": "preempt", "step": 20}            end the container at that step of the worker, start its input again
    {"kind": "kill", "step": 20}               lose the container at that step
    {"kind": "oom", "step": 20}                the kernel ends the container, out of memory
    {"kind": "delay", "call": "FunctionMap", "seconds": 2}
    {"kind": "drop", "after": 100000}          close the connection after that many bytes of a block
    {"kind": "flip"}                           flip a byte of a block on its way out
                                               both: "start" names a block by its first byte in its
                                               file, "folder" the Volume's folder that it is in
    {"kind": "refuse"}                         refuse the token
    {"kind": "late_bill"}                      the billing report has nothing yet
    {"kind": "queue"}                          no container is free

Every fault strikes once, or `"times"` times; -1 is for ever. Each strike is a line of `struck.jsonl`.
"""

import json
from pathlib import Path
from typing import Any


class Faults:
    def __init__(self, folder: Path):
        self.path = folder / "faults.json"
        self.struck: dict[str, int] = {}

    def take(self, kind: str, **where: Any) -> dict[str, Any] | None:
        """The next fault of a kind that fits `where`, which then has struck once more."""
        try:
            faults = json.loads(self.path.read_text())
        except (FileNotFoundError, ValueError):
            return None
        for fault in faults:
            key = json.dumps(fault, sort_keys=True)
            fits = fault["kind"] == kind and all(fault.get(name, value) == value for name, value in where.items())
            if fits and fault.get("times", 1) != self.struck.get(key, 0):
                self.struck[key] = self.struck.get(key, 0) + 1
                with self.path.with_name("struck.jsonl").open("a") as record:
                    record.write(key + "\n")
                found: dict[str, Any] = fault
                return found
        return None
