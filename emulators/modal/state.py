"""What the emulator knows, kept in its folder so that a later start knows it too."""

import base64
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from modal_proto import api_pb2

INITIALIZING, DEPLOYED, STOPPING, STOPPED = (
    api_pb2.APP_STATE_INITIALIZING,
    api_pb2.APP_STATE_DEPLOYED,
    api_pb2.APP_STATE_STOPPING,
    api_pb2.APP_STATE_STOPPED,
)


@dataclass
class App:
    id: str
    name: str
    tags: dict[str, str]
    state: int = INITIALIZING
    created: float = field(default_factory=time.time)
    stopped: float = 0.0
    functions: dict[str, str] = field(default_factory=dict)  # tag -> function id


@dataclass
class Function:
    id: str
    app: str
    tag: str
    definition: str = ""  # a serialized api_pb2.Function


@dataclass
class Call:
    id: str
    function: str
    input_id: str
    input: str  # a serialized api_pb2.FunctionInput
    created: float = field(default_factory=time.time)
    starts: int = 0
    output: str = ""  # a serialized api_pb2.FunctionGetOutputsItem, once it has ended


@dataclass
class Record:
    apps: dict[str, App] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)  # name -> id
    mounts: dict[str, list[list[Any]]] = field(default_factory=dict)  # id -> [name, sha256, mode]
    uses: list[tuple[str, float, float]] = field(default_factory=list)  # app, a container's start and end


M = TypeVar("M")


def pack(message: Any) -> str:
    return base64.b64encode(message.SerializeToString()).decode()


def unpack(kind: type[M], text: str) -> M:
    message = kind()
    message.ParseFromString(base64.b64decode(text))  # type: ignore[attr-defined]
    return message


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(11)}"


class State:
    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "state.json"
        for name in ("volumes", "blobs", "containers"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.record = self.load() if self.path.is_file() else Record()
        self.save()

    def load(self) -> Record:
        data = json.loads(self.path.read_text())
        kinds = {"apps": App, "functions": Function, "calls": Call}
        tables = {name: {key: kind(**row) for key, row in data[name].items()} for name, kind in kinds.items()}
        return Record(**data | tables)

    def save(self) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self.record)))
        partial.replace(self.path)

    def volume(self, volume_id: str) -> Path:
        return self.folder / "volumes" / volume_id

    def blob(self, name: str) -> Path:
        return self.folder / "blobs" / name

    def definition(self, function_id: str) -> api_pb2.Function:
        return unpack(api_pb2.Function, self.record.functions[function_id].definition)

    def pending(self, function_id: str) -> list[Call]:
        return [call for call in self.record.calls.values() if call.function == function_id and not call.output]

    def deployed(self, name: str) -> App | None:
        return next((app for app in self.record.apps.values() if app.name == name and app.state == DEPLOYED), None)

    def layout(self, app: App) -> api_pb2.AppLayout:
        layout = api_pb2.AppLayout(function_ids=app.functions)
        for tag, function_id in app.functions.items():
            layout.objects.add(object_id=function_id, function_handle_metadata={"function_name": tag})
        return layout

    def files(self, mount_ids: Iterator[str]) -> dict[str, tuple[Path, int]]:
        """Files of mounts by their path in the container."""
        rows = [row for mount_id in mount_ids for row in self.record.mounts.get(mount_id, [])]
        return {name: (self.blob(sha256), mode) for name, sha256, mode in rows}
