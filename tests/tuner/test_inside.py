"""Allocators inside a program: found, told, given what was asked, proved, refused, exported."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from hztune import allocator, api, export
from hztune import profile as profiles
from hztune.allocator import elf, inside, live
from hztune.blocks import Arm
from hztune.comparing import contenders
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure import insides
from hztune.measure.executors import executor_for
from hztune.measure.program import Program
from hztune.tuning.request import TuneRequest, understand
from hztune.tuning.session import chosen_from
from hztune.verifying.running import examine
from hztune.workload import WorkloadSpec

from .conftest import put
from .measured import python

#: What a build of jemalloc 5.3.0 with the prefix of tikv-jemallocator says and reads; the program
#: gives it a decay of its own, as Polars does. VARIABLE is what it reads.
SPEAKING = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
const char version[] = "\0005.3.0-1-ge13ca993e8ccb9ba9847cc330696e02839f328f7";
long _rjem_je_opt_dirty_decay_ms = 500;
unsigned _rjem_je_opt_narenas = 8;
static void take(const char *conf, int say) {
    char held[400], *rest = held;
    snprintf(held, sizeof held, "%s", conf);
    for (char *pair; (pair = strsep(&rest, ",")) != NULL;) {
        if (say && *pair) fprintf(stderr, "<jemalloc>: -- Set conf value: %s\n", pair);
        sscanf(pair, "dirty_decay_ms:%ld", &_rjem_je_opt_dirty_decay_ms);
        sscanf(pair, "narenas:%u", &_rjem_je_opt_narenas);
    }
}
__attribute__((constructor)) static void start(void) {
    const char *conf = getenv(VARIABLE);
    if (conf == NULL) conf = "";
    const int say = strstr(conf, "confirm_conf:true") != NULL;
    if (say) fprintf(stderr, "<jemalloc>: malloc_conf #1 (%s): \"\"\n", version + 1);
    take("dirty_decay_ms:500", say);
    take(conf, say);
}
#ifndef LIBRARY
int main(int words, char **word) {
    char c;
    return words == 1 && write(1, "x", 1) + read(0, &c, 1) != 2;
}
#endif
"""
RUST = '-DVARIABLE="_RJEM_MALLOC_CONF"'
NAME = "inside:_rjem_jemalloc"
DEBIAN = Path("/usr/lib/x86_64-linux-gnu")
LINKED = {
    "jemalloc": DEBIAN / "libjemalloc.so.2",
    "mimalloc": DEBIAN / "libmimalloc.so.2",
    "tcmalloc": DEBIAN / "libtcmalloc_minimal.so.4",
}
KNOBS = {
    "jemalloc": ("narenas", 3),
    "mimalloc": ("purge_delay", 7),
    "tcmalloc": ("max_total_thread_cache_bytes", 1 << 24),
}
BUSY = """
#include <stdlib.h>
#include <unistd.h>
int main(void) { free(malloc(100)); usleep(30000); return 0; }
"""


@pytest.fixture
def rust(compiled):
    """A program that stands for one of Rust with tikv-jemallocator; any word ends it at once."""
    return compiled("rust", SPEAKING, RUST)


def linked(compiled, family):
    """A program that is linked with an allocator of Debian's, and runs for a moment."""
    return compiled("linked", BUSY, "-Wl,--no-as-needed", LINKED[family])


def measured(program, parts, *arms):
    runs = [replace(program, warmups=0, by="runs")]
    executor = executor_for(runs, seed=1, machine=Machine.here(), inside=parts)
    return executor.measure(arms, role="search", rounds=1, number=0).outcomes


# ---- finding -------------------------------------------------------------------------------------


def test_no_more_of_a_file_is_searched_than_is_loaded_of_it(tmp_path):
    program = Path(shutil.copy("/bin/true", tmp_path))
    with program.open("r+b") as file:
        for place, found in ((64 << 20, set()), (0x400, {b"a mark"})):
            file.seek(place)
            file.write(b"a mark")
            file.flush()
            assert elf.contained(program, {b"a mark"}) == found


