"""Containers: the kernel holds a run to its quota, and what it ends for want of memory is typed.

What this machine's kernel does not show is tested on a stand-in of its tree.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.measure.executors import ProgramExecutor
from hztune.measure.program import described
from hztune.measure.scope import entered, freezer, is_out_of_memory
from hztune.profile import Objective, WorkloadId
from hztune.quota import Quota
from hztune.verifying.claim import targets

from .conftest import put
from .measured import CONTROL, OpenProof

pytestmark = pytest.mark.usefixtures("quiet_machine")

QUOTA = Quota(2.0, 512 * 1024)
V2_FILES = {"cgroup.controllers": "cpu memory pids", "cgroup.subtree_control": "cpu memory"}


def can_hold():
    """Whether this process may make a control group with a memory limit."""
    try:
        with entered(Quota(None, 64 << 10)) as made:
            return bool(made)
    except UsageError:
        return False


real = pytest.mark.skipif(not can_hold(), reason="this process may not make a control group")


@pytest.fixture
def tree(tmp_path):
    """Makes a stand-in of / with control groups."""

    def make(own, folders):
        for name, files in folders.items():
            folder = tmp_path / "sys/fs/cgroup" / name
            folder.mkdir(parents=True, exist_ok=True)
            put(folder, files)
        return put(tmp_path, {"proc/self/cgroup": own})

    return make


# ---- version 2, on a stand-in --------------------------------------------------------------------


def test_a_group_of_version_2_gets_its_limits_and_is_joined(tree):
    root = tree("0::/user.slice\n", {"": V2_FILES, "user.slice": V2_FILES})
    with entered(QUOTA, root) as made:
        (group,) = made
        assert group.parent == root / "sys/fs/cgroup/user.slice"
        assert (group / "cpu.max").read_text() == "200000 100000"
        assert (group / "memory.max").read_text() == str(512 << 20)
        assert (group / "memory.oom.group").read_text() == "1"
    with entered(Quota(1.5, None), root) as made:
        assert (made[0] / "cpu.max").read_text() == "150000 100000"
        assert not (made[0] / "memory.max").exists()


def test_a_group_is_made_above_where_ones_own_has_no_controllers(tree):
    closed = {"cgroup.controllers": "", "cgroup.subtree_control": ""}
    root = tree("0::/a/b\n", {"": V2_FILES, "a": V2_FILES, "a/b": closed})
    (root / "sys/fs/cgroup/a/b/cgroup.subtree_control").unlink()
    (root / "sys/fs/cgroup/a/b/cgroup.subtree_control").mkdir()  # cannot be written
    with entered(QUOTA, root) as made:
        assert made[0].parent == root / "sys/fs/cgroup/a"


WITHOUT_FREEZER = [
    {"": {}},
    {"": {"cgroup.procs": ""}},  # version 1
    {"": {"cgroup.controllers": "", "cgroup.procs": ""}},  # a kernel without a freezer
    {"unified": {"cgroup.controllers": "", "cgroup.procs": ""}},
]


@pytest.mark.parametrize("files", WITHOUT_FREEZER)
def test_where_there_is_no_freezer_none_is_made_and_nothing_is_left(tree, files):
    root = tree("0::/\n", files)
    with freezer(root) as group:
        assert group is None
    assert [*root.rglob("hztune-*")] == []


def test_what_the_kernel_ended_is_read(tree):
    root = tree("0::/\n", {"": V2_FILES})
    with entered(QUOTA, root) as made:
        (group,) = made
        assert not is_out_of_memory(QUOTA, made)
        (group / "memory.events").write_text("low 0\nmax 71\noom 1\noom_kill 2\n")
        assert is_out_of_memory(QUOTA, made)


# ---- version 1, on a stand-in --------------------------------------------------------------------

V1 = {"cpu/x": {}, "memory/y": {}, "cpu": {"cgroup.procs": ""}, "memory": {"cgroup.procs": ""}}


def test_groups_of_version_1_stand_in_the_hierarchy_of_each_controller(tree):
    root = tree("4:memory:/y\n1:cpu,cpuacct:/x\n0::/\n", V1)
    with entered(QUOTA, root) as made:
        cpu, memory = made
        assert cpu.parent == root / "sys/fs/cgroup/cpu/x"
        assert (cpu / "cpu.cfs_quota_us").read_text() == "200000"
        assert (memory / "memory.limit_in_bytes").read_text() == str(512 << 20)
        (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
        assert is_out_of_memory(QUOTA, made)


# ---- no right -----------------------------------------------------------------------


def test_without_a_right_it_says_what_was_refused_and_how_to_get_it(tree, monkeypatch):
    def refuse(self, *args, **named):
        raise PermissionError(13, "Permission denied")

    root = tree("0::/\n", {"": V2_FILES})
    monkeypatch.setattr(Path, "mkdir", refuse)
    with (
        pytest.raises(UsageError, match=r"Permission denied.*as root.*Delegate=yes"),
        entered(QUOTA, root),
    ):
        pass


def test_groups_of_a_process_that_is_gone_are_removed(tree):
    root = tree("0::/\n", {"": V2_FILES})
    stale = root / "sys/fs/cgroup/hztune-999999999-0"
    alive = root / f"sys/fs/cgroup/hztune-{os.getpid()}-999999"
    stale.mkdir()
    alive.mkdir()
    with entered(QUOTA, root):
        assert not stale.exists()
        assert alive.exists()


# ---- the kernel of this machine ------------------------------------------------------------------

TAKES = "import os, sys; block = bytearray(int(os.environ.get('KNOB_knob', 8)) << 20)\n"
IS_INSIDE = "sys.exit('hztune-' not in open('/proc/self/cgroup').read())"


@real
def test_a_program_is_measured_by_runs_each_in_a_container_that_goes_with_it():
    said = []
    words = (sys.executable, "-I", "-S", "-c", TAKES + IS_INSIDE)
    program = described(words, memory="64M", timeout=20.0, warmup=0)
    executor = ProgramExecutor(program, seed=1, identity=OpenProof(), say=said.append)
    arms = [CONTROL, Arm.of("any", {"knob": 200})]
    small, large = executor.measure(arms, role="aa", rounds=1, number=0).outcomes
    assert said == ["measured by whole runs, one after the other: each in 64M of memory"]
    assert small.ok, small.detail
    told = "the kernel ended it for want of memory, in 64M of memory"
    assert (large.status, large.detail) == ("oom", told)
    left = Path("/sys/fs/cgroup").glob(f"**/hztune-{os.getpid()}-*")
    assert [folder for folder in left if folder.is_dir()] == []


# ---- what is asked, and what a profile says ------------------------------------------------------


def test_a_claim_is_measured_again_in_its_container_and_in_no_other(make_profile):
    of = WorkloadId("program", "true", "", {})
    made = make_profile(objective=Objective("wall_s", {}, quota=QUOTA), workload=of, threads=0)
    program = described(("true",))
    assert targets(made, [program]) == [replace(program, quota=QUOTA)]
    with pytest.raises(UsageError, match="proved in 2 CPUs and 512M of memory, and --memory 256M"):
        targets(made, [replace(program, quota=Quota(None, 256 << 10))])
