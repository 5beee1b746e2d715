"""What every adapter keeps, whatever the allocator: the conformance suite, walked over names()."""

import hashlib
import re
import signal
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import msgspec
import pytest

from hztune import allocator, artifacts, process
from hztune.allocator import WrongConfiguration, probe
from hztune.allocator.base import ALPHABET, read_table, tables
from hztune.comparing import contenders
from hztune.errors import UsageError
from hztune.measure.launch import ending_fault

from .conftest import Compiler

NAMES = allocator.names()
PRELOADED = [name for name in NAMES if name not in ("none", "glibc")]
FOREIGN = [name for name in PRELOADED if name != "hz"]
TABLES = [name for name, table in tables().items() if table.rows]
TUNABLE = [*TABLES, "hz"]
CONFIRMING = [name for name in NAMES if allocator.get(name).confirms]
THRESHOLDS = ("mmap_threshold", "trim_threshold")
SHORT_NAMES = Path(__file__).parents[2] / "core" / "bench" / "libraries.c"

STAND_IN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static size_t cache = 1572864, rate;
static char text[999];
static char *of(char *name, char *unset) { return getenv(name) ? getenv(name) : unset; }
void MallocExtension_Internal_SetMaxPerCpuCacheSize(int bytes) { cache = bytes; }
void MallocExtension_Internal_SetBackgroundReleaseRate(size_t bytes) { rate = bytes; }
void MallocExtension_Internal_ProcessBackgroundActions(void) {}
int MallocExtension_Internal_GetPerCpuCachesActive(void) {
    return !!strstr(of("GLIBC_TUNABLES", ""), "rseq=0");
}
void MallocExtension_Internal_GetStats(size_t *string) {
    const char *form = "\nPARAMETER tcmalloc_max_per_cpu_cache_size %zu"
        "\nPARAMETER malloc_release_bytes_per_sec %zu\nPARAMETER hpaa_subrelease %d"
        "\nPARAMETER size_class_config %s\nPARAMETER use_huge_region_more_often %d\n";
    string[0] = (size_t)text, string[1] = snprintf(text, sizeof text, form, cache, rate,
        *of("TCMALLOC_HPAA_CONTROL", "2") > '1',
        strlen(of("TCMALLOC_REUSE_SIZE_CLASSES", "")) == 5 ? "SIZE_CLASS_REUSE" :
        "SIZE_CLASS_REUSE_RELAXED_BELOW_64",
        *of("TCMALLOC_USE_HUGE_REGION_MORE_OFTEN_DISABLE", "0") == '0');
}
"""
"""The functions of google/tcmalloc, which Debian lacks, as far as its adapter needs them."""


class Found:
    """An allocator of this machine, and what its processes answered: each is asked once."""

    def __init__(self, adapter):
        self.adapter, self.installed = adapter, adapter.installed()
        self.knobs = adapter.knobs(self.installed)
        self.environment = partial(adapter.environment, installed=self.installed)
        self._read_back = cache(lambda items: adapter.read_back(dict(items), self.installed))

    def answers(self, config):
        return self._read_back(tuple(self.environment(config).items()))

    def is_legal(self, config):
        try:
            self.adapter.check(config, self.installed)
        except UsageError:
            return False
        return True

    def around(self, param, value):
        """The least that sets a knob: two of glibc's thresholds need each other."""
        needed = THRESHOLDS if param.name in THRESHOLDS else ()
        return {**dict.fromkeys(needed, 1 << 20), param.name: value}

    def single_settings(self):
        """Each knob at each of its ends, where the rest at its default allows it."""
        configs = (self.around(param, value) for param in self.knobs for value in ends(param))
        return [config for config in configs if self.is_legal(config)]


@pytest.fixture(scope="module")
def find(tmp_path_factory):
    """Finds an allocator once; where one without a package is missing, a library of its name is."""
    with pytest.MonkeyPatch.context() as patch:

        @cache
        def get(name):
            if name in FOREIGN and not tables()[name].package:
                _stand_in(allocator.get(name), tmp_path_factory.mktemp(name), patch)
            return Found(allocator.get(name))

        yield get


def _stand_in(adapter, folder, patch):
    try:
        adapter.installed()
    except UsageError:
        soname = adapter.table.libraries[0][0]
        (folder / soname).symlink_to(f"{soname}.0.1")
        Compiler(folder)(f"{soname}.0.1", STAND_IN, "-shared", "-fPIC")
        patch.setenv("LD_LIBRARY_PATH", str(folder), prepend=":")


@pytest.fixture
def no_process(find, monkeypatch):
    """None is started, once every allocator is found."""
    for name in NAMES:
        find(name)
    monkeypatch.setattr(process, "run", None)
    monkeypatch.setattr(probe, "ask", None)


def ends(param):
    """Every word, or both ends of the range."""
    return list(param.choices) if param.kind == "enum" else [param.low, param.high]


