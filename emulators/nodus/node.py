"""Runs one command for the emulator and sees to it that nothing of it outlives the emulator.

    python -m emulators.nodus.node COMMAND...

The command and its children share this process's group. The kernel sends SIGTERM here when the emulator is gone,
SIGKILL of it included; the whole group is then killed. A SIGTERM while the emulator lives is the command's alone.
"""

import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    parent = os.getppid()

    def end(*_: Any) -> None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    end()  # the emulator may have gone before the line above
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        return 127
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
