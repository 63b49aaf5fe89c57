"""Containers: Modal's own entrypoint as a process, started when there is input, ended when the app is stopped."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from modal_proto import api_pb2

from emulators.modal import sandbox
from emulators.modal.faults import Faults
from emulators.modal.state import DEPLOYED, STOPPED, STOPPING, App, Call, State, new_id, pack
from emulators.modal.volumes import Copy
from stages.command import die_with_parent

STEP = re.compile(r"^step (\d+)/")
GRACE = 5.0  # seconds between asking a container to end and ending it; Modal gives 30

RESULT = api_pb2.GenericResult
ENDINGS = {  # how a container was ended -> its input's result; a preempted one's input is started again
    "kill": (RESULT.GENERIC_STATUS_INTERNAL_FAILURE, "Container was lost"),
    "oom": (RESULT.GENERIC_STATUS_KERNEL_OOM_KILL, "Container was killed by the kernel: out of memory"),
    "timeout": (RESULT.GENERIC_STATUS_TIMEOUT, "Task's current input hit its timeout"),
    "stop": (RESULT.GENERIC_STATUS_TERMINATED, "App was stopped"),
    "cancel": (RESULT.GENERIC_STATUS_TERMINATED, "Input was cancelled"),
    "": (RESULT.GENERIC_STATUS_FAILURE, "Container ended before its input did"),
}


@dataclass
class Container:
    id: str
    function: str
    app: str
    folder: Path
    copies: dict[str, Copy]
    process: asyncio.subprocess.Process
    started: float = field(default_factory=time.time)
    call: Call | None = None
    why: str = ""  # the fault or request that ended it


class Containers:
    def __init__(self, state: State, faults: Faults):
        self.state, self.faults, self.url = state, faults, ""
        self.namespaces = os.environ.get("PARITY_NO_NAMESPACES") is None and sandbox.allowed(state.folder)
        self.running: dict[str, Container] = {}
        self.logs: dict[str, list[tuple[int, str]]] = {}  # call id -> (file descriptor, text)
        self.tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Condition()

    async def notify(self) -> None:
        self.state.save()
        async with self.changed:
            self.changed.notify_all()

    def schedule(self, function_id: str) -> None:
        """Start a container for waiting input, one at a time."""
        task = asyncio.create_task(self.run(function_id))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def resume(self) -> None:
        """Go on with what an earlier emulator left."""
        for function in self.state.record.functions.values():
            if self.state.pending(function.id) and self.state.record.apps[function.app].state == DEPLOYED:
                self.schedule(function.id)

    async def run(self, function_id: str) -> None:
        app = self.state.record.apps[self.state.record.functions[function_id].app]
        while self.faults.take("queue"):
            await asyncio.sleep(0.1)
        busy = any(container.function == function_id for container in self.running.values())
        if busy or not self.state.pending(function_id) or app.state != DEPLOYED:
            return
        container = await self.start(function_id, app)
        self.running[container.id] = container
        limit = asyncio.create_task(self.limit(container))
        readers = [
            self.read(container, stream, number)
            for number, stream in ((1, container.process.stdout), (2, container.process.stderr))
            if stream
        ]
        await asyncio.gather(*readers)
        await container.process.wait()
        limit.cancel()
        await self.close(container)

    async def start(self, function_id: str, app: App) -> Container:
        definition, task_id = self.state.definition(function_id), new_id("ta")
        folder = self.state.folder / "containers" / task_id
        for name in ("root", "files/root", "volumes", "tmp"):
            (folder / name).mkdir(parents=True)
        for name, (source, mode) in self.state.files(iter(definition.mount_ids)).items():
            target = folder / "files" / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(mode or 0o644)
        places = {mount.volume_id: folder / "volumes" / mount.volume_id for mount in definition.volume_mounts}
        copies = {volume_id: Copy(self.state.volume(volume_id), place) for volume_id, place in places.items()}
        where = {mount.mount_path: places[mount.volume_id] for mount in definition.volume_mounts}
        (folder / "arguments").write_bytes(self.arguments(task_id, function_id, app).SerializeToString())
        command, extra = sandbox.command(folder, where, self.namespaces)
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=self.environment(task_id, definition.image_id, folder) | extra,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 20,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        return Container(task_id, function_id, app.id, folder, copies, process)

    def arguments(self, task_id: str, function_id: str, app: App) -> api_pb2.ContainerArguments:
        definition = self.state.definition(function_id)
        layout = self.state.layout(app)
        for dependency in definition.object_dependencies:
            layout.objects.add(object_id=dependency.object_id)
        return api_pb2.ContainerArguments(
            task_id=task_id,
            function_id=function_id,
            app_id=app.id,
            function_def=definition,
            environment_name="main",
            app_layout=layout,
        )

    def environment(self, task_id: str, image_id: str, folder: Path) -> dict[str, str]:
        """This process's environment without its account and its proxies, and what Modal tells its containers."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("MODAL_") and not key.upper().endswith("_PROXY")
        }
        return kept | {
            "MODAL_SERVER_URL": self.url,
            "MODAL_IS_REMOTE": "1",
            "MODAL_CONTAINER_ARGUMENTS_PATH": str(folder / "arguments"),
            "MODAL_TASK_ID": task_id,
            "MODAL_IMAGE_ID": image_id,
            "MODAL_ENVIRONMENT": "main",
            "MODAL_OVERRIDE_HEADERS": f"x-emulator-task:{task_id}",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(folder / "tmp"),
        }

    async def read(self, container: Container, stream: asyncio.StreamReader, number: int) -> None:
        """Put a container's output on the log of its call, and strike where a fault waits for the step it names."""
        while line := await stream.readline():
            text = line.decode(errors="replace")
            if container.call:
                self.logs.setdefault(container.call.id, []).append((number, text))
            with (self.state.folder / "containers.log").open("a") as log:
                log.write(f"{container.id} {text}")
            if step := STEP.match(text):
                await self.strike(container, int(step[1]))
            async with self.changed:
                self.changed.notify_all()

    async def strike(self, container: Container, step: int) -> None:
        for kind in ("preempt", "kill", "oom"):
            if self.faults.take(kind, step=step):
                await self.end(container, kind)

    async def limit(self, container: Container) -> None:
        await asyncio.sleep(self.state.definition(container.function).timeout_secs)
        await self.end(container, "timeout")

    async def end(self, container: Container, why: str) -> None:
        """End a container: one that is preempted, cancelled or stopped is asked first."""
        if container.process.returncode is not None:
            return
        container.why = container.why or why
        with contextlib.suppress(ProcessLookupError):
            if why in ("preempt", "stop", "cancel"):
                container.process.send_signal(signal.SIGINT)
                waiting = asyncio.create_task(container.process.wait())
                await asyncio.wait([waiting], timeout=GRACE)
            os.killpg(container.process.pid, signal.SIGKILL)

    async def close(self, container: Container) -> None:
        """What is left to do for a container that has ended: its input's result, its bill, its files."""
        del self.running[container.id]
        self.state.record.uses.append((container.app, container.started, time.time()))
        call = container.call
        if call and not call.output and container.why != "preempt":
            self.result(call, *ENDINGS[container.why])
        elif call is None and not container.why:
            for waiting in self.state.pending(container.function):
                self.result(waiting, *ENDINGS[""])
        shutil.rmtree(container.folder, ignore_errors=True)
        app = self.state.record.apps[container.app]
        if app.state == STOPPING and not any(other.app == app.id for other in self.running.values()):
            app.state, app.stopped = STOPPED, time.time()
        await self.notify()
        self.schedule(container.function)

    def result(self, call: Call, status: "api_pb2.GenericResult.GenericStatus.ValueType", text: str) -> None:
        item = api_pb2.FunctionGetOutputsItem(
            result=RESULT(status=status, exception=text), input_id=call.input_id, idx=0
        )
        call.output = pack(item)

    async def stop_app(self, app: App) -> None:
        own = [container for container in self.running.values() if container.app == app.id]
        app.state, app.stopped = (STOPPING, 0.0) if own else (STOPPED, time.time())
        for function_id in app.functions.values():
            for call in self.state.pending(function_id):
                if not any(container.call is call for container in own):
                    self.result(call, *ENDINGS["stop"])
        await self.notify()
        for container in own:
            task = asyncio.create_task(self.end(container, "stop"))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def stop(self) -> None:
        """End every container at once: the emulator ends, and calls stay as they are for the next one."""
        for container in list(self.running.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(container.process.pid, signal.SIGKILL)
            await container.process.wait()
            shutil.rmtree(container.folder, ignore_errors=True)
