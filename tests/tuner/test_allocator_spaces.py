"""The spaces of the foreign allocators fit every version, and hold only what takes effect."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from hztune import allocator, space
from hztune.allocator import Installed
from hztune.allocator.tables import tables
from hztune.params import Value

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