def test_a_stripped_prefix_is_found_and_a_run_tells_the_rest(rust, compiled):
    marks = inside.marks_of(compiled("stripped", SPEAKING, RUST, "-s"))
    assert marks == (inside.Mark("jemalloc", "_rjem_", "5.3.0", "_RJEM_MALLOC_CONF"),)
    assert inside.marks_of(compiled("plain")) == ()
    (part,) = insides.of_run(Program((str(rust), "end")))
    assert (part.name, part.version, part.path) == (NAME, "5.3.0", rust)
    assert part.given == (("dirty_decay_ms", 500),)
    silent = SPEAKING.replace("const int say =", "const int say = 0 &&")
    assert insides.of_run(Program((str(compiled("silent", silent, RUST)), "end"))) == ()


def test_what_is_loaded_later_is_found(compiled, monkeypatch):
    wheel = ('-DVARIABLE="JE_WHEEL_MALLOC_CONF"', "-DLIBRARY", "-shared", "-fPIC")
    library = compiled("libwheel.so", SPEAKING, *wheel)
    tasks = []
    monkeypatch.setattr("hztune.tuning.session.tune", lambda task, reporter: tasks.append(task))
    later = f"import ctypes\ntime.sleep(0.02)\nctypes.CDLL({str(library)!r})\ntime.sleep(0.2)"
    api.tune(TuneRequest(program=python(later), allocator="inside"))
    (part,) = tasks[0].candidates.inside
    assert (part.name, part.path) == ("inside:je_wheel_jemalloc", library)
    assert dict(part.given)["dirty_decay_ms"] == 500


# ---- choosing ------------------------------------------------------------------------------------


def study(program, wanted):
    return understand(TuneRequest(program=Program((str(program), "end")), allocator=wanted))


def names_of(task):
    return [each.name for each in task.candidates.installed]


def test_what_is_inside_stands_beside_the_preloaded_and_says_its_part(rust):
    task = study(rust, "any")
    assert names_of(task)[0] == NAME
    assert {"glibc", "jemalloc", "hz"} <= set(names_of(task))
    (remark,) = task.remarks
    for told in ("_RJEM_MALLOC_CONF", "a preloaded allocator all the rest", "dirty_decay_ms=500"):
        assert told in remark
    assert remark in task.identity["inside"]
    for wanted in ("inside", "inside:jemalloc", NAME):
        task = study(rust, wanted)
        assert task.candidates.label == f"{NAME} 5.3.0"
    knob = next(param for param in task.space.params if param.name == "dirty_decay_ms")
    assert knob.default == 500
    assert task.space.reduced({"dirty_decay_ms": 500}) == {}
    assert task.space.reduced({"dirty_decay_ms": 10000}) == {"dirty_decay_ms": 10000}


def test_what_a_program_is_linked_with_is_no_candidate(compiled, tmp_path):
    program, why = linked(compiled, "jemalloc"), "the program's malloc is that of libjemalloc.so.2"
    task = study(program, "any")
    assert "inside:jemalloc" in names_of(task)
    assert not {"jemalloc", "glibc"} & set(names_of(task))
    assert "inside libjemalloc.so.2" in task.remarks[0]
    assert "serves the whole program" in task.remarks[0]
    assert f"left out: glibc ({why})" in chosen_from(task)
    for wanted in ("glibc", "hz,glibc"):
        with pytest.raises(UsageError, match=f"{why}.*--allocator inside:jemalloc"):
            study(program, wanted)
    asked, out = "glibc:arena_max=1", tmp_path / "out"
    said = f"{asked} cannot be measured under linked: {why}.*preload the C library: GLIBC=/.*libc"
    with pytest.raises(UsageError, match=said):
        api.compare(["none", asked], program=Program((str(program),)), out=out)
    assert not out.exists()


