"""Apps, images, mounts, Functions, calls and the bill: what the submitting side asks for."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from emulators.modal.containers import Containers
from emulators.modal.faults import Faults
from emulators.modal.state import DEPLOYED, INITIALIZING, STOPPED, App, Call, Function, State, new_id, pack, unpack

GPUS = ("T4", "L4", "A10", "L40S", "A100", "A100-40GB", "A100-80GB", "H100", "H200", "B200")
# USD per second of one GPU, core, GiB: near Modal's list, so that a rehearsal's bill looks like a bill.
RATES = {"gpu": Decimal("0.000222"), "cpu": Decimal("0.0000131"), "memory": Decimal("0.00000222")}
BUILDER = "2025.06"


def missing(what: str, name: str) -> GRPCError:
    return GRPCError(Status.NOT_FOUND, f"{what} '{name}' not found")


class Apps:
    def __init__(self, state: State, containers: Containers, faults: Faults):
        self.state, self.containers, self.faults = state, containers, faults
        self.record = state.record

    async def workspace_name_lookup(self, request: Any, task: str | None) -> Any:
        return api_pb2.WorkspaceNameLookupResponse(workspace_name="emulator", username="emulator")

    async def environment_get_or_create(self, request: Any, task: str | None) -> Any:
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER)
        metadata = api_pb2.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-emulator", metadata=metadata)

    # Apps

    async def app_get_by_deployment_name(self, request: Any, task: str | None) -> Any:
        app = self.state.deployed(request.name)
        return api_pb2.AppGetByDeploymentNameResponse(app_id=app.id if app else "")

    async def app_create(self, request: Any, task: str | None) -> Any:
        app = App(new_id("ap"), request.description, dict(request.tags))
        self.record.apps[app.id] = app
        await self.containers.notify()
        return api_pb2.AppCreateResponse(app_id=app.id, app_page_url="", app_logs_url="")

    async def app_get_layout(self, request: Any, task: str | None) -> Any:
        app = self.app(request.app_id)
        return api_pb2.AppGetLayoutResponse(app_layout=self.state.layout(app))

    async def app_publish(self, request: Any, task: str | None) -> Any:
        app = self.app(request.app_id)
        app.state, app.name, app.functions = DEPLOYED, request.name, dict(request.function_ids)
        app.tags |= dict(request.tags)
        await self.containers.notify()
        return api_pb2.AppPublishResponse(url="", deployed_at=time.time())

    async def app_client_disconnect(self, request: Any, task: str | None) -> Any:
        app = self.app(request.app_id)
        if app.state == INITIALIZING:
            await self.containers.stop_app(app)

    async def app_get_or_create(self, request: Any, task: str | None) -> Any:
        app = self.record.apps.get(request.app_name) or self.state.deployed(request.app_name)
        if app is None:
            raise missing("App", request.app_name)
        return api_pb2.AppGetOrCreateResponse(app_id=app.id, handle_metadata=self.metadata(app))

    async def app_get_info(self, request: Any, task: str | None) -> Any:
        return api_pb2.AppGetInfoResponse(info=self.metadata(self.app(request.app_id)))

    async def app_stop(self, request: Any, task: str | None) -> Any:
        app = self.app(request.app_id)
        if app.state == STOPPED:
            raise GRPCError(Status.FAILED_PRECONDITION, "App is already stopped")
        await self.containers.stop_app(app)

    async def app_get_logs(self, request: Any, task: str | None) -> AsyncIterator[Any]:
        """A call's output so far and, until the time or the call is over, what comes; an entry's id is its place."""
        deadline, at = time.time() + request.timeout, int(request.last_entry_id or 0)
        while (left := deadline - time.time()) > 0:
            over = self.over(request.function_call_id)
            for number, text in self.containers.logs.get(request.function_call_id, [])[at:]:
                at += 1
                item = api_pb2.TaskLogs(data=text, file_descriptor=number, timestamp=time.time())  # type: ignore[arg-type]
                yield api_pb2.TaskLogsBatch(items=[item], entry_id=str(at))
            if over:
                yield api_pb2.TaskLogsBatch(entry_id=str(at), app_done=True)
                return
            await self.change(left)

    def over(self, call_id: str) -> bool:
        call = self.call(call_id)
        return bool(call.output) and not any(inside.call is call for inside in self.containers.running.values())

    def app(self, app_id: str) -> App:
        if app_id not in self.record.apps:
            raise missing("App", app_id)
        return self.record.apps[app_id]

    def metadata(self, app: App) -> Any:
        times = {"created_at": app.created, "stopped_at": app.stopped}
        lifecycle = api_pb2.AppLifecycle(app_state=app.state, **times)  # type: ignore[arg-type]
        return api_pb2.AppHandleMetadata(app_id=app.id, description=app.name, lifecycle=lifecycle)

    async def change(self, seconds: float) -> None:
        """Wait for a change, at most so long, and never long: one may come between looking and waiting."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, 1)), self.containers.changed:
                await self.containers.changed.wait()

    # Images and mounts

    async def image_get_or_create(self, request: Any, task: str | None) -> Any:
        result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        metadata = api_pb2.ImageMetadata(image_builder_version=request.builder_version)
        return api_pb2.ImageGetOrCreateResponse(image_id=new_id("im"), result=result, metadata=metadata)

    async def mount_get_or_create(self, request: Any, task: str | None) -> Any:
        mount_id = new_id("mo")
        self.record.mounts[mount_id] = [[file.filename, file.sha256_hex, file.mode] for file in request.files]
        return api_pb2.MountGetOrCreateResponse(mount_id=mount_id)

    async def mount_batched_check_existence(self, request: Any, task: str | None) -> Any:
        absent = [name for name in request.sha256_hex_hashes if not self.state.blob(name).is_file()]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=absent)

    async def mount_put_file(self, request: Any, task: str | None) -> Any:
        if request.WhichOneof("data_oneof") == "data":
            self.state.blob(request.sha256_hex).write_bytes(request.data)
        return api_pb2.MountPutFileResponse(exists=self.state.blob(request.sha256_hex).is_file())

    # Functions and calls

    async def function_precreate(self, request: Any, task: str | None) -> Any:
        function_id = request.existing_function_id or new_id("fu")
        self.record.functions.setdefault(function_id, Function(function_id, request.app_id, request.function_name))
        return api_pb2.FunctionPrecreateResponse(function_id=function_id, handle_metadata=self.handle(function_id))

    async def function_create(self, request: Any, task: str | None) -> Any:
        gpu = request.function.resources.gpu_config
        if gpu.gpu_type and gpu.gpu_type not in GPUS:
            raise GRPCError(Status.INVALID_ARGUMENT, f"Unknown GPU type '{gpu.gpu_type}'; known: {', '.join(GPUS)}")
        function = self.record.functions[request.existing_function_id]
        function.definition = pack(request.function)
        await self.containers.notify()
        data = api_pb2.FunctionData(function_name=function.tag)
        data.ranked_functions.add(rank=0, function=request.function)
        return api_pb2.FunctionCreateResponse(
            function_id=function.id,
            function=request.function,
            function_data=data,
            handle_metadata=self.handle(function.id),
        )

    async def function_get(self, request: Any, task: str | None) -> Any:
        app = self.state.deployed(request.app_name)
        if app is None or request.object_tag not in app.functions:
            raise missing("Function", request.object_tag)
        function_id = app.functions[request.object_tag]
        data = api_pb2.FunctionData(function_name=request.object_tag)
        data.ranked_functions.add(rank=0, function=self.state.definition(function_id))
        return api_pb2.FunctionGetResponse(
            function_id=function_id, handle_metadata=self.handle(function_id), function=data
        )

    def handle(self, function_id: str) -> Any:
        function = self.record.functions[function_id]
        return api_pb2.FunctionHandleMetadata(
            function_name=function.tag,
            function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION,
            app_id=function.app,
            supported_input_formats=[api_pb2.DATA_FORMAT_PICKLE],
            supported_output_formats=[api_pb2.DATA_FORMAT_PICKLE],
        )

    async def function_get_current_stats(self, request: Any, task: str | None) -> Any:
        inside = [
            container for container in self.containers.running.values() if container.function == request.function_id
        ]
        working = sum(1 for container in inside if container.call and not container.call.output)
        waiting = len(self.state.pending(request.function_id)) - working
        return api_pb2.FunctionStats(backlog=waiting, num_total_tasks=len(inside), num_running_inputs=working)

    async def function_map(self, request: Any, task: str | None) -> Any:
        (item,) = request.pipelined_inputs
        app = self.record.apps[self.record.functions[request.function_id].app]
        if app.state != DEPLOYED:
            raise GRPCError(Status.FAILED_PRECONDITION, "App is not running")
        call = Call(new_id("fc"), request.function_id, new_id("in"), pack(item.input))
        self.record.calls[call.id] = call
        await self.containers.notify()
        self.containers.schedule(request.function_id)
        response = api_pb2.FunctionMapResponse(function_call_id=call.id, function_call_jwt=call.id)
        response.pipelined_inputs.add(idx=0, input_id=call.input_id, input_jwt=call.input_id)
        return response

    async def function_get_outputs(self, request: Any, task: str | None) -> Any:
        call, deadline = self.call(request.function_call_id), time.time() + request.timeout
        while not call.output and (left := deadline - time.time()) > 0:
            await self.change(left)
        outputs = [unpack(api_pb2.FunctionGetOutputsItem, call.output)] if call.output else []
        return api_pb2.FunctionGetOutputsResponse(outputs=outputs, num_unfinished_inputs=int(not call.output))

    async def function_call_from_id(self, request: Any, task: str | None) -> Any:
        call = self.call(request.function_call_id)
        app_id = self.record.functions[call.function].app
        metadata = api_pb2.FunctionCallHandleMetadata(app_id=app_id, function_id=call.function)
        return api_pb2.FunctionCallFromIdResponse(function_call_id=call.id, num_inputs=1, metadata=metadata)

    async def function_call_get_info(self, request: Any, task: str | None) -> Any:
        call = self.call(request.function_call_id)
        info = api_pb2.FunctionCallInfo(function_call_id=call.id, total_inputs=1)
        (info.succeeded_inputs if call.output else info.pending_inputs).total = 1
        return api_pb2.FunctionCallGetInfoResponse(info=info)

    async def function_call_cancel(self, request: Any, task: str | None) -> Any:
        call = self.call(request.function_call_id)
        inside = [container for container in self.containers.running.values() if container.call is call]
        if not call.output and not inside:
            self.containers.result(call, api_pb2.GenericResult.GENERIC_STATUS_TERMINATED, "Input was cancelled")
            await self.containers.notify()
        for container in inside:
            await self.containers.end(container, "cancel")

    def call(self, call_id: str) -> Call:
        if call_id not in self.record.calls:
            raise missing("Function call", call_id)
        return self.record.calls[call_id]

    # The bill

    async def workspace_billing_report(self, request: Any, task: str | None) -> AsyncIterator[Any]:
        """One row per app and hour, at once: an emulated hour is over when the container is."""
        if self.faults.take("late_bill"):
            return
        for app in self.record.apps.values():
            hours: dict[float, Decimal] = {}
            for _, started, ended in (use for use in self.record.uses if use[0] == app.id):
                begin = ended - ended % 3600
                hours[begin] = hours.get(begin, Decimal(0)) + Decimal(str(round(ended - started, 3)))
            for begin, seconds in hours.items():
                yield self.row(app, begin, seconds)

    def row(self, app: App, begin: float, seconds: Decimal) -> Any:
        wanted = self.state.definition(next(iter(app.functions.values()))).resources
        costs = {
            wanted.gpu_config.gpu_type or "no GPU": seconds * RATES["gpu"] * wanted.gpu_config.count,
            "CPU": seconds * RATES["cpu"] * wanted.milli_cpu / 1000,
            "Memory": seconds * RATES["memory"] * wanted.memory_mb / 1024,
        }
        row = api_pb2.WorkspaceBillingReportItem(
            object_id=app.id,
            description=app.name,
            environment_name="main",
            cost=str(sum(costs.values())),
            tags=app.tags,
            cost_by_resource={name: str(cost) for name, cost in costs.items()},
        )
        row.interval.FromDatetime(datetime.fromtimestamp(begin, UTC).replace(tzinfo=None))
        return row
