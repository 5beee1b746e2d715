"""What every adapter keeps, whatever the allocator: the conformance suite, walked over names()."""

from __future__ import annotations

import hashlib
import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hztune import allocator, process
from hztune.allocator import Adapter, Config, Installed, WrongConfiguration, knobs, probe
from hztune.allocator.base import ALPHABET
from hztune.allocator.glibc import TABLE as GLIBC
from hztune.allocator.jemalloc import TABLE as JEMALLOC
from hztune.allocator.library import Library
from hztune.allocator.mimalloc import TABLE as MIMALLOC
from hztune.allocator.tcmalloc import TABLE as TCMALLOC
from hztune.errors import UsageError
from hztune.measure.ending import ending_fault
from hztune.params import Param, Value

#: Only measured when a user has built or installed them; a stand-in shows that they would be found.
OPTIONAL = {
    "tbb": "libtbbmalloc_proxy.so.2",
    "snmalloc": "libsnmallocshim.so",
    "rpmalloc": "librpmalloc.so",
}
TABLES = {"glibc": GLIBC, "jemalloc": JEMALLOC, "mimalloc": MIMALLOC, "tcmalloc": TCMALLOC}
LIBRARIES = [name for name in allocator.names() if isinstance(allocator.get(name), Library)]
PRELOADED = [*LIBRARIES, "hz"]
TUNABLE = [
    name
    for name in allocator.names()
    if allocator.get(name).knobs(Installed(name, "99.0", "lib.so", Path(), "", ""))
]
CONFIRMING = [name for name in allocator.names() if allocator.get(name).confirms]

Find = Callable[[str], tuple[Adapter, Installed]]


@pytest.fixture(scope="module")
def find(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Find]:
    """Finds an allocator once; where an optional one is not installed, a library of its name is."""
    found: dict[str, tuple[Adapter, Installed]] = {}
    with pytest.MonkeyPatch.context() as patch:

        def get(name: str) -> tuple[Adapter, Installed]:
            if name not in found:
                adapter = allocator.get(name)
                if name in OPTIONAL:
                    _stand_in(adapter, OPTIONAL[name], tmp_path_factory.mktemp(name), patch)
                found[name] = adapter, adapter.installed()
            return found[name]

        yield get


def _stand_in(adapter: Adapter, soname: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    try:
        adapter.installed()
    except UsageError:
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / soname)]
        subprocess.run(command, input="int stand_in;", text=True, check=True, timeout=60)
        patch.setenv("LD_LIBRARY_PATH", str(folder), prepend=":")


def _values(param: Param) -> list[Value]:
    """Every word, or both ends of the range."""
    return list(param.choices) if param.kind == "enum" else [param.low, param.high]


def _legal(adapter: Adapter, installed: Installed, config: Config) -> bool:
    try:
        adapter.check(config, installed)
    except UsageError:
        return False
    return True


def _around(name: str, param: Param, value: Value) -> dict[str, Value]:
    """The smallest configuration that sets one knob: two of glibc's thresholds need each other."""
    group = ("mmap_threshold", "trim_threshold")
    if name == "glibc" and param.name in group:
        return {**dict.fromkeys(group, 1 << 20), param.name: value}
    return {param.name: value}


def _single_settings(name: str, adapter: Adapter, installed: Installed) -> list[dict[str, Value]]:
    """Each knob at each of its ends, where the rest at its default allows it."""
    return [
        config
        for param in adapter.knobs(installed)
        for value in _values(param)
        if _legal(adapter, installed, config := _around(name, param, value))
    ]


# ---- finding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRELOADED)
def test_an_installed_allocator_is_found_with_its_file_version_and_hash(
    name: str, find: Find
) -> None:
    _, installed = find(name)
    assert installed.name == name
    assert installed.path.is_file()
    assert installed.sha256 == hashlib.sha256(installed.path.read_bytes()).hexdigest()
    if name not in OPTIONAL:
        assert re.fullmatch(r"\d+(\.\d+)+", installed.version)


def test_glibc_is_found_without_anything_to_preload(find: Find) -> None:
    adapter, installed = find("glibc")
    assert installed.path.name.startswith("libc")
    assert installed.preload == ""
    assert "LD_PRELOAD" not in adapter.environment({"arena_max": 2}, installed)


