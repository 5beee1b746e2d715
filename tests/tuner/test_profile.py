"""A profile comes back as it was written, and nothing else is taken for one."""

from __future__ import annotations

import json
import os
import random
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hztune import params, profile
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.params import Value
from hztune.profile import AllocatorId, Claim, MachineId, MemoryClaim, Profile

MakeProfile = Callable[..., Profile]
SEED = 20260131
MUTATIONS = 10_000
MOST_MEMORY_KIB = 64 * 1024


def body(made: Profile) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(profile.dumps(made))
    return held


def encoded(held: object) -> bytes:
    return json.dumps(held).encode()


# ---- what is written is what is read -------------------------------------------------------------


def test_a_profile_comes_back_as_it_was_saved(make_profile: MakeProfile, tmp_path: Path) -> None:
    made = make_profile()
    profile.save(made, tmp_path / "profile.json")
    assert profile.load(tmp_path / "profile.json") == made


def test_what_it_costs_in_memory_comes_back_with_the_suggested_limit(
    make_profile: MakeProfile,
) -> None:
    seen = (MemoryClaim(1.57, 1.5, 1.64), MemoryClaim(0.9, 0.8, 1.0, "kept"))
    made = make_profile(memory=seen, suggested_limit_kb=65536)
    assert profile.parse(profile.dumps(made).encode()) == made
    assert not {"memory", "suggested_limit_kb"} & body(make_profile()).keys()


@pytest.mark.parametrize(
    "claim",
    [
        Claim("ops_per_s", 1.5, 1.2, 1.9, 6, "improved"),
        Claim("ops_per_s", 0.9, 0.8, 1.1, 6, "interrupted"),
        Claim("ops_per_s", None, None, None, 0, "interrupted"),
        Claim("ops_per_s", None, None, None, 0, "infeasible"),
        Claim("ops_per_s", None, None, None, 0, "no_gain"),
    ],
)
def test_every_kind_of_result_can_be_kept(make_profile: MakeProfile, claim: Claim) -> None:
    config: dict[str, Value] = {} if claim.verdict == "no_gain" else {"magazine_cap": 512}
    made = make_profile(config, claim=claim)
    assert profile.parse(profile.dumps(made).encode()) == made


def test_no_gain_carries_the_defaults(make_profile: MakeProfile) -> None:
    none = Claim("ops_per_s", 1.0, 0.98, 1.02, 9, "no_gain")
    for config in ({}, params.defaults()):
        profile.parse(profile.dumps(make_profile(config, claim=none)).encode())
    with pytest.raises(UsageError, match="no_gain"):
        profile.parse(profile.dumps(make_profile({"magazine_cap": 512}, claim=none)).encode())


def test_every_legal_value_of_every_row_can_be_kept(make_profile: MakeProfile) -> None:
    for row in params.table():
        values = row.choices if row.kind == "enum" else (row.low, row.high)
        for value in values:
            try:
                params.check({row.name: value})
            except UsageError:
                continue  # legal only beside another row's value
            made = make_profile({row.name: value})
            assert profile.parse(profile.dumps(made).encode()) == made


def test_saving_leaves_no_other_file_behind(make_profile: MakeProfile, tmp_path: Path) -> None:
    for _ in range(2):
        profile.save(make_profile(), tmp_path / "profile.json")
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


def test_saving_over_a_symbolic_link_does_not_touch_what_it_points_to(
    make_profile: MakeProfile, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "profile.json").symlink_to(victim)
    profile.save(make_profile(), tmp_path / "profile.json")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "profile.json").is_symlink()


