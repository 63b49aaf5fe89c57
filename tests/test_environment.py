"""Promise: evidence says what the machine really grants, under control groups of either version; unknown is None."""

from pathlib import Path

import pytest

from stages.evidence import environment


def tree(tmp_path: Path, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(cgroup)
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    mount.mkdir(exist_ok=True)
    return proc, mount


V1 = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "cpus", "memory"),
    [
        (
            "0::/a/b\n",
            {"a/b/cpu.max": "400000 100000\n", "a/memory.max": "1024\n", "a/b/memory.max": "max\n"},
            4.0,
            1024,
        ),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1.5, None),
        ("0::/\n", {"cpu.max": "50000 100000\n", "memory.max": "2048\n"}, 0.5, 2048),
        # A container that sees the host's path: the limit stands at the mount's own root.
        ("0::/kubepods/x\n", {"cpu.max": "200000 100000\n"}, 2.0, None),
        (
            V1,
            {
                "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "800000\n",
                "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "memory/docker/abc/memory.limit_in_bytes": "4096\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            8.0,
            4096,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3.0, None),
        ("0::/a\n", {}, None, None),
        ("0::/a\n", {"a/cpu.max": "garbage\n", "a/memory.max": "\n"}, None, None),
    ],
)
def test_the_tightest_limit_is_found_in_both_versions(
    tmp_path: Path, cgroup: str, files: dict[str, str], cpus: float | None, memory: int | None
) -> None:
    proc, mount = tree(tmp_path, cgroup, files)
    assert environment.cpu_limit(proc, mount) == cpus
    assert environment.memory_limit(proc, mount) == memory


def test_the_driver_is_read_from_the_kernel_module(tmp_path: Path) -> None:
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2026\nGCC version: gcc\n"
    )
    assert environment.driver(tmp_path) == "550.90.07"


def test_this_machine_is_described_without_a_stand_in_value() -> None:
    found = environment.probe()
    assert set(found["versions"]) == set(environment.PACKAGES)
    assert found["cpu"]["visible"] >= found["cpu"]["affinity"] >= found["cpu"]["effective"] > 0
    assert found["memory"]["total_bytes"] > 1 << 28
    assert found["cpu"]["model"]
