"""A profile comes back as it was written, and nothing else is taken for one."""

import json
import os
import random
import re
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import structs

from hztune import export, files, params, profile
from hztune.errors import HztuneError, UsageError
from hztune.profile import Claim, MemoryClaim

from .conftest import TUNED

SEED = 20260131
MUTATIONS = 10_000


def again(made):
    """What is read of a profile that was written."""
    return profile.parse(profile.dumps(made).encode())


def encoded(made, path="", value=None):
    """A profile as JSON, with another value at a path ("result.ratio"), or GONE: without it."""
    held = place = json.loads(profile.dumps(made))
    *outer, last = path.split(".")
    for key in outer:
        place = place[key]
    if value is GONE:
        del place[last]
    elif path:
        place[last] = value
    return json.dumps(held).encode()


# ---- what is written is what is read -------------------------------------------------------------


def test_what_is_saved_comes_back_and_nothing_lies_beside_it(make_profile, tmp_path):
    seen = (MemoryClaim(1.57, 1.5, 1.64), MemoryClaim(0.9, 0.8, 1.0, "kept"))
    made, path = make_profile(memory=seen, suggested_limit_kb=65536), tmp_path / "profile.json"
    before = os.umask(0o027)
    try:
        for _ in range(2):
            profile.save(made, path)
    finally:
        os.umask(before)
    assert profile.load(path) == made
    assert [each.name for each in tmp_path.iterdir()] == ["profile.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    plain = json.loads(profile.dumps(make_profile()))
    assert not {"memory", "suggested_limit_kb"} & plain.keys()


RESULTS = [
    Claim("ops_per_s", 1.5, 1.2, 1.9, 6, "improved"),
    Claim("ops_per_s", 0.9, 0.8, 1.1, 6, "interrupted"),
    Claim("ops_per_s", None, None, None, 0, "interrupted"),
    Claim("ops_per_s", None, None, None, 0, "infeasible"),
]


def test_every_kind_of_result_can_be_kept_and_no_gain_carries_the_defaults(make_profile):
    for claim in RESULTS:
        made = make_profile(claim=claim)
        assert again(made) == made
    none = Claim("ops_per_s", 1.0, 0.98, 1.02, 9, "no_gain")
    for config in ({}, params.defaults()):
        again(make_profile(config, claim=none))
    with pytest.raises(UsageError, match="no_gain"):
        again(make_profile({"magazine_cap": 512}, claim=none))


UNWRITABLE = ["device", "/dev/zero", "/proc/self/exe", "no name", "no folder", "no day"]


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(make_profile, tmp_path, kind):
    """Nor what could not be read back; /dev/stdout links to /proc, too, where it is a file."""
    path = tmp_path / {"no name": "a\0b", "no folder": "absent/p.json"}.get(kind, "profile.json")
    if kind == "device":
        os.mkfifo(path)
    elif kind.startswith("/"):
        path.symlink_to(kind)
    made = make_profile(created="yesterday") if kind == "no day" else make_profile()
    told = {"no day": "created", "no folder": r"absent/p\.json"}.get(kind, "cannot write")
    with pytest.raises(HztuneError, match=told):
        profile.save(made, path)
    assert not any(each.is_file() and not each.is_symlink() for each in tmp_path.iterdir())


def test_saving_over_a_symbolic_link_does_not_touch_what_it_points_to(make_profile, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "profile.json").symlink_to(victim)
    with pytest.raises(UsageError, match="--log"):
        files.append_to(tmp_path / "profile.json", "added", "--log")
    profile.save(make_profile(), tmp_path / "profile.json")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "profile.json").is_symlink()


SMUGGLED = ["2,junk:true", "2:glibc.malloc.check=3", "2\nX=1", "$(id)", "", -7, True]


@pytest.mark.parametrize("name", sorted(TUNED.keys() - {"hz"}))
def test_a_profile_of_another_allocator_can_be_kept_where_that_is_not_installed(name, make_profile):
    """No other library passes for it, and no value smuggles a second setting in."""
    made = make_profile(of=name)
    assert again(made) == made
    assert "LD_PRELOAD" not in made.environment
    assert set(made.environment) <= set(made.adapter.variables())
    with pytest.raises(UsageError, match=r"allocator\.soname"):
        other = structs.replace(made.allocator, soname="libhz.so")
        again(structs.replace(made, allocator=other))
    for value in SMUGGLED if made.params else ():
        with pytest.raises(UsageError):
            profile.parse(encoded(made, "params", dict.fromkeys(made.params, value)))


# ---- what is refused -----------------------------------------------------------------------------

