"""The emulator as a program: python -m emulators.nodus --folder DIR

Prints one line of JSON when it is ready, the environment that points the SDK at it, and ends on SIGTERM.
"""

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from emulators.nodus.api import Api
from emulators.nodus.house import KEY, House
from emulators.nodus.server import serve

UNSET = ("NODUS_BASE_URL", "NODUS_ORG", "NODUS_CONTEXT", "NODUS_RUNTIME_SOCKET", "NODUS_ATTEMPT")


def environment(url: str) -> dict[str, str | None]:
    """Everything that the SDK takes an address or a credential from; null is unset."""
    own = {"NODUS_API_URL": url, "NODUS_API_KEY": KEY, "NODUS_PROJECT": "rehearsal", "NODUS_CONFIG": "/dev/null"}
    direct = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # or a proxy would be asked for loopback
    return own | dict.fromkeys(UNSET) | direct


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m emulators.nodus", description=__doc__)
    arguments.add_argument("--folder", type=Path, required=True, help="where everything is kept between starts")
    house = House(arguments.parse_args().folder.resolve())
    api = Api(house)
    server = serve(house, api)

    def end(*_: Any) -> None:
        # Nothing to put in order: every object is on disk whole, and no process outlives this one.
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the submit side, which then cancels its Job
    api.admission.resume()
    print(json.dumps({"environment": environment(house.url)}), flush=True)
    server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
