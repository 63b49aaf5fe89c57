"""How a container's process sees files: the image's mounts and Volumes at their own paths, the rest of this machine.

In a user namespace where that is allowed, which leaves no trace here; else as a plain process that is told by
PARITY_VOLUME and PYTHONPATH where its files are.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = """
set -eu
cd "$1"; shift
mount -t tmpfs tmpfs root
bind() {
  if [ -L "$1" ]; then cp -P "$1" "root$1"
  elif [ -d "$1" ]; then mkdir -p "root$1"; mount --rbind "$1" "root$1"
  elif [ -f "$1" ]; then touch "root$1"; mount --bind "$1" "root$1"; fi
}
for entry in /* /.[!.]*; do
  if [ -e "files$entry" ] && [ ! -L "$entry" ]; then
    mkdir "root$entry"
    for inner in "$entry"/* "$entry"/.[!.]*; do [ -e "files$inner" ] || bind "$inner"; done
  else bind "$entry"; fi
done
cp -r files/. root/
while [ "$1" != -- ]; do mkdir -p "root$2"; mount --bind "$1" "root$2"; shift 2; done
shift
exec chroot root setpriv --pdeathsig KILL -- "$@"
"""
ENTRYPOINT = [sys.executable, "-m", "modal._container_entrypoint"]


def allowed(folder: Path) -> bool:
    """Whether this user may make the namespace that `ROOT` needs, here and now."""
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        return False
    for name in ("root", "files", "empty"):
        (folder / "probe" / name).mkdir(parents=True, exist_ok=True)
    command = ["unshare", "-Urm", "sh", "-c", ROOT, "sh", str(folder / "probe"), "--", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    finally:
        shutil.rmtree(folder / "probe")


def command(folder: Path, volumes: Mapping[str, Path], namespaces: bool) -> tuple[list[str], dict[str, str]]:
    """What starts the container whose files lie in `folder`, and the environment that goes with it."""
    if not namespaces:
        (where,) = volumes.values()
        return ENTRYPOINT, {"PYTHONPATH": str(folder / "files/root"), "PARITY_VOLUME": str(where)}
    pairs = [part for mount, where in volumes.items() for part in (str(where), mount)]
    start = ["unshare", "-Urm", "sh", "-c", ROOT, "sh", str(folder), *pairs, "--", *ENTRYPOINT]
    return start, {"PYTHONPATH": "/root"}