GONE = object()
HOSTILE = {
    "schema": ["hztune-profile/2", 1, GONE],
    "command": ["rm -rf /"],
    "allocator": [[], None, GONE],
    "allocator.path": ["/tmp/evil.so"],
    "allocator.name": ["evil", "../hz"],
    "allocator.soname": [
        "/tmp/libhz.so", "../libhz.so", "libevil.so", "libhz.so:libevil.so", "$ORIGIN/libhz.so",
        "libhz.so libevil.so", "libhz.so\nLD_AUDIT=/tmp/evil.so",
    ],
    "allocator.sha256": ["zz"],
    "params": [{"magazine_cap\nX": 512}, {"magazine_cap": 8, "refill_batch": 256}, GONE],
    "params.ld_preload": [1],
    "params.HZ_MAGAZINE_CAP": [512],
    "params.magazine_cap": [
        "512\nLD_PRELOAD=/tmp/evil.so", 2**40, -1, 300, 512.0, True, [512], 2**64 + 512,
    ],
    "params.depot_lock": ["spin\0", "$(touch /tmp/x)", "spin' --evil '", "\u0455pin", "\ud800"],
    "env": [GONE],
    "env.LD_PRELOAD": ["/tmp/evil.so"],
    "env.LD_AUDIT": ["/tmp/evil.so"],
    "env.PATH": ["/tmp"],
    "env.HZ_STATS": ["/etc/passwd"],
    "env.HZ_MAGAZINE_CAP": ["256", 512, GONE],
    "workload": [GONE],
    "workload.name": ["sh -c 'touch /tmp/owned'", "/bin/sh"],
    "workload.kind": ["shell"],
    "workload.params.remote": ["`id`"],
    "workload.words": [["sh", "-c", "id"]],
    "workload.words_sha256": ["../../etc/passwd"],
    "threads": [-1, "32", 1.5, GONE],
    "machine": [GONE],
    "machine.cpu": [
        "x */ int main(void) { /*", "x\nexport LD_PRELOAD=/tmp/evil.so", "\x1b]0;owned\x07",
    ],
    "machine.kernel": ["x\rexport A=1"],
    "machine.libc": ["x\\"],
    "machine.cores": [0],
    "objective": [GONE],
    "objective.control": ["/tmp/evil.so"],
    "objective.limits.max_rss": ["1.1x; rm -rf /"],
    "result": [GONE],
    "result.metric": ["%n%n%n"],
    "result.ratio": ["1.14", 3.0, None],
    "result.ci_low": [0.9],
    "result.verdict": ["trust me", "less_memory"],
    "result.memory": [
        {"ratio": 0.7}, {"ratio": "small", "ci_low": 0.6, "ci_high": 0.8},
        {"ratio": 0.7, "ci_low": 0.8, "ci_high": 0.6},
        {"ratio": 0.7, "ci_low": 0.6, "ci_high": 0.8, "run": "sh"},
    ],
    "search": [GONE],
    "search.seed": [-1],
    "search.space_sha256": ["../../etc/passwd"],
    "versions": [GONE],
    "versions.hztune": ["0.1.0\n#include </etc/passwd>"],
    "created": ["2026-01-31T12:00:00Z; id", "31.1.2026", GONE],
}  # fmt: skip

HOSTILE_BYTES = {
    "nothing": b"",
    "not JSON": b"schema: hztune-profile/1",
    "a list": b"[]",
    "not UTF-8": b'{"schema": "\xff"}',
    "endless nesting": b"[" * 60_000,
    "a number of many digits": b'{"threads": ' + b"9" * 5_000 + b"}",
    "more than a page": b'{"schema": "' + b"x" * 70_000 + b'"}',
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00",
}


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_or_missing_field_is_refused_in_one_sentence(path, make_profile):
    for value in HOSTILE[path]:
        with pytest.raises(UsageError) as caught:
            profile.parse(encoded(make_profile(), path, value))
        assert str(caught.value).isprintable(), value
        told = f"{path} is 'missing'|missing required field {path}|env is not"
        assert value is not GONE or re.search(told, str(caught.value))


@pytest.mark.parametrize("content", HOSTILE_BYTES.values(), ids=HOSTILE_BYTES.keys())
def test_hostile_bytes_are_refused_in_one_sentence(content):
    with pytest.raises(UsageError) as caught:
        profile.parse(content)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", ["absent", "directory", "fifo", "device", "no name", "wrong"])
def test_what_is_no_profile_is_refused_without_waiting_and_names_the_file(tmp_path, kind):
    path = {"device": Path("/dev/zero"), "no name": Path("a\0b")}.get(kind, tmp_path / "p.json")
    told = "cannot read"
    if kind == "directory":
        path.mkdir()
        told = r"it is a directory; give the profile\.json of"
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "wrong":
        path.write_text("{}")
        told = r"p\.json' is not a valid profile: schema is 'missing'"
    with pytest.raises(UsageError, match=told):
        profile.load(path)


# ---- thousands of mutations ----------------------------------------------------------------------

TOKENS = [b"null", b"-1", b"1e400", b'""', b"[]", b"{}", b"true"]
MARKS = [b"\0", b"\n", b"\\u0000", b'"', b"$(id)", b"*/"]


def mutated(text, rng):
    """The text with one to four small damages: to bytes, or by tokens."""
    held = bytearray(text.encode())
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(held))
        end = start + rng.randint(0, 12)
        damage = [b"", bytes([rng.randrange(256)]), 2 * held[start:end], *TOKENS, *MARKS]
        held[start:end] = rng.choice(damage)
    return bytes(held)


def mutations(text):
    rng = random.Random(SEED)
    return (mutated(text, rng) for _ in range(MUTATIONS))


def test_a_mutated_profile_is_refused_or_sets_variables_of_hz_alone(make_profile):
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


def test_loading_hostile_profiles_runs_and_opens_nothing_else(make_profile, audited, tmp_path):
    path, edits = tmp_path / "p.json", [(at, each) for at in HOSTILE for each in HOSTILE[at]]
    contents = [encoded(make_profile()), *(encoded(make_profile(), *edit) for edit in edits)]
    allowed = (str(tmp_path), "/proc/self/fd/")  # the latter is what was found there, and is open
    strange = []
    for content in contents:
        path.write_bytes(content)
        with audited() as events, suppress(UsageError):
            export.render(profile.load(path), "header")
        for event, words in events if content != contents[0] else ():  # it imports what is late
            if event == "open" and not isinstance(words[0], int):
                strange += [words] * (not str(words[0]).startswith(allowed))
            elif event.startswith(("os.", "subprocess.", "socket.", "ctypes.", "exec")):
                strange.append((event, words))
    assert strange == []
