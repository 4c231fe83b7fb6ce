"""Container limits are found in either cgroup version, at every level."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.runtime.host import (
    MAX_POOL_THREADS,
    Budget,
    available_memory,
    cpu_budget,
    cpu_quota,
    total_memory,
)

GB = 1 << 30


def write(place: Path, **files: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def own_group(tmp_path: Path) -> Path:
    return tmp_path / "self-cgroup"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def test_version_two_takes_the_least_of_all_levels(root: Path, own_group: Path) -> None:
    own_group.write_text("0::/pod/app\n")
    write(root, cpu__max="max 100000")
    write(root / "pod", cpu__max="250000 100000")
    write(root / "pod" / "app", cpu__max="400000 100000")
    assert cpu_quota(root, own_group) == 2.5
    assert cpu_budget(None, "", root, own_group, affinity=8) == Budget(3, "container quota")


def test_version_one_with_its_own_mount(root: Path, own_group: Path) -> None:
    own_group.write_text("11:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n")
    write(root / "cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    write(
        root / "cpu,cpuacct" / "docker" / "x",
        cpu__cfs_quota_us="50000",
        cpu__cfs_period_us="100000",
    )
    assert cpu_quota(root, own_group) == 0.5
    assert cpu_budget(None, "", root, own_group, affinity=8) == Budget(1, "container quota")


def test_a_path_that_is_not_below_the_mount_means_the_mount(root: Path, own_group: Path) -> None:
    own_group.write_text("4:cpu,cpuacct:/kubepods/burstable/abc\n0::/../../other\n")
    write(root / "cpu", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    assert cpu_quota(root, own_group) == 3.0


@pytest.mark.parametrize(
    "text", ["", "max 100000", "garbage", "100000", "0 100000", "5 0", "-1 100000"]
)
def test_what_is_no_limit_is_none(root: Path, own_group: Path, text: str) -> None:
    own_group.write_text("0::/\n")
    write(root, cpu__max=text)
    assert cpu_quota(root, own_group) is None
    assert cpu_budget(None, "", root, own_group, affinity=5) == Budget(5, "CPU affinity")


def test_missing_files_mean_no_limit(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    assert cpu_quota(nothing, nothing) is None
    assert available_memory(nothing, nothing, nothing) is None
    assert total_memory(nothing, nothing, nothing) > 0


def test_the_users_wish_is_one_limit_among_others(root: Path, own_group: Path) -> None:
    own_group.write_text("0::/\n")
    write(root, cpu__max="200000 100000")

    def budget(wanted: int | None) -> Budget:
        return cpu_budget(wanted, "OMP_NUM_THREADS", root, own_group, affinity=4)

    assert budget(1) == Budget(1, "OMP_NUM_THREADS")
    assert budget(3) == Budget(2, "container quota")
    nothing = root / "nothing"
    assert cpu_budget(None, "", nothing, nothing, affinity=500).threads == MAX_POOL_THREADS


def test_memory_of_container_and_machine(root: Path, own_group: Path, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(
        f"MemTotal: {8 * GB >> 10} kB\nMemAvailable: {6 * GB >> 10} kB\nSwapFree: 0 kB\n"
    )
    own_group.write_text("0::/app\n")
    assert total_memory(root, own_group, meminfo) == 8 * GB
    assert available_memory(root, own_group, meminfo) == 6 * GB
    write(
        root / "app",
        memory__max=str(4 * GB),
        memory__current=str(3 * GB),
        memory__stat=f"anon {2 * GB}\nfile {GB}",
    )
    assert total_memory(root, own_group, meminfo) == 4 * GB
    # File cache counts as free: the kernel gives it back before it kills.
    assert available_memory(root, own_group, meminfo) == 2 * GB


def test_memory_of_a_version_one_container(root: Path, own_group: Path, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {8 * GB >> 10} kB\nMemAvailable: {6 * GB >> 10} kB\n")
    own_group.write_text("9:memory:/x\n")
    write(
        root / "memory",
        memory__limit_in_bytes="9223372036854771712",
        memory__usage_in_bytes="1",
    )
    write(
        root / "memory" / "x",
        memory__limit_in_bytes=str(2 * GB),
        memory__usage_in_bytes=str(GB),
        memory__stat="total_cache 0",
    )
    assert total_memory(root, own_group, meminfo) == 2 * GB
    assert available_memory(root, own_group, meminfo) == GB