def without_library(name):
    """The adapter of an allocator whose library nobody has."""
    adapter = type(allocator.get(name))(tables()[name])
    adapter.table = msgspec.structs.replace(adapter.table, libraries=(("libnosuch.so.1", ""),))
    return adapter


# ---- the tables, and the places that must know an allocator --------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_in_no_version_a_knob_or_an_option_stands_twice(name):
    rows = tables()[name].rows
    for version in {version for row in rows for version in row.span}:
        held = [row for row in rows if row.holds(version)]
        assert len({row.name for row in held}) == len(held), version
        assert len({row.option for row in held}) == len(held), version


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_what_an_allocator_needs_beside_its_table_is_there(name):
    table = tables()[name]
    assert table.check, f"{name}.toml: check"
    assert table.file, f"{name}.toml: file"
    assert f'"{name}"' in SHORT_NAMES.read_text(), f"{SHORT_NAMES.name} lacks it"
    if table.rows:
        assert (artifacts.search_spaces() / f"{name}.toml").is_file(), "it lacks a search space"
        assert table.sources, f"{name}.toml: sources"


# ---- finding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRELOADED)
def test_an_installed_one_is_found_with_its_version_and_hash(name, find):
    installed = find(name).installed
    assert (installed.name, installed.path.is_file()) == (name, True)
    assert installed.sha256 == hashlib.sha256(installed.path.read_bytes()).hexdigest()
    if name in TUNABLE:
        assert re.fullmatch(r"\d+(\.\d+)+", installed.version)
    assert "LD_PRELOAD" in find(name).environment({})
    assert "LD_PRELOAD" not in find(name).environment({}, preload=False)


def test_a_wrong_table_is_refused_by_the_name_of_its_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("order = 1\n[[parameter]]\ndoc = 'a cache'\ndefault = 1\n")
    words = f"^{re.escape(str(path))}: rows\\[0\\]: missing required field name$"
    with pytest.raises(UsageError, match=words):
        read_table(path)


def test_an_allocator_that_cannot_be_used_is_listed_with_the_reason(monkeypatch):
    broken = {name: allocator.get(name) for name in ("none", "hz")}
    broken["jemalloc"] = without_library("jemalloc")
    monkeypatch.setattr(broken["hz"], "installed", without_library("tcmalloc").installed)
    monkeypatch.setattr(allocator, "_adapters", lambda: broken)
    states = allocator.states()
    assert "apt-get install libjemalloc2" in str(states["jemalloc"])
    assert "not installed" in str(states["hz"])
    assert [installed.name for installed in allocator.available()] == ["none"]


def test_a_path_with_a_colon_is_no_library(tmp_path, monkeypatch):
    library = tmp_path / "a:b" / "libhz.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setenv("HZTUNE_CORE", str(library.parent))
    for use in (allocator.get("hz").installed, lambda: contenders.parse([f"own={library}"])):
        with pytest.raises(UsageError, match="a path with a colon"):
            use()


# ---- configuration -> environment -> effect ------------------------------------------------------


@pytest.mark.parametrize("name", TUNABLE)
def test_a_process_left_alone_runs_with_the_documented_defaults(name, find):
    answers = find(name).answers({})
    stated = {p.name: p.default for p in find(name).knobs if p.default != "auto"}
    readable = stated.keys() - (tables()[name].unreadable - answers.keys())
    assert {knob: answers[knob] for knob in readable} == {knob: stated[knob] for knob in readable}


@pytest.mark.parametrize("name", TUNABLE)
def test_every_knob_takes_effect_and_another_value_is_noticed(name, find):
    found, untried, before = find(name), {param.name for param in find(name).knobs}, None
    for config in found.single_settings():
        answers = found.answers(config)
        found.adapter.verify(config, answers)
        untried -= config.keys()
        if before and config.keys() == before.keys() and config.keys() <= answers.keys():
            with pytest.raises(WrongConfiguration, match="was asked for"):
                found.adapter.verify(before, answers)
        before = config
    assert not untried


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_plain_and_read_back(name, find, no_process):
    found, adapter = find(name), find(name).adapter
    for config in [{}, *found.single_settings()]:
        environment = found.environment(config, preload=False)
        assert set(adapter.confirm_environment(environment)) <= set(adapter.variables())
        assert all(ALPHABET.fullmatch(value) for value in environment.values())
        assert adapter.disturbing({**environment, "PATH": "/bin"}) == tuple(sorted(environment))
        asked = {each: value for each, value in config.items() if not adapter.is_left(each, value)}
        assert adapter.requested(environment, found.installed) == asked


def test_a_library_under_a_path_that_an_export_could_not_write_is_refused(find):
    hz = find("hz")
    with pytest.raises(UsageError, match="plain path"):
        hz.adapter.environment({}, replace(hz.installed, preload="/home/a b/libhz.so"))