def test_variables_that_two_builds_would_read_rule_out(compiled, tmp_path):
    family, build = "tcmalloc", tmp_path / "own.so"
    build.write_bytes(LINKED[family].read_bytes() + b"another build")
    program = compiled("linked", BUSY, "-Wl,--no-as-needed", build, f"-Wl,-rpath,{tmp_path}")
    shutil.copy(build, tmp_path / LINKED[family].name)
    task = study(program, "any")
    assert f"{family} (also inside the program" in "\n".join(chosen_from(task))
    assert f"inside:{family}" in names_of(task) and family not in names_of(task)


def test_a_plan_runs_nothing_and_sees_what_is_linked(compiled, tmp_path):
    wrote = tmp_path / "wrote"
    source = f'#include <stdio.h>\nint main(void) {{ return fopen("{wrote}", "w") == NULL; }}'
    program = compiled("writes", source, "-Wl,--no-as-needed", LINKED["jemalloc"])
    request = TuneRequest(program=Program((str(program),)), allocator="any")
    assert understand(request, look=False).candidates.inside[0].name == "inside:jemalloc"
    assert not wrote.exists()


def test_what_cannot_be_had_is_refused_with_what_can(compiled):
    static, plain = compiled("static", SPEAKING, RUST, "-static"), compiled("plain", BUSY)
    assert names_of(study(static, "any")) == [NAME]
    with pytest.raises(UsageError, match=f"is a static program.*--allocator {NAME}"):
        study(static, "mimalloc")
    for wanted in ("inside", "inside:mimalloc", "inside:je_jemalloc"):
        with pytest.raises(UsageError, match=f"no {wanted} in the program.*inside it: none"):
            study(plain, wanted)
    with pytest.raises(UsageError, match="for a program of your own"):
        understand(TuneRequest(workload=WorkloadSpec.from_text("larson"), allocator="inside"))
    with pytest.raises(UsageError, match="stands in a program"):
        contenders.parse([f"{NAME}:narenas=2"])
    with pytest.raises(UsageError, match="is no library of this machine: it stands in a program"):
        allocator.get(NAME).installed()
    assert not any(name.startswith(inside.ANY) for name in allocator.names())


# ---- proving -------------------------------------------------------------------------------------


def test_a_setting_that_follows_the_programs_own_is_proved(rust):
    program = Program((str(rust), "end"))
    arms = [Arm("none"), Arm(NAME), Arm.of(NAME, {"dirty_decay_ms": 1000, "narenas": 2})]
    outcomes = measured(program, insides.of_run(program), *arms)
    assert [(each.status, each.detail) for each in outcomes] == [("ok", "")] * 3


def test_a_wrapper_that_drops_or_changes_the_variable_is_noticed(rust, compiled, tmp_path):
    tcmalloc = linked(compiled, "tcmalloc")
    for program, name, knob, does, told in (
        (rust, NAME, "narenas", "unset _RJEM_MALLOC_CONF", ""),
        (tcmalloc, "inside:tcmalloc", "release_rate_percent", "export TCMALLOC_RELEASE_RATE=3",
         "TCMALLOC_"),
    ):  # fmt: skip
        parts = insides.of_run(Program((str(program), "end")))
        put(tmp_path, {"wrapper": f"#!/bin/sh\n{does}\nexec {program} end\n"})
        wrapped, arm = Program((str(tmp_path / "wrapper"),)), Arm.of(name, {knob: 2})
        _, outcome = measured(wrapped, parts, Arm("none"), arm)
        assert outcome.status == "wrong_config" and told in outcome.detail, name


