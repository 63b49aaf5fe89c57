"""A loopback Modal that the real SDK talks to.

    python -m emulators.modal --folder DIR

Prints one line of JSON when it is ready: the environment that points the SDK at it, null for a variable to unset.
"""

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from grpclib.server import Server

from emulators.modal.apps import Apps
from emulators.modal.blocks import Blocks
from emulators.modal.containers import Containers
from emulators.modal.faults import Faults
from emulators.modal.service import TOKEN, Service
from emulators.modal.state import State
from emulators.modal.storage import Storage

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def environment(url: str, folder: Path) -> dict[str, str | None]:
    """What leads the SDK here and nowhere else, whatever account, profile or proxy the user has set up."""
    unset = [name for name in os.environ if name.startswith("MODAL_")]
    unset += ["MODAL_PROFILE", "MODAL_ENVIRONMENT", *PROXIES, *(name.lower() for name in PROXIES)]
    ours = {
        "MODAL_SERVER_URL": url,
        "MODAL_TOKEN_ID": TOKEN[0],
        "MODAL_TOKEN_SECRET": TOKEN[1],
        "MODAL_CONFIG_PATH": str(folder / "no-modal.toml"),
    }
    return dict.fromkeys(unset) | ours


async def serve(folder: Path) -> None:
    state, faults = State(folder), Faults(folder)
    containers, blocks = Containers(state, faults), Blocks(state, faults)
    controls = [Apps(state, containers, faults), Storage(state, containers, blocks)]
    runner = await blocks.serve()
    server = Server([Service(controls, folder, faults)])
    await server.start("127.0.0.1", 0)
    listening: Any = server._server
    containers.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    print(json.dumps({"environment": environment(containers.url, folder)}), flush=True)
    containers.resume()
    await ended.wait()
    await containers.stop()
    server.close()
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m emulators.modal", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where everything is kept between starts")
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(serve(folder))


if __name__ == "__main__":
    main()
