"""A study on a Dask cluster: a real scheduler and processes, simulated measurements."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from hztune.blocks import Arm
from hztune.errors import HztuneError, UsageError
from hztune.measure import cluster
from hztune.measure.cluster import ALLOWED, Target
from hztune.measure.identity import AllocatorIdentity
from hztune.measure.program import described
from hztune.progress import Reporter
from hztune.store.log import SAMPLES, recording
from hztune.tuning import session
from hztune.tuning.request import TuneRequest, understand
from hztune.workload import WorkloadSpec

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
LARSON = WorkloadSpec.from_text("larson", (), 2)


@pytest.fixture(scope="module")
def workers():
    """A cluster of three workers, which are started again when they are killed."""
    own = {"distributed.nanny.pre-spawn-environ": {}}  # else Dask sets glibc's trim threshold here
    with (
        dask.config.set(own),
        distributed.LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            dashboard_address=None,
            preload=[str(Path(__file__).with_name("simulated_worker.py"))],
            silence_logs=50,
        ) as started,
    ):
        yield started


@pytest.mark.slow
def test_a_study_comes_to_its_verdict_and_keeps_each_block_though_workers_are_killed(
    workers, tmp_path, core_build, monkeypatch
):
    """Only four are killed: each takes seconds to start again, and without one nothing goes on."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))

    # a second is a hundred lines of its log: what the machine does beside changes none
    def log_s():
        return (tmp_path / SAMPLES).read_bytes().count(b"\n") / 100.0

    monkeypatch.setattr(session, "system_clock", log_s)
    chance, over, killed = Random(1), threading.Event(), []

    def kill():
        while not over.wait(0.3) and len(killed) < 4:
            pids = [each.pid for each in workers.workers.values() if each.pid]
            if len(workers.scheduler.workers) == 3:  # those killed before are there again
                killed.append(chance.choice(pids))
                os.kill(killed[-1], signal.SIGKILL)

    address = workers.scheduler_address
    request = TuneRequest(LARSON, budget_s=200.0, trials=60, out=tmp_path, on=address)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        result = session.tune(understand(request), Reporter())
    finally:
        over.set()
        killer.join()
    assert (result.profile.claim.verdict, result.profile.params) == ("improved", {"thp": "on"})
    numbers = [block.number for block in recording(tmp_path).blocks]
    assert killed and len({*numbers}) == len(numbers)


def test_a_worker_measures_nothing_that_it_was_not_started_for(monkeypatch):
    target = Target((described(("/bin/true",)),), seed=1, processes=7)
    with pytest.raises(UsageError, match="was not started for '/bin/true'"):
        target.refuse_strangers()
    monkeypatch.setenv(ALLOWED, "/srv/a:/bin/true")
    target.refuse_strangers()
    for option in ("prepare", "cleanup", "check", "metric_cmd"):
        program = described(("/bin/true",), **{option: "rm x"})
        with pytest.raises(UsageError, match="no worker takes"):
            replace(target, targets=(program,)).refuse_strangers()
        with pytest.raises(UsageError, match="--metric-cmd and --on exclude each other"):
            understand(TuneRequest(program=program, on="tcp://host:1"))
    server = described(server="/bin/true {port}", load="true {port}")
    with pytest.raises(UsageError, match="no worker takes"):
        replace(target, targets=(server,)).refuse_strangers()


def test_what_dask_sets_for_its_workers_reaches_no_control(monkeypatch):
    before = {"MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "4"}
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    told = {"MALLOC_TRIM_THRESHOLD_": 65536, "OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1}
    with dask.config.set({"distributed.nanny.pre-spawn-environ": told}):
        cluster.forget_settings_of_dask()
    identity = AllocatorIdentity()
    given = {**identity.base, **identity.prepare(Arm("none"))}
    assert {name: given.get(name) for name in before} == {
        "MALLOC_TRIM_THRESHOLD_": None,
        "OMP_NUM_THREADS": None,
        "MKL_NUM_THREADS": "4",  # the user's own
    }


@pytest.mark.slow
def test_a_scheduler_that_is_not_there_and_one_without_workers_are_told(monkeypatch):
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty,
        cluster.cluster(empty.scheduler_address) as client,
        pytest.raises(HztuneError, match="has no worker"),
    ):
        cluster.first_machine(client)
    at_once, hurried = distributed.Client, {"timeout": 0.1}
    monkeypatch.setattr(distributed, "Client", lambda at, **more: at_once(at, **more | hurried))
    with pytest.raises(UsageError, match="no scheduler"), cluster.cluster("tcp://127.0.0.1:9"):
        pass