@pytest.mark.parametrize("name", TUNABLE)
def test_auto_leaves_the_choice_to_the_allocator(name, find):
    left = {p.name: p.default for p in find(name).knobs if p.may_be_auto}
    written = find(name).environment(left)
    if name == "hz":
        assert set(written.values()) == {"auto", find(name).installed.preload}
    else:
        assert written == find(name).environment({})
    find(name).adapter.verify(left, find(name).answers(left))


@pytest.mark.parametrize("name", TUNABLE)
def test_nothing_illegal_is_ever_run(name, find, no_process):
    found = find(name)
    for param in found.knobs:
        wrong = ["", " ", "64k", "0x10", "a b", "$HOME", "1,narenas:2", True]
        wrong += ["nonsense"] if param.kind == "enum" else [param.low - 1, param.high + 1, "2"]
        assert not any(found.is_legal(found.around(param, value)) for value in wrong)
    knob = found.knobs[0].name
    with pytest.raises(UsageError, match=f"did you mean {knob}"):
        found.environment({f"{knob}x": 1})


@pytest.mark.parametrize("name", TUNABLE)
def test_a_knob_that_a_process_could_tell_is_asked_of_it(name, find):
    adapter, unreadable = find(name).adapter, tables()[name].unreadable
    for config in find(name).single_settings():
        asked = {knob for knob, value in config.items() if not adapter.is_left(knob, value)}
        if not asked <= unreadable:
            with pytest.raises(WrongConfiguration, match="did not say"):
                adapter.verify(config, {})


@pytest.mark.parametrize("tunables", ["", "glibc.malloc.arena_max=2"])
def test_the_tcmalloc_of_google_where_glibc_keeps_rseq_is_noticed(tunables, find):
    found = find("google_tcmalloc")
    assert found.environment({})["GLIBC_TUNABLES"] == "glibc.pthread.rseq=0"
    for tell in (found.adapter.requested, found.adapter.read_back):
        with pytest.raises(WrongConfiguration, match="caches for threads, not for CPUs"):
            tell({"GLIBC_TUNABLES": tunables}, found.installed)


# ---- what a process says of itself ---------------------------------------------------------------


def said(found, config):
    return probe.run_true(found.adapter.confirm_environment(found.environment(config))).stderr


@pytest.mark.parametrize("name", CONFIRMING)
def test_a_process_says_what_it_runs_with(name, find):
    found = find(name)
    param = next(p for p in found.knobs if p.kind == "int" and p.low != p.high)
    configs = [{param.name: value} for value in ends(param) if found.is_legal({param.name: value})]
    spoken = [said(found, config) for config in configs]
    for config, each in zip(configs, spoken, strict=True):
        found.adapter.verify(config, found.adapter.confirmed(each))
    with pytest.raises(WrongConfiguration):
        found.adapter.confirmed("".join([*spoken, said(found, {})]))
    assert found.adapter.confirmed(probe.run_true(found.environment({})).stderr) is None
    assert found.adapter.confirmed("starting up\nnarenas:4\n{}\n") is None
    cut = 'HZ_CONFIRM {"pid":1,"conf\n'  # among those of very many processes
    assert found.adapter.confirmed(cut + spoken[0]) == found.adapter.confirmed(spoken[0])


@pytest.mark.parametrize("name", CONFIRMING)
def test_what_an_allocator_says_is_no_last_word(name, find):
    speaking = find(name).adapter.confirm_environment(find(name).environment({}))
    words = [sys.executable, "-I", "-S", "-c", "import sys; sys.exit('no such order')"]
    done = process.run(words, env=speaking, deadline_s=30)
    ended = ending_fault("failed", 0, done.code, done.stderr)
    assert ended.detail == "exit status 1: no such order"


def test_a_process_whose_allocator_refuses_a_setting_has_not_crashed(find):
    jemalloc = find("jemalloc")
    refused = {**jemalloc.environment({}), "MALLOC_CONF": "none:1"}
    spoken = probe.run_true(jemalloc.adapter.confirm_environment(refused)).stderr
    fault = ending_fault("crash", signal.SIGABRT, 0, spoken)
    told = "jemalloc refuses it: Invalid conf pair: none:1"
    assert (fault.status, fault.detail) == ("rejected", told)
    assert ending_fault("crash", signal.SIGABRT, 0, "assertion failed").status == "crash"


def test_of_two_settings_in_one_process_the_last_counts_and_of_two_processes_both():
    jemalloc = allocator.get("jemalloc")
    begin = '<jemalloc>: malloc_conf #1 (at build time): ""\n'
    first, second = (f"<jemalloc>: -- Set conf value: narenas:{n}\n" for n in (2, 3))
    assert jemalloc.confirmed(begin + first + second) == {"narenas": 3}
    with pytest.raises(WrongConfiguration, match="one process"):
        jemalloc.confirmed(begin + first + begin + second)
