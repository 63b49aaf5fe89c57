"""A small disk of a test's own: a tmpfs over a folder, in a mount namespace that nothing else sees and that leaves with
its holder. It can be filled to the block, run out of inodes, or be made read-only."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

AMPLE = "remount,rw,size=512m,nr_inodes=200000"
# Without root a user namespace gives the right to mount; where there is none, root may do so as it is.
WAYS = {"unshare -rm": ("-U", "--preserve-credentials", "-m"), "unshare -m": ("-m",)}


class Disk:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for way, self.spaces in WAYS.items():
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self.holder = subprocess.Popen([*way.split(), "sh", "-c", "echo here; exec cat"], text=True, **pipes)
            assert self.holder.stdout is not None
            if (
                self.holder.stdout.readline()
                and self.run(
                    ["mount", "-t", "tmpfs", "-o", AMPLE.removeprefix("remount,rw,"), "small", str(folder)], Path("/")
                ).returncode
                == 0
            ):
                return
            self.close()
        pytest.skip("mounting a small tmpfs needs root or user namespaces, and this machine allows neither")

    def close(self) -> None:
        self.holder.kill()
        self.holder.wait()

    def run(self, command: list[str], cwd: Path, **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command that sees the disk."""
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', str(cwd), *command]
        entered = ["nsenter", "-t", str(self.holder.pid), *self.spaces, "--", *inside]
        return subprocess.run(entered, capture_output=True, text=True, check=False, **options)

    def view(self, path: Path) -> Path:
        """A path on the disk as this process can read and write it."""
        return Path(f"/proc/{self.holder.pid}/root") / path.relative_to("/")

    def mount(self, options: str) -> None:
        done = self.run(["mount", "-o", options, str(self.folder)], Path("/"))
        assert done.returncode == 0, done.stderr

    def fill(self, leave: int) -> None:
        """Leave as many bytes free, in whole blocks."""
        found = os.statvfs(self.view(self.folder))
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        self.mount(f"remount,size={used + leave}")

    def take_inodes(self, leave: int) -> None:
        found = os.statvfs(self.view(self.folder))
        self.mount(f"remount,nr_inodes={found.f_files - found.f_ffree + leave}")

    def lock(self) -> None:
        self.mount("remount,ro")

    def free(self) -> None:
        """Everything is back."""
        self.mount(AMPLE)