@pytest.mark.parametrize("family", LINKED)
def test_one_of_debian_is_tuned_where_it_is_linked(family, compiled):
    (mark,) = inside.marks_of(LINKED[family])
    assert (mark.family, mark.prefix) == (family, "") and mark.version
    assert allocator.get(family).installed().version.startswith(mark.version)
    program = Program((str(linked(compiled, family)),))
    parts = insides.of_run(program)
    (part,) = (each for each in parts if each.name == f"inside:{family}")
    knob, value = KNOBS[family]
    assert "LD_PRELOAD" not in allocator.get(part.name).environment({knob: value}, part)
    outcomes = measured(program, parts, Arm("none"), Arm.of(part.name, {knob: value}))
    assert [(each.status, each.detail) for each in outcomes] == [("ok", "")] * 2


# ---- a running process, a profile, exports -------------------------------------------------------


@pytest.fixture
def tuned(make_profile):
    """A profile of a jemalloc with Rust's prefix."""
    identity = profiles.AllocatorId(NAME, "5.3.0", "", "c" * 64)
    return make_profile({"narenas": 2, "dirty_decay_ms": 1000}, allocator=identity)


def with_given(tuned, given):
    return structs.replace(tuned, allocator=structs.replace(tuned.allocator, given=given))


def test_a_profile_is_held_against_the_memory_of_a_process(tuned, rust, compiled, running):
    with running(rust, tuned.environment) as pid:
        report = examine(tuned, pid)
    assert report.in_effect
    assert {(row.name, row.found, row.evidence) for row in report.rows} == {
        ("narenas", 2, "effective"),
        ("dirty_decay_ms", 1000, "effective"),
    }
    with running(rust, {}) as pid:
        assert not examine(tuned, pid).in_effect
    with running(compiled("plain"), {}) as pid, pytest.raises(UsageError, match=f"has no {NAME}"):
        examine(tuned, pid)
    static = compiled("static", SPEAKING, RUST, "-static")
    with running(static, {"_RJEM_MALLOC_CONF": "narenas:5"}) as pid:
        seen = live.look(pid)
        (part,) = inside.parts_of(seen.process.files)
        held = live.settings(seen, allocator.get(part.name), part)
    assert (seen.provider, seen.allocator) == (static, "jemalloc")
    assert held["narenas"] == live.SettingRead(5, is_effective=True)


def test_a_profile_is_read_back_with_what_the_program_gives(tuned):
    assert tuned.environment == {"_RJEM_MALLOC_CONF": "narenas:2,dirty_decay_ms:1000"}
    given = with_given(tuned, {"dirty_decay_ms": 500})
    for each in (tuned, given):
        assert profiles.parse(profiles.dumps(each).encode()) == each
    knobs = given.adapter.knobs(given.allocator.as_installed())
    assert next(knob.default for knob in knobs if knob.name == "dirty_decay_ms") == 500
    with pytest.raises(UsageError, match="dirty_decay_ms"):
        profiles.parse(profiles.dumps(given).replace(": 500", ": -7").encode())
    for name in ("inside:glibc", "inside:_rjem_mimalloc", "inside:", "inside:$x"):
        with pytest.raises(UsageError):
            profiles.parse(profiles.dumps(tuned).replace(NAME, name).encode())


def test_every_export_carries_the_variable_alone(tuned, compiled):
    for form in ("env", "sh", "wrapper", "systemd", "dockerfile", "compose", "k8s"):
        text = export.render(tuned, form)
        assert "_RJEM_MALLOC_CONF" in text and "LD_PRELOAD" not in text
        assert "narenas:2,dirty_decay_ms:1000" in text
    text = export.render(tuned, "c-jemalloc")
    assert 'const char *_rjem_malloc_conf = "narenas:2,dirty_decay_ms:1000";' in text
    assert 'export_name = "_rjem_malloc_conf"' in export.render(tuned, "rust-jemalloc")
    assert compiled("symbol.o", text, "-c", "-Wall", "-Werror").is_file()
    text = export.render(with_given(tuned, {"background_thread": "true"}), "c-jemalloc")
    assert "background_thread:true" in text and "dirty_decay_ms:1000" in text
