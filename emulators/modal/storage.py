"""Volumes, and what a container asks for."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from emulators.modal.blocks import Blocks, block_ranges
from emulators.modal.containers import Container, Containers
from emulators.modal.state import State, new_id, pack, unpack

HEARTBEAT = 5.0  # seconds that a heartbeat's answer may take


class Storage:
    def __init__(self, state: State, containers: Containers, blocks: Blocks):
        self.state, self.containers, self.blocks = state, containers, blocks

    async def volume_get_or_create(self, request: Any, task: str | None) -> Any:
        volumes, name = self.state.record.volumes, request.deployment_name
        if name not in volumes:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"Volume '{name}' not found")
            volumes[name] = new_id("vo")
            self.state.volume(volumes[name]).mkdir()
            await self.containers.notify()
        metadata = api_pb2.VolumeMetadata(name=name, version=api_pb2.VOLUME_FS_VERSION_V2)
        return api_pb2.VolumeGetOrCreateResponse(volume_id=volumes[name], metadata=metadata)

    async def volume_put_files2(self, request: Any, task: str | None) -> Any:
        """Files from blocks that are here; what is not is asked for, and the client comes again with it."""
        response = api_pb2.VolumePutFiles2Response()
        for number, file in enumerate(request.files):
            for place, block in enumerate(file.blocks):
                if not self.state.blob(block.contents_sha256.hex()).is_file():
                    url = self.blocks.upload_url(block.contents_sha256.hex())
                    response.missing_blocks.add(file_index=number, block_index=place, put_url=url)
        if not response.missing_blocks:
            for file in request.files:
                await asyncio.to_thread(self.assemble, self.state.volume(request.volume_id), file)
        return response

    def assemble(self, volume: Path, file: Any) -> None:
        target = volume / file.path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.upload")
        with partial.open("wb") as stream:
            for number, block in enumerate(file.blocks):
                stream.seek(number * (8 << 20))
                stream.write(self.state.blob(block.contents_sha256.hex()).read_bytes())
            stream.truncate(file.size)
        partial.replace(target)
        for block in file.blocks:  # the file has them now
            self.state.blob(block.contents_sha256.hex()).unlink(missing_ok=True)

    async def volume_list_files2(self, request: Any, task: str | None) -> AsyncIterator[Any]:
        folder = self.state.volume(request.volume_id)
        place = folder / request.path.lstrip("/")
        if not place.exists():
            raise GRPCError(Status.NOT_FOUND, f"No such file or directory: {request.path}")
        found = [place] if place.is_file() else sorted(place.rglob("*") if request.recursive else place.iterdir())
        entries = [
            api_pb2.FileEntry(
                path=str(path.relative_to(folder)),
                type=api_pb2.FileEntry.DIRECTORY if path.is_dir() else api_pb2.FileEntry.FILE,
                size=path.lstat().st_size,
                mtime=int(path.lstat().st_mtime),
            )
            for path in found
            if not path.name.startswith(".")
        ]
        yield api_pb2.VolumeListFiles2Response(entries=entries)

    async def volume_get_file2(self, request: Any, task: str | None) -> Any:
        path = self.state.volume(request.volume_id) / request.path.lstrip("/")
        if not path.is_file():
            raise GRPCError(Status.NOT_FOUND, f"No such file: {request.path}")
        size = path.stat().st_size
        length = min(request.len or size, size - request.start)
        parts = block_ranges(request.start, length)
        urls = [self.blocks.download_url(request.volume_id, request.path.lstrip("/"), *part) for part in parts]
        return api_pb2.VolumeGetFile2Response(get_urls=urls, size=size, start=request.start, len=length)

    async def volume_remove_file2(self, request: Any, task: str | None) -> Any:
        path = self.state.volume(request.volume_id) / request.path.lstrip("/")
        if not path.exists():
            raise GRPCError(Status.NOT_FOUND, f"No such file: {request.path}")
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    async def volume_commit(self, request: Any, task: str | None) -> Any:
        await asyncio.to_thread(self.container(task).copies[request.volume_id].commit)
        return api_pb2.VolumeCommitResponse(skip_reload=True)

    # Containers

    def container(self, task: str | None) -> Container:
        if task not in self.containers.running:
            raise GRPCError(Status.FAILED_PRECONDITION, "only a running container may ask for this")
        return self.containers.running[task]

    async def container_heartbeat(self, request: Any, task: str | None) -> Any:
        await asyncio.sleep(HEARTBEAT)
        return api_pb2.ContainerHeartbeatResponse()

    async def function_get_inputs(self, request: Any, task: str | None) -> Any:
        """The next waiting input, or word to end where there is none."""
        container, response = self.container(task), api_pb2.FunctionGetInputsResponse()
        waiting = self.state.pending(container.function)
        if container.call or not waiting:
            response.inputs.add(kill_switch=True)
            return response
        call = container.call = waiting[0]
        call.starts += 1
        await self.containers.notify()
        response.inputs.add(
            input_id=call.input_id,
            function_call_id=call.id,
            input=unpack(api_pb2.FunctionInput, call.input),
            function_call_invocation_type=api_pb2.FUNCTION_CALL_INVOCATION_TYPE_ASYNC,
            retry_count=0,
        )
        return response

    async def function_put_outputs(self, request: Any, task: str | None) -> Any:
        container = self.container(task)
        for item in request.outputs:
            if container.call and not container.call.output and not container.why:
                output = api_pb2.FunctionGetOutputsItem(
                    result=item.result, input_id=item.input_id, idx=0, data_format=item.data_format, task_id=task or ""
                )
                container.call.output = pack(output)
        await self.containers.notify()

    async def task_result(self, request: Any, task: str | None) -> Any:
        """A container that did not get as far as its input: every waiting input fails with its error."""
        container = self.container(task)
        for call in self.state.pending(container.function):
            call.output = pack(api_pb2.FunctionGetOutputsItem(result=request.result, input_id=call.input_id, idx=0))
        await self.containers.notify()
