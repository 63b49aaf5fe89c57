"""The gRPC side: every call that comes in is recorded, checked and handed on; one that is not known fails loudly."""

import asyncio
import json
import re
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from modal_proto import api_pb2

from emulators.modal.faults import Faults

TOKEN = ("ak-emulator", "as-emulator")
TASK_HEADER = "x-emulator-task"
SILENT = ("AppHeartbeat", "ContainerHello")  # there is nothing to say to these
SERVICE = api_pb2.DESCRIPTOR.services_by_name["ModalClient"]


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Service:
    """The controls' functions, named like the calls in small letters, as a gRPC service."""

    def __init__(self, controls: list[Any], folder: Path, faults: Faults):
        self.faults = faults
        self.calls = {name: getattr(control, name) for control in controls for name in dir(control)}
        self.requests = folder / "requests.jsonl"

    def __mapping__(self) -> dict[str, Handler]:
        return {f"/{SERVICE.full_name}/{method.name}": self.handler(method) for method in SERVICE.methods}

    def handler(self, method: Any) -> Handler:
        cardinality = Cardinality.UNARY_STREAM if method.server_streaming else Cardinality.UNARY_UNARY
        kinds = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        found = self.calls.get(snake(method.name))

        async def handle(stream: Any) -> None:
            request = await stream.recv_message()
            self.record(method.name, request, stream.metadata)
            await self.check(method.name, stream.metadata)
            if method.name in SILENT:
                await stream.send_message(kinds[1]())
                return
            if found is None:
                raise GRPCError(Status.UNIMPLEMENTED, f"the Modal emulator does not know {method.name}")
            try:
                await answer(found, request, stream, kinds[1])
            except (GRPCError, asyncio.CancelledError, ConnectionError):
                raise
            except Exception:
                traceback.print_exc(file=sys.stderr)
                raise GRPCError(Status.INTERNAL, f"the Modal emulator failed in {method.name}") from None

        return Handler(handle, cardinality, *kinds)

    def record(self, name: str, request: Any, metadata: Any) -> None:
        body = MessageToDict(request, preserving_proto_field_name=True)
        if len(str(body.get("data", ""))) > 1000:
            body["data"] = "..."
        line = {"at": time.time(), "call": name, "from": metadata.get(TASK_HEADER, "client"), "request": body}
        with self.requests.open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    async def check(self, name: str, metadata: Any) -> None:
        if fault := self.faults.take("delay", call=name):
            await asyncio.sleep(fault["seconds"])
        token = metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")
        if TASK_HEADER not in metadata and (token != TOKEN or self.faults.take("refuse")):
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID is malformed or was revoked")


async def answer(found: Callable[..., Any], request: Any, stream: Any, kind: Any) -> None:
    reply = found(request, stream.metadata.get(TASK_HEADER))
    if isinstance(reply, AsyncIterator):
        async for message in reply:
            await stream.send_message(message)
    else:
        await stream.send_message(await reply or kind())
