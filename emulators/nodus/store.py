"""The API's objects: versioned, watched, and kept below one folder so that a later start still has them."""

import copy
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from emulators.nodus.refusal import Refusal
from emulators.nodus.strict import problems

Object = dict[str, Any]
Key = tuple[str, str, str]  # kind, project, name
Events = list[tuple[int, str, Object]]  # version, type, object


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def replace(path: Path, data: bytes) -> None:
    """Write a file whole: a kill leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)


class Store:
    def __init__(self, folder: Path):
        self.folder = folder
        self.objects: dict[Key, Object] = {}
        self.changed = threading.Condition(threading.RLock())
        self.events: deque[tuple[int, str, Object]] = deque(maxlen=2000)
        for path in folder.glob("*/*/*.json"):
            kind, project, name = path.relative_to(folder).with_suffix("").parts
            self.objects[kind, project, name] = json.loads(path.read_bytes())
        self.version = max((int(o["metadata"]["resourceVersion"]) for o in self.objects.values()), default=0)
        self.oldest = self.version  # a watch from before this has expired

    def put(self, value: Object) -> Object:
        """Store a new or changed object; one that the SDK's models refuse is a fault of the emulator's."""
        meta, kind = value["metadata"], value["kind"]
        key = (kind, meta["namespace"], meta["name"])
        with self.changed:
            event = "MODIFIED" if key in self.objects else "ADDED"
            self.version += 1
            meta["resourceVersion"] = str(self.version)
            meta.setdefault("creationTimestamp", now())
            if wrong := problems(kind, value):
                raise AssertionError(f"the emulator made a wrong {kind}: {wrong}")
            stored = self.objects[key] = copy.deepcopy(value)
            replace(self.folder.joinpath(*key).with_suffix(".json"), json.dumps(stored).encode())
            self.events.append((self.version, event, stored))
            self.changed.notify_all()
        return value

    def find(self, kind: str, project: str, name: str) -> Object | None:
        with self.changed:
            return copy.deepcopy(self.objects.get((kind, project, name)))

    def get(self, kind: str, project: str, name: str) -> Object:
        if (found := self.find(kind, project, name)) is None:
            raise Refusal(404, "NotFound", f"{kind} {name!r} does not exist")
        return found

    def update(self, kind: str, project: str, name: str, change: Callable[[Object], Any]) -> Object:
        with self.changed:
            value = self.get(kind, project, name)
            change(value)
            return self.put(value)

    def select(self, kind: str, project: str, matches: Callable[[Object], bool]) -> tuple[list[Object], int]:
        """Matching objects, oldest first, and the version that they are of."""
        with self.changed:
            mine = [o for (k, p, _), o in self.objects.items() if (k, p) == (kind, project) and matches(o)]
            return copy.deepcopy(sorted(mine, key=lambda o: o["metadata"]["creationTimestamp"])), self.version

    def after(self, version: int, kind: str, timeout: float) -> Events:
        """Events of a kind after `version`, waiting for some up to `timeout` seconds."""

        def fresh() -> Events:
            return [event for event in self.events if event[0] > version and event[2]["kind"] == kind]

        with self.changed:
            self.changed.wait_for(fresh, timeout)
            return fresh()


def selects(selector: str | None, of: Callable[[Object], Mapping[str, str]]) -> Callable[[Object], bool]:
    """A predicate for `key=value,key=value`."""
    wanted = [part.split("=", 1) for part in (selector or "").split(",") if part]
    return lambda value: all(of(value).get(key) == expected for key, expected in wanted)
