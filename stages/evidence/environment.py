"""The machine a worker runs on, as far as it can be seen from inside: versions, processor, GPU, limits."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "trl", "datasets", "accelerate", "huggingface-hub")


def versions() -> dict[str, str]:
    """Versions as each package reports them; torch's with its build, such as `2.14.0+cu126`."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    import torch

    return found | {"torch": torch.__version__}


def gpu() -> dict[str, Any] | None:
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "count": torch.cuda.device_count(),
        "driver": driver(),
        "cuda": torch.version.cuda,
    }


def driver(proc: Path = Path("/proc")) -> str | None:
    """The NVIDIA driver's version: the kernel module's own word, else nvidia-smi's, else unknown (None)."""
    try:
        text = (proc / "driver/nvidia/version").read_text()
        return next(word for word in text.split() if word[0].isdigit() and word.count(".") >= 1)
    except (OSError, StopIteration):
        pass
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return answer.stdout.strip().splitlines()[0] if answer.returncode == 0 and answer.stdout.strip() else None


def cpu_model(proc: Path = Path("/proc")) -> str:
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cgroup_folders(controller: str, proc: Path, mount: Path) -> list[Path]:
    """The control groups of this process that can limit `controller`, own first, up to the root; v1 and v2."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if not controllers:  # version 2: one hierarchy for all
            base = mount
        elif controller in names:
            base = next((mount / name for name in (controllers, controller) if (mount / name).is_dir()), mount)
        else:
            continue
        own = base / path.lstrip("/")
        # In a container the path can be the host's; the mount's own root then holds the limit.
        folders += [folder for folder in (own, *own.parents) if folder == base or base in folder.parents]
    return folders


def read_int(path: Path) -> int | None:
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def cpu_limit(proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs that the tightest control group grants (quota / period), or None where nothing limits them."""
    limits = []
    for folder in cgroup_folders("cpu", proc, mount):
        quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
        if quota is None:
            try:
                first, second = (folder / "cpu.max").read_text().split()
            except (OSError, ValueError):
                continue
            quota, period = (int(first) if first != "max" else -1), int(second)
        if quota > 0 and period:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that the tightest control group grants, or None where nothing limits them."""
    limits = []
    for folder in cgroup_folders("memory", proc, mount):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = read_int(folder / name)
            limits += [limit] if limit is not None and limit < 1 << 60 else []  # v1 says "none" as 2^63 - 4096
    return min(limits, default=None)


def probe() -> dict[str, Any]:
    """Everything above as one record; a value that cannot be had is None, never a stand-in."""
    affinity = len(os.sched_getaffinity(0))
    limit = cpu_limit()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions(),
        "gpu": gpu(),
        "cpu": {
            "model": cpu_model(),
            "visible": os.cpu_count(),
            "affinity": affinity,
            "cgroup_limit": limit,
            "effective": min(affinity, limit) if limit else affinity,
        },
        "memory": {
            "total_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "cgroup_limit_bytes": memory_limit(),
        },
    }