def test_the_unchanged_program_gets_no_variable_and_loses_none(find: Find) -> None:
    adapter, installed = find("none")
    assert adapter.environment({}, installed) == {}
    assert adapter.variables() == ()


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_allocator_is_refused_with_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = allocator.get(name)
    monkeypatch.setattr(type(adapter), "sonames", (("libhztune-has-no-such.so.1", ""),))
    with pytest.raises(UsageError, match="not installed") as refusal:
        adapter.installed()
    remedy = f"apt-get install {adapter.package}" if adapter.package else "no Debian package"
    assert remedy in str(refusal.value)


def test_an_unknown_allocator_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean jemalloc"):
        allocator.get("jemaloc")


def test_what_is_available_is_what_can_be_found(find: Find) -> None:
    available = {installed.name for installed in allocator.available()}
    assert available >= {"none", "glibc", "jemalloc", "mimalloc", "tcmalloc", "hz"}


def test_an_allocator_that_cannot_be_used_is_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = type(allocator.get("jemalloc"))
    monkeypatch.setattr(broken, "sonames", (("libhztune-has-no-such.so.1", ""),))
    monkeypatch.setattr(type(allocator.get("hz")), "installed", _is_broken)
    states = allocator.states()
    assert list(states) == list(allocator.names())
    assert "apt-get install libjemalloc2" in str(states["jemalloc"])
    assert "broken" in str(states["hz"])
    assert not {"jemalloc", "hz"} & {installed.name for installed in allocator.available()}


def _is_broken(_: Adapter) -> Installed:
    raise WrongConfiguration("the library is broken")


# ---- knobs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TUNABLE)
def test_every_knob_says_type_range_unit_default_and_purpose(name: str, find: Find) -> None:
    adapter, installed = find(name)
    described = adapter.knobs(installed)
    assert described
    assert len({param.name for param in described}) == len(described)
    for param in described:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", param.name)
        assert len(param.doc) > 10
        assert (
            (param.default == "auto") == param.may_be_auto
            or param.default in _values(param)
            or (isinstance(param.default, int) and param.low <= param.default <= param.high)
        )
        assert bool(param.unit) == (param.kind == "int")


@pytest.mark.parametrize("name", TUNABLE)
def test_a_process_left_alone_runs_with_the_documented_defaults(name: str, find: Find) -> None:
    adapter, installed = find(name)
    answers = adapter.read_back(adapter.environment({}, installed), installed)
    stated = {p.name: p.default for p in adapter.knobs(installed) if p.default != "auto"}
    readable = stated.keys() - (adapter.unreadable() - answers.keys())
    assert {knob: answers[knob] for knob in readable} == {knob: stated[knob] for knob in readable}


@pytest.mark.parametrize("name", TABLES)
def test_in_no_version_a_knob_or_an_option_stands_twice(name: str) -> None:
    borders = {row.since for row in TABLES[name]} | {row.before for row in TABLES[name]}
    for version in borders:
        rows = [row for row in TABLES[name] if row.holds(version)]
        assert len({row.param.name for row in rows}) == len(rows), version
        assert len({row.option for row in rows}) == len(rows), version


@pytest.mark.parametrize(
    ("name", "version", "knob", "option", "default"),
    [
        ("mimalloc", "2.0.9", "purge_delay", "decommit_delay", 25),
        ("mimalloc", "2.1.7", "purge_delay", "purge_delay", 10),
        ("mimalloc", "3.4.3", "purge_delay", "purge_delay", 1000),
        ("mimalloc", "2.1.7", "reclaim_on_free", "abandoned_reclaim_on_free", "1"),
        ("mimalloc", "3.4.3", "reclaim_on_free", "page_reclaim_on_free", "0"),
        ("mimalloc", "2.0.9", "arena_reserve", None, None),
        ("mimalloc", "3.4.3", "eager_commit", None, None),
        ("jemalloc", "5.2.1", "tcache_max", None, None),
        ("jemalloc", "5.3.0", "cache_oblivious", None, None),
        ("jemalloc", "5.3.1", "cache_oblivious", "cache_oblivious", "true"),
        ("glibc", "2.34", "hugetlb", None, None),
        ("glibc", "2.43", "mxfast", None, None),
        ("glibc", "2.43", "tcache_count", "tcache_count", 16),
    ],
)
def test_a_knob_is_what_that_version_of_the_allocator_has(
    name: str, version: str, knob: str, option: str | None, default: Value | None
) -> None:
    rows = [row for row in knobs.rows_of(TABLES[name], version) if row.param.name == knob]
    assert [(row.option, row.param.default) for row in rows] == (
        [(option, default)] if option else []
    )


