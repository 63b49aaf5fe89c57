"""The HTTP side: blocks of Volume files, up and down."""

import base64
import hashlib
import json
from pathlib import Path

from aiohttp import web

from emulators.modal.faults import Faults
from emulators.modal.state import State

BLOCK = 8 << 20


def block_ranges(start: int, length: int) -> list[tuple[int, int]]:
    """The parts of a range in each block, blocks being counted from the file's start."""
    end, ranges = start + length, []
    while start < end:
        stop = min(end, (start // BLOCK + 1) * BLOCK)
        ranges.append((start, stop - start))
        start = stop
    return ranges


class Blocks:
    def __init__(self, state: State, faults: Faults):
        self.state, self.faults, self.base = state, faults, ""

    def upload_url(self, sha256: str) -> str:
        return f"{self.base}/put/{sha256}"

    def download_url(self, volume_id: str, path: str, start: int, length: int) -> str:
        name = base64.urlsafe_b64encode(json.dumps([volume_id, path]).encode()).decode()
        return f"{self.base}/get/{name}/{start}/{length}"

    async def put(self, request: web.Request) -> web.Response:
        """A block of at most 8 MiB, kept under its digest, which is also the answer that proves it."""
        body = await request.read()
        if hashlib.sha256(body).hexdigest() != request.match_info["sha256"]:
            return web.Response(status=400, text="the block's content is not its digest")
        self.state.blob(request.match_info["sha256"]).write_bytes(body)
        return web.Response(body=request.match_info["sha256"].encode())

    async def get(self, request: web.Request) -> web.StreamResponse:
        volume_id, path = json.loads(base64.urlsafe_b64decode(request.match_info["name"]))
        start, length = int(request.match_info["start"]), int(request.match_info["length"])
        where = {"start": start, "folder": path.split("/")[0]}
        body = read_range(self.state.volume(volume_id) / path, start, length)
        if self.faults.take("flip", **where):
            body = body[:-1] + bytes([body[-1] ^ 1])
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        if fault := self.faults.take("drop", **where):
            await response.write(body[: fault["after"]])
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(body)
        return response

    async def serve(self) -> web.AppRunner:
        app = web.Application(client_max_size=2 * BLOCK)
        app.router.add_put("/put/{sha256}", self.put)
        app.router.add_get("/get/{name}/{start}/{length}", self.get)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner


def read_range(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(start)
        return stream.read(length)
