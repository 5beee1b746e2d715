"""The spaces of the foreign allocators fit every version, and hold only what takes effect."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from hztune import allocator, space
from hztune.allocator import Installed
from hztune.allocator.tables import tables
from hztune.params import Value
from hztune.space.load import find

SEED = 20260131
VERSIONS = {name: table.sources for name, table in tables().items() if table.rows}
EVERY = [(name, version) for name, versions in VERSIONS.items() for version in versions]


def _space(adapter, installed, **facts):
    return space.load(
        adapter.name,
        adapter.knobs(installed),
        check=lambda config: adapter.check(config, installed),
        facts={"cpus": 2, "threads": 8, **facts},
    )


def _of(name, version):
    return allocator.get(name), Installed(name, version, "lib.so", Path(), "", "")


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_a_space_fits_every_version_and_holds_default_and_presets(name, version):
    read = _space(*_of(name, version))
    assert (read.allocator, bool(read.dimensions)) == (name, True)
    configs = [{}, *(preset.config for preset in read.presets)]
    assert [config for config in configs if not read.contains(config)] == []


@pytest.mark.parametrize("name", VERSIONS)
def test_what_is_proposed_takes_effect_in_a_process(name):
    adapter, installed = allocator.get(name), allocator.states()[name]
    if not isinstance(installed, Installed):
        pytest.skip(str(installed))
    read = _space(adapter, installed)
    rng = Random(SEED)
    proposed = [dict(preset.config) for preset in read.presets]
    proposed += [read.sample(rng) for _ in range(10)]
    for config in proposed:
        answers = adapter.read_back(adapter.environment(config, installed), installed)
        adapter.verify(config, answers)


@pytest.mark.parametrize(
    ("name", "version", "knob"), [("glibc", "2.36", "arena_max"), ("jemalloc", "5.3.0", "narenas")]
)
def test_arenas_follow_the_cpus_that_a_quota_leaves(name, version, knob):
    adapter, installed = _of(name, version)
    for cpus in (1, 6):
        read = _space(adapter, installed, cpus=cpus)
        configs = {preset.name: preset.config for preset in read.presets}
        assert configs["arena-per-cpu"] == {knob: cpus}


NEVER: dict[str, dict[str, Value]] = {
    "glibc": {"trim_threshold": 1 << 30},
    "jemalloc": {"dirty_decay_ms": -1, "muzzy_decay_ms": -1},
    "mimalloc": {"allow_decommit": "0", "purge_delay": -1},
    "tcmalloc": {"release_rate_percent": 0},
}
RETURNS_MOST: dict[str, dict[str, Value]] = {
    "glibc": {"arena_max": 2},
    "jemalloc": {"dirty_decay_ms": 0},
    "mimalloc": {"purge_delay": 0},
    "tcmalloc": {"aggressive_decommit": "true"},
}


@pytest.mark.parametrize(("name", "version"), [each for each in EVERY if each[0] in NEVER])
def test_what_keeps_memory_is_only_tried_when_asked_for(name, version):
    def in_reach(read):
        tried = {each.name: {*each.values} for each in read.dimensions}
        for knob, value in (item for preset in read.presets for item in preset.config.items()):
            tried.setdefault(knob, set()).add(value)
        return [knob for knob, value in NEVER[name].items() if value in tried.get(knob, ())]

    usual, allowed = (_space(*_of(name, version), keeping=keeping) for keeping in (0, 1))
    assert usual.returning[0].config.items() >= RETURNS_MOST[name].items()
    assert in_reach(usual) == []
    assert in_reach(allowed) or (name, version >= "2.1") == ("mimalloc", True)


BACKGROUND: dict[str, Value] = {"background_thread": "true"}
FOLKLORE: dict[str, list[dict[str, Value]]] = {
    "glibc": [
        {"arena_max": 2},  # MALLOC_ARENA_MAX=2
        {"arena_max": 1},
        {"mmap_threshold": 131072, "trim_threshold": 131072},  # MALLOC_TRIM_THRESHOLD_=131072
        {"top_pad": 128 << 20},  # MALLOC_TOP_PAD_=134217728
    ],
    "jemalloc": [
        {"narenas": 2},
        {"dirty_decay_ms": 0, "muzzy_decay_ms": 0},
        BACKGROUND,
        BACKGROUND | {"dirty_decay_ms": 1000, "muzzy_decay_ms": 0},
        BACKGROUND | {"metadata_thp": "auto", "dirty_decay_ms": 30000, "muzzy_decay_ms": 30000},
    ],
    "mimalloc": [{"purge_delay": 0}],  # MIMALLOC_PURGE_DELAY=0
    "tcmalloc": [
        {"max_total_thread_cache_bytes": 128 << 20},  # Ceph's 128 MB
        {"release_rate_percent": 0},
        {"release_rate_percent": 1000},  # TCMALLOC_RELEASE_RATE=10
        {"aggressive_decommit": "true"},
    ],
}


@pytest.mark.parametrize("name", FOLKLORE)
def test_what_people_set_by_hand_is_among_the_presets_with_its_reason_and_source(name):
    presets = _space(*_of(name, VERSIONS[name][-1]), keeping=1).presets
    configs = [dict(preset.config) for preset in presets]
    assert [advice for advice in FOLKLORE[name] if advice not in configs] == []
    assert all(len(preset.why) > 20 for preset in presets)
    lines = find(name).read_text().splitlines()
    before = [lines[at - 1] for at, line in enumerate(lines) if line == "[[preset]]"]
    assert all(line.startswith("# ") and len(line) > 10 for line in before)
    assert name != "glibc" or configs[0] == {"arena_max": 2}


@pytest.mark.parametrize("version", VERSIONS["glibc"])
def test_no_proposal_freezes_half_of_the_thresholds_of_glibc(version):
    read, rng = _space(*_of("glibc", version)), Random(SEED)
    for full in (read.full(read.sample(rng)) for _ in range(100)):
        assert (full["mmap_threshold"] == "auto") == (full["trim_threshold"] == "auto")


@pytest.mark.parametrize("both", [{}, {"mmap_threshold": 1 << 20, "trim_threshold": 1 << 20}])
def test_top_pad_alone_is_in_reach_and_its_price_is_told(both):
    read = _space(*_of("glibc", "2.36"))
    config = {"top_pad": 128 << 20, **both}
    assert read.contains(config)
    assert any("128 KiB" in risk for _, risk in read.known_risks(config)) == (not both)