@pytest.mark.parametrize(
    "kind", ["device", "a link to one", "a link of the system", "name that cannot be"]
)
def test_what_is_no_file_is_refused_and_stays(
    make_profile: MakeProfile, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / ("a\0b" if kind == "name that cannot be" else "profile.json")
    if kind == "device":
        os.mkfifo(path)
    elif kind == "a link to one":
        path.symlink_to("/dev/zero")
    elif kind == "a link of the system":
        path.symlink_to("/proc/self/exe")  # as /dev/stdout where that is a file
    with pytest.raises(HztuneError, match="cannot write"):
        profile.save(make_profile(), path)
    assert not any(each.is_file() and not each.is_symlink() for each in tmp_path.iterdir())


def test_a_profile_that_could_not_be_read_back_is_never_written(
    make_profile: MakeProfile, tmp_path: Path
) -> None:
    wrong = structs.replace(make_profile(), created="yesterday")
    with pytest.raises(HztuneError, match="created"):
        profile.save(wrong, tmp_path / "profile.json")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_an_error_that_names_the_file(
    make_profile: MakeProfile, tmp_path: Path
) -> None:
    with pytest.raises(HztuneError, match=r"absent/profile\.json"):
        profile.save(make_profile(), tmp_path / "absent" / "profile.json")


def test_the_file_gets_the_permissions_of_the_users_mask(
    make_profile: MakeProfile, tmp_path: Path
) -> None:
    before = os.umask(0o027)
    try:
        profile.save(make_profile(), tmp_path / "profile.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "profile.json").stat().st_mode) == 0o640


def test_a_machine_with_odd_characters_in_its_name_can_be_kept(make_profile: MakeProfile) -> None:
    odd = replace(Machine.here(), cpu='Odd "CPU" */ \u2122 \n' + "x" * 200, thp="")
    made = make_profile(machine=MachineId.of(odd))
    assert made.machine.cpu.startswith("Odd -CPU- -/ - -xxx")
    assert profile.parse(profile.dumps(made).encode()) == made


FOREIGN: dict[str, tuple[AllocatorId, dict[str, Value]]] = {
    "glibc": (AllocatorId("glibc", "2.36", "", "c" * 64), {"arena_max": 2}),
    "jemalloc": (AllocatorId("jemalloc", "5.3.0", "libjemalloc.so.2", "c" * 64), {"narenas": 2}),
    "mimalloc": (AllocatorId("mimalloc", "2.0.9", "libmimalloc.so.2.0", ""), {"purge_delay": 0}),
    "tcmalloc": (
        AllocatorId("tcmalloc", "2.10", "libtcmalloc_minimal.so.4", ""),
        {"max_total_thread_cache_bytes": 67108864},
    ),
    "tbb": (AllocatorId("tbb", "2021.8.0", "libtbbmalloc_proxy.so.2", ""), {}),
    "snmalloc": (AllocatorId("snmalloc", "", "libsnmallocshim.so", ""), {}),
    "rpmalloc": (AllocatorId("rpmalloc", "", "librpmallocwrap.so", ""), {}),
    "none": (AllocatorId("none", "", "", ""), {}),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_profile_of_another_allocator_can_be_kept_where_that_is_not_installed(
    name: str, make_profile: MakeProfile
) -> None:
    identity, config = FOREIGN[name]
    made = make_profile(config, allocator=identity)
    assert profile.parse(profile.dumps(made).encode()) == made
    assert "LD_PRELOAD" not in made.environment
    assert set(made.environment) <= set(made.adapter.variables())


@pytest.mark.parametrize("name", [name for name in FOREIGN if name not in ("none", "glibc")])
def test_a_library_of_one_allocator_cannot_pass_for_another(
    name: str, make_profile: MakeProfile
) -> None:
    identity, config = FOREIGN[name]
    made = make_profile(config, allocator=structs.replace(identity, soname="libhz.so"))
    with pytest.raises(UsageError, match=r"allocator\.soname"):
        profile.parse(profile.dumps(made).encode())


@pytest.mark.parametrize("name", [name for name, (_, config) in FOREIGN.items() if config])
@pytest.mark.parametrize(
    "value", ["2,junk:true", "2:glibc.malloc.check=3", "2\nX=1", "$(id)", "", -7, True]
)
def test_a_value_cannot_smuggle_a_second_setting_into_another_allocator(
    name: str, value: Value, make_profile: MakeProfile
) -> None:
    identity, config = FOREIGN[name]
    held = body(make_profile(config, allocator=identity))
    held["params"] = dict.fromkeys(config, value)
    with pytest.raises(UsageError):
        profile.parse(encoded(held))


# ---- what is refused -----------------------------------------------------------------------------


def changed(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """An edit that puts `value` at `path` ("result.ratio")."""

    def edit(held: dict[str, Any]) -> None:
        *outer, last = path.split(".")
        for key in outer:
            held = held[key]
        held[last] = value

    return edit


def without(path: str) -> Callable[[dict[str, Any]], None]:
    """An edit that removes the key at `path`."""

    def edit(held: dict[str, Any]) -> None:
        *outer, last = path.split(".")
        for key in outer:
            held = held[key]
        del held[last]

    return edit


HOSTILE_EDITS = {
    "schema of tomorrow": changed("schema", "hztune-profile/2"),
    "schema missing": without("schema"),
    "schema as a number": changed("schema", 1),
    "unknown key": changed("command", "rm -rf /"),
    "unknown key within": changed("allocator.path", "/tmp/evil.so"),
    "unknown allocator": changed("allocator.name", "evil"),
    "allocator as a path": changed("allocator.name", "../hz"),
    "library by path": changed("allocator.soname", "/tmp/libhz.so"),
    "library by relative path": changed("allocator.soname", "../libhz.so"),
    "another library": changed("allocator.soname", "libevil.so"),
    "two libraries": changed("allocator.soname", "libhz.so:libevil.so"),
    "library with an origin": changed("allocator.soname", "$ORIGIN/libhz.so"),
    "library with a blank": changed("allocator.soname", "libhz.so libevil.so"),
    "library with a newline": changed("allocator.soname", "libhz.so\nLD_AUDIT=/tmp/evil.so"),
    "no hash": changed("allocator.sha256", "zz"),
    "allocator as a list": changed("allocator", []),
    "allocator as null": changed("allocator", None),
    "parameter that does not exist": changed("params.ld_preload", 1),
    "parameter by its variable": changed("params.HZ_MAGAZINE_CAP", 512),
    "parameter with a newline": changed("params.magazine_cap", "512\nLD_PRELOAD=/tmp/evil.so"),
    "parameter with a NUL": changed("params.depot_lock", "spin\0"),
    "parameter with a command": changed("params.depot_lock", "$(touch /tmp/owned)"),
    "parameter with a quote": changed("params.depot_lock", "spin' --evil '"),
    "parameter with a letter that looks alike": changed("params.depot_lock", "\u0455pin"),
    "parameter with a lone surrogate": changed("params.depot_lock", "\ud800"),
    "parameter name with a newline": changed("params", {"magazine_cap\nX": 512}),
    "parameter out of range": changed("params.magazine_cap", 2**40),
    "parameter negative": changed("params.magazine_cap", -1),
    "parameter between powers": changed("params.magazine_cap", 300),
    "parameter as a fraction": changed("params.magazine_cap", 512.0),
    "parameter as a truth value": changed("params.magazine_cap", True),
    "parameter as a list": changed("params.magazine_cap", [512]),
    "parameter beyond 64 bits": changed("params.magazine_cap", 2**64 + 512),
    "parameters that do not fit": changed("params", {"magazine_cap": 8, "refill_batch": 256}),
    "foreign variable": changed("env.LD_PRELOAD", "/tmp/evil.so"),
    "foreign variable of the loader": changed("env.LD_AUDIT", "/tmp/evil.so"),
    "foreign PATH": changed("env.PATH", "/tmp"),
    "service variable": changed("env.HZ_STATS", "/etc/passwd"),
    "variable that differs": changed("env.HZ_MAGAZINE_CAP", "256"),
    "variable missing": without("env.HZ_MAGAZINE_CAP"),
    "variable as a number": changed("env.HZ_MAGAZINE_CAP", 512),
    "environment missing": without("env"),
    "workload as a command": changed("workload.name", "sh -c 'touch /tmp/owned'"),
    "workload as a path": changed("workload.name", "/bin/sh"),
    "workload of another kind": changed("workload.kind", "shell"),
    "workload parameter as a command": changed("workload.params.remote", "`id`"),
    "threads negative": changed("threads", -1),
    "threads as text": changed("threads", "32"),
    "threads as a fraction": changed("threads", 1.5),
    "comment that ends the comment": changed("machine.cpu", "x */ int main(void) { /*"),
    "command beside a workload": changed("workload.words", ["sh", "-c", "id"]),
    "hash of no words": changed("workload.words_sha256", "../../etc/passwd"),
    "control that is no allocator": changed("objective.control", "/tmp/evil.so"),
    "comment with a second line": changed("machine.cpu", "x\nexport LD_PRELOAD=/tmp/evil.so"),
    "comment with a carriage return": changed("machine.kernel", "x\rexport A=1"),
    "comment that continues": changed("machine.libc", "x\\"),
    "comment with an escape sequence": changed("machine.cpu", "\x1b]0;owned\x07"),
    "no cores": changed("machine.cores", 0),
    "limit as a command": changed("objective.limits.max_rss", "1.1x; rm -rf /"),
    "metric as a format": changed("result.metric", "%n%n%n"),
    "ratio as text": changed("result.ratio", "1.14"),
    "ratio outside its interval": changed("result.ratio", 3.0),
    "improved without proof": changed("result.ci_low", 0.9),
    "improved without a number": changed("result.ratio", None),
    "unknown verdict": changed("result.verdict", "trust me"),
    "seed negative": changed("search.seed", -1),
    "space without a hash": changed("search.space_sha256", "../../etc/passwd"),
    "version with a newline": changed("versions.hztune", "0.1.0\n#include </etc/passwd>"),
    "date with more behind it": changed("created", "2026-01-31T12:00:00Z; id"),
    "date of another form": changed("created", "31.1.2026"),
}

HOSTILE_BYTES = {
    "nothing": b"",
    "blank": b" \n",
    "not JSON": b"schema: hztune-profile/1",
    "a list": b"[]",
    "a string": b'"hztune-profile/1"',
    "not UTF-8": b'{"schema": "\xff"}',
    "UTF-16": '{"schema": "x"}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "endless nesting": b"[" * 60_000,
    "endless objects": b'{"a":' * 12_000,
    "a number of many digits": b'{"threads": ' + b"9" * 5_000 + b"}",
    "more than a page": b'{"schema": "' + b"x" * 70_000 + b'"}',
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00",
    "YAML tag": b"!!python/object/apply:os.system ['id']",
}


@pytest.mark.parametrize("edit", HOSTILE_EDITS.values(), ids=HOSTILE_EDITS.keys())
def test_a_hostile_field_is_refused_in_one_sentence(
    make_profile: MakeProfile, edit: Callable[[dict[str, Any]], None]
) -> None:
    held = body(make_profile())
    edit(held)
    with pytest.raises(UsageError) as caught:
        profile.parse(encoded(held))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("content", HOSTILE_BYTES.values(), ids=HOSTILE_BYTES.keys())
def test_hostile_bytes_are_refused_in_one_sentence(content: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        profile.parse(content)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(make_profile: MakeProfile, number: str) -> None:
    text = profile.dumps(make_profile()).replace("1.14", number)
    with pytest.raises(UsageError):
        profile.parse(text.encode())


PARTS = (
    "schema",
    "allocator",
    "params",
    "workload",
    "threads",
    "machine",
    "objective",
    "result",
    "search",
    "versions",
    "created",
    "env",
)


@pytest.mark.parametrize("key", PARTS)
def test_a_missing_part_is_named(make_profile: MakeProfile, key: str) -> None:
    held = body(make_profile())
    del held[key]
    told = f"{key} is 'missing'|missing required field {key}|env is not"
    with pytest.raises(UsageError, match=told):
        profile.parse(encoded(held))


@pytest.mark.parametrize("kind", ["absent", "directory", "fifo", "device", "unreadable name"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "profile.json"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "unreadable name":
        path = Path("a\0b")
    with pytest.raises(UsageError, match="cannot read"):
        profile.load(path)


def test_of_a_results_directory_the_file_to_give_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it is a directory; give the profile\.json of"):
        profile.load(tmp_path)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(UsageError, match=r"p\.json' is not a valid profile: schema is 'missing'"):
        profile.load(tmp_path / "p.json")


# ---- thousands of mutations ----------------------------------------------------------------------


def mutated(text: str, rng: random.Random) -> bytes:
    """The text with one to four small damages: to bytes, to tokens, or to lines."""
    held = bytearray(text.encode())
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(held))
        end = min(len(held), start + rng.randint(1, 12))
        match rng.randrange(6):
            case 0:
                held[start] = rng.randrange(256)
            case 1:
                del held[start:end]
            case 2:
                held[start:start] = held[start:end]
            case 3:
                held[start:end] = rng.choice(
                    [b"null", b"-1", b"1e400", b'""', b"[]", b"{}", b"true"]
                )
            case 4:
                held[start:start] = rng.choice([b"\0", b"\n", b"\\u0000", b'"', b"$(id)", b"*/"])
            case _:
                lines = held.splitlines(keepends=True)
                rng.shuffle(lines)
                held = bytearray(b"".join(lines)) if rng.random() < 0.1 else held
        if not held:
            return b""
    return bytes(held)


def mutations(text: str) -> Iterator[bytes]:
    rng = random.Random(SEED)
    return (mutated(text, rng) for _ in range(MUTATIONS))


def test_a_mutated_profile_is_refused_or_sets_variables_of_hz_alone(
    make_profile: MakeProfile,
) -> None:
    taken = 0
    for number, content in enumerate(mutations(profile.dumps(make_profile()))):
        try:
            read = profile.parse(content)
        except UsageError as error:
            assert str(error).isprintable(), f"mutation {number} of seed {SEED}: {content!r}"
            continue
        taken += 1
        for name, value in read.environment.items():
            assert re.fullmatch(r"HZ_[A-Z0-9_]+", name), f"mutation {number} of seed {SEED}"
            assert re.fullmatch(r"[a-z0-9_]+", value), f"mutation {number} of seed {SEED}"
    assert 0 < taken < MUTATIONS / 10


WATCHED_LOADS = """
import sys
from pathlib import Path
from hztune import export, profile
from hztune.errors import UsageError

folder = Path(sys.argv[1])
allowed = (str(folder), "/proc/self/fd/")  # the latter is what was found there, and is open
paths = sorted(folder.iterdir())
profile.load(paths[0])  # whatever is imported late is imported now
export.render(profile.load(paths[0]), "header")
seen = []


def watch(event, arguments):
    by_name = event == "open" and not isinstance(arguments[0], int)
    if by_name and not str(arguments[0]).startswith(allowed):
        seen.append((event, arguments[0]))
    if event.startswith(("os.", "subprocess.", "socket.", "ctypes.", "pty.")):
        seen.append((event, arguments))
    if event in ("exec", "compile", "import"):
        seen.append((event, arguments[0]))


sys.addaudithook(watch)
for path in paths[1:]:
    try:
        export.render(profile.load(path), "header")
    except UsageError:
        pass
print(len(seen), seen[:3])
status = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def test_loading_hostile_profiles_runs_nothing_and_opens_nothing_else(
    make_profile: MakeProfile, tmp_path: Path
) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    text = profile.dumps(make_profile())
    (folder / "00000-good.json").write_text(text)
    for number, content in enumerate(mutations(text), 1):
        (folder / f"{number:05}.json").write_bytes(content)
        if number == 1_000:
            break
    for number, edit in enumerate(HOSTILE_EDITS.values(), 90_000):
        held = body(make_profile())
        edit(held)
        (folder / f"{number:05}.json").write_bytes(encoded(held))
    done = subprocess.run(
        [sys.executable, "-c", WATCHED_LOADS, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    seen, peak_kib = done.stdout.splitlines()
    assert seen == "0 []"
    assert int(peak_kib) <= MOST_MEMORY_KIB
