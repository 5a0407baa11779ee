"""The cores and the memory that a process may use follow from its affinity, its control group and its ranks."""

from __future__ import annotations

import pytest

from hotlap.machine import cores_of_a_rank, free_bytes, held_bytes, total_bytes, usable_cores


def control_group(root, version, quota, period, group="/box"):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::{group}\n" if version == 2 else f"4:cpu,cpuacct:{group}\n")
    folder = root / ("sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/cpu") / group.lstrip("/")
    folder.mkdir(parents=True)
    if version == 2:
        (folder / "cpu.max").write_text(f"{quota} {period}\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text(f"{period}\n")


@pytest.mark.parametrize(
    ("version", "quota", "expected"),
    [(2, 250_000, 3), (2, "max", 16), (2, 20_000, 1), (1, 400_000, 4), (1, -1, 16)],
)
def test_cores_are_limited_by_the_control_group(version, quota, expected, tmp_path, answering):
    answering("hotlap.machine", bound_cores=16)
    control_group(tmp_path, version, quota, 100_000)
    assert usable_cores(tmp_path) == expected


def test_without_control_groups_the_cores_are_those_the_process_is_bound_to(tmp_path, answering):
    answering("hotlap.machine", bound_cores=5)
    assert usable_cores(tmp_path) == 5


def test_ranks_of_one_machine_share_its_cores(answering):
    answering("hotlap.machine", usable_cores=6)
    assert cores_of_a_rank({}) == 6
    assert cores_of_a_rank({"LOCAL_WORLD_SIZE": "4"}) == 1
    assert cores_of_a_rank({"LOCAL_WORLD_SIZE": "8"}) == 1
    assert cores_of_a_rank({"LOCAL_WORLD_SIZE": "0"}) == 6
    assert cores_of_a_rank({"LOCAL_WORLD_SIZE": "some"}) == 6


@pytest.mark.parametrize(
    ("limit", "used"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_memory_is_limited_by_the_control_group(limit, used, tmp_path):
    group = tmp_path / "sys/fs/cgroup"
    (group / "memory").mkdir(parents=True)
    (group / limit).write_text("1000\n")
    (group / used).write_text("400\n")
    assert total_bytes(tmp_path) == 1000
    assert free_bytes(tmp_path) == 600


@pytest.mark.parametrize("none", ["max", str(2**63 - 4096), "unreadable"])
def test_without_a_limit_memory_is_that_of_the_machine(none, tmp_path):
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(none)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       2 kB\n")
    assert free_bytes(tmp_path) == 2048
    assert total_bytes(tmp_path) == total_bytes()


def test_this_process_holds_less_than_the_total():
    assert 0 < held_bytes().resident < total_bytes()
    assert 0 < free_bytes() <= total_bytes()