@pytest.mark.parametrize(
    ("name", "version", "knob", "high"),
    [
        ("jemalloc", "5.3.0", "tcache_max", 8388608),
        ("jemalloc", "5.3.1", "tcache_max", 32768),
        ("glibc", "2.36", "tcache_max", 1032),
        ("glibc", "2.42", "tcache_max", 4194280),
    ],
)
def test_a_range_is_what_that_version_keeps_unclipped(
    name: str, version: str, knob: str, high: int
) -> None:
    ranges = {row.param.name: row.param.high for row in knobs.rows_of(TABLES[name], version)}
    assert ranges[knob] == high


# ---- configuration -> environment -> effect -----------------------------------------------------


@pytest.mark.parametrize("name", TUNABLE)
def test_every_knob_takes_effect_at_both_ends_of_its_range(name: str, find: Find) -> None:
    adapter, installed = find(name)
    settings = _single_settings(name, adapter, installed)
    untried = {p.name for p in adapter.knobs(installed)} - {
        k for config in settings for k in config
    }
    assert not untried
    for config in settings:
        answers = adapter.read_back(adapter.environment(config, installed), installed)
        adapter.verify(config, answers)


@pytest.mark.parametrize("name", TUNABLE)
def test_what_variables_ask_for_is_read_from_their_text_alone(
    name: str, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, installed = find(name)
    monkeypatch.setattr(process, "run", _must_not_run)
    for config in _single_settings(name, adapter, installed):
        asked = {each: value for each, value in config.items() if not adapter.is_left(each, value)}
        assert adapter.requested(adapter.environment(config, installed), installed) == asked


@pytest.mark.parametrize("name", allocator.names())
def test_variables_name_everything_that_may_be_set(name: str, find: Find) -> None:
    adapter, installed = find(name)
    everything = {p.name: p.default for p in adapter.knobs(installed)}
    for config in [{}, everything, *_single_settings(name, adapter, installed)]:
        environment = adapter.environment(config, installed)
        assert set(adapter.confirm_environment(environment)) <= set(adapter.variables())
        assert set(environment) <= set(adapter.variables())


@pytest.mark.parametrize("name", allocator.names())
def test_values_hold_only_characters_that_every_export_can_write(name: str, find: Find) -> None:
    adapter, installed = find(name)
    for config in [{}, *_single_settings(name, adapter, installed)]:
        for value in adapter.environment(config, installed).values():
            assert ALPHABET.fullmatch(value)


def test_a_library_under_a_path_that_an_export_could_not_write_is_refused(find: Find) -> None:
    adapter, installed = find("hz")
    with pytest.raises(UsageError, match="plain path"):
        adapter.environment({}, replace(installed, preload="/home/a b/libhz.so"))


@pytest.mark.parametrize("name", TUNABLE)
def test_auto_leaves_the_choice_to_the_allocator(name: str, find: Find) -> None:
    adapter, installed = find(name)
    left = {p.name: p.default for p in adapter.knobs(installed) if p.may_be_auto}
    written = adapter.environment(left, installed)
    if name == "hz":
        assert set(written.values()) == {"auto", installed.preload}
    else:
        assert written == adapter.environment({}, installed)
    adapter.verify(left, adapter.read_back(written, installed))


@pytest.mark.parametrize("name", PRELOADED)
def test_a_program_that_is_linked_with_the_allocator_needs_no_preload(
    name: str, find: Find
) -> None:
    adapter, installed = find(name)
    assert "LD_PRELOAD" in adapter.environment({}, installed)
    assert "LD_PRELOAD" not in adapter.environment({}, installed, preload=False)


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TUNABLE)
def test_what_is_out_of_range_is_refused_before_anything_runs(
    name: str, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, installed = find(name)
    monkeypatch.setattr(process, "run", _must_not_run)
    for param in adapter.knobs(installed):
        wrong: list[Value] = ["", " ", "64k", "0x10", "a b", "$HOME", "1,narenas:2", True]
        wrong += ["nonsense"] if param.kind == "enum" else [param.low - 1, param.high + 1, "2"]
        for value in wrong:
            with pytest.raises(UsageError):
                adapter.environment(_around(name, param, value), installed)


@pytest.mark.parametrize("name", TUNABLE)
def test_a_misspelt_knob_is_refused_with_the_nearest_one(
    name: str, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, installed = find(name)
    monkeypatch.setattr(process, "run", _must_not_run)
    knob = adapter.knobs(installed)[0].name
    with pytest.raises(UsageError, match=f"did you mean {knob}"):
        adapter.environment({f"{knob}x": 1}, installed)


def _must_not_run(*_: object, **__: object) -> None:
    raise AssertionError("a process was started for a configuration that is not legal")


# ---- read-back is real --------------------------------------------------------------------------


@pytest.mark.parametrize("name", TUNABLE)
def test_one_knob_that_was_changed_on_the_way_is_noticed(name: str, find: Find) -> None:
    adapter, installed = find(name)
    settings = _single_settings(name, adapter, installed)
    for asked, got in itertools.pairwise(settings):
        knob = next(iter(asked.keys() - {"mmap_threshold", "trim_threshold"}), None)
        if knob is None or knob not in got or asked[knob] == got[knob]:
            continue
        answers = adapter.read_back(adapter.environment(got, installed), installed)
        if knob in answers:
            with pytest.raises(WrongConfiguration, match=f"{knob}="):
                adapter.verify(asked, answers)


@pytest.mark.parametrize("name", [n for n in PRELOADED if n != "mimalloc" and n != "hz"])
def test_a_process_under_another_library_is_noticed(name: str, find: Find) -> None:
    adapter, installed = find(name)
    other = {**adapter.environment({}, installed), "LD_PRELOAD": ""}
    with pytest.raises(WrongConfiguration):
        adapter.read_back(other, installed)


@pytest.mark.parametrize("name", CONFIRMING)
def test_a_confirming_process_says_at_its_start_what_it_runs_with(name: str, find: Find) -> None:
    adapter, installed = find(name)
    for config in _single_settings(name, adapter, installed)[:4]:
        environment = adapter.environment(config, installed)
        said = adapter.confirmed(probe.run_true(adapter.confirm_environment(environment)).stderr)
        assert said is not None
        adapter.verify(config, said)
        assert adapter.confirmed(probe.run_true(environment).stderr) is None


@pytest.mark.parametrize("name", CONFIRMING)
def test_processes_that_confirm_different_settings_are_noticed(name: str, find: Find) -> None:
    adapter, installed = find(name)
    param = next(p for p in adapter.knobs(installed) if p.kind == "int" and p.low != p.high)
    said = ""
    for value in _values(param):
        config = {param.name: value}
        if _legal(adapter, installed, config):
            environment = adapter.confirm_environment(adapter.environment(config, installed))
            said += probe.run_true(environment).stderr
    other = adapter.confirm_environment(adapter.environment({}, installed))
    with pytest.raises(WrongConfiguration):
        adapter.confirmed(said + probe.run_true(other).stderr)


@pytest.mark.parametrize("name", CONFIRMING)
def test_what_an_allocator_says_of_itself_is_no_last_word_of_a_program(
    name: str, find: Find
) -> None:
    adapter, installed = find(name)
    said = adapter.confirm_environment(adapter.environment({}, installed))
    words = [sys.executable, "-I", "-S", "-c", "import sys; sys.exit('no such order')"]
    done = process.run(words, env=said, deadline_s=30)
    ended = ending_fault("failed", 0, done.code, done.stderr)
    assert ended.detail == "exit status 1: no such order"
    assert ending_fault("failed", 0, 0, probe.run_true(said).stderr).detail == "exit status 0"


def test_a_process_whose_allocator_refuses_a_setting_has_not_crashed(find: Find) -> None:
    adapter, installed = find("jemalloc")
    refused = {**adapter.environment({}, installed), "MALLOC_CONF": "none:1"}
    said = probe.run_true(adapter.confirm_environment(refused)).stderr
    fault = ending_fault("crash", signal.SIGABRT, 0, said)
    assert (fault.status, fault.detail) == (
        "rejected",
        "jemalloc refuses it: Invalid conf pair: none:1",
    )
    assert ending_fault("crash", signal.SIGABRT, 0, "assertion failed").status == "crash"


@pytest.mark.parametrize("name", CONFIRMING)
def test_output_of_the_program_is_no_confirmation(name: str) -> None:
    assert allocator.get(name).confirmed("starting up\nnarenas:4\n{}\n") is None


@pytest.mark.parametrize("name", TUNABLE)
def test_variables_of_the_user_that_would_disturb_are_named(name: str, find: Find) -> None:
    adapter, installed = find(name)
    config = _single_settings(name, adapter, installed)[0]
    left_over = adapter.environment(config, installed, preload=False)
    assert adapter.disturbing({**left_over, "PATH": "/bin"}) == tuple(sorted(left_over))
