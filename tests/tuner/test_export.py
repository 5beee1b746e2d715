"""Every form of export is read back by its own consumer, and says what the profile says."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from hztune import export, params
from hztune.errors import UsageError
from hztune.params import Value
from hztune.profile import AllocatorId, Profile

MakeProfile = Callable[..., Profile]
FORMATS = [form.name for form in export.FORMATS]
FOR_HZ = [f.name for f in export.FORMATS if not f.allocators or "hz" in f.allocators]
COMMENTED = [name for name in FOR_HZ if name not in ("json", "cmake")]

FOREIGN: dict[str, tuple[AllocatorId, dict[str, Value]]] = {
    "glibc": (AllocatorId("glibc", "2.36", "", "c" * 64), {"arena_max": 2, "tcache_count": 64}),
    "jemalloc": (
        AllocatorId("jemalloc", "5.3.0", "libjemalloc.so.2", "c" * 64),
        {"narenas": 2, "background_thread": "true"},
    ),
    "mimalloc": (
        AllocatorId("mimalloc", "2.0.9", "libmimalloc.so.2.0", "c" * 64),
        {"purge_delay": 0},
    ),
}


@pytest.fixture(autouse=True)
def library(core_build: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The core that exports refer to."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    return core_build / "libhz.so"


@pytest.fixture
def foreign(make_profile: MakeProfile) -> Callable[[str], Profile]:
    """A profile for another allocator."""

    def make(name: str) -> Profile:
        identity, config = FOREIGN[name]
        return make_profile(config, allocator=identity)

    return make


def expected(profile: Profile, library: Path | str) -> dict[str, str]:
    return {**profile.environment, "LD_PRELOAD": str(library)}


def printed_environment(command: list[str], **extra: str) -> dict[str, str]:
    """What `env -0`, at the end of `command`, says its environment is."""
    base = {"PATH": os.environ["PATH"], **extra}
    done = subprocess.run(command, env=base, capture_output=True, text=True, check=True)
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)


def contains(environment: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= environment.items()


# ---- all of them ---------------------------------------------------------------------------------


SAID = (
    "remote@main remote=50, 32 threads",
    "1.140 times better in ops_per_s",
    "1.100 to 1.200",
    "max_rss 1.10x",
    "Test CPU (R) 3.0GHz, 2 CPUs, quota of 1.5",
    "2026-01-31",
    "HZ_CONFIRM=1",
    "undo:",
)


@pytest.mark.parametrize("name", COMMENTED)
def test_a_file_says_what_was_gained_where_and_how_to_undo_it(
    name: str, make_profile: MakeProfile
) -> None:
    text = export.render(make_profile(), name)
    for said in SAID:
        assert said in text


@pytest.mark.parametrize("name", FORMATS)
def test_a_form_ends_with_a_newline_and_has_no_blank_at_the_end_of_a_line(
    name: str, make_profile: MakeProfile, foreign: Callable[[str], Profile]
) -> None:
    only_for = export.find(name).allocators
    profile = make_profile() if not only_for or "hz" in only_for else foreign(only_for[0])
    text = export.render(profile, name)
    assert text.endswith("\n") and not re.search(r"[ \t]\n|\n\n$", text)


def test_an_unknown_form_is_refused_with_those_that_exist(make_profile: MakeProfile) -> None:
    with pytest.raises(UsageError, match="did you mean header"):
        export.render(make_profile(), "heder")


def test_a_form_of_another_allocator_is_refused_with_the_fitting_ones(
    make_profile: MakeProfile,
) -> None:
    with pytest.raises(UsageError, match=r"c-jemalloc exists for jemalloc.*header cmake json"):
        export.render(make_profile(), "c-jemalloc")


def test_json_is_the_profile_itself(make_profile: MakeProfile) -> None:
    assert json.loads(export.render(make_profile(), "json"))["params"]["magazine_cap"] == 512


def test_a_library_under_a_name_that_ld_preload_cannot_carry_is_refused(
    make_profile: MakeProfile, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "two words"
    odd.mkdir()
    (odd / "libhz.so").symlink_to(library)
    monkeypatch.setenv("HZTUNE_CORE", str(odd))
    with pytest.raises(UsageError, match="LD_PRELOAD cannot carry"):
        export.render(make_profile(), "env")


# ---- one machine ---------------------------------------------------------------------------------


def test_env_gives_docker_compose_and_systemd_the_same_lines(
    make_profile: MakeProfile, library: Path
) -> None:
    lines = export.render(make_profile(), "env").splitlines()
    given = [line for line in lines if not line.startswith("#")]
    assert dict(line.split("=", 1) for line in given) == expected(make_profile(), library)
    # docker keeps quotes, compose drops them, systemd wants no `export`: plain lines suit all.
    assert all(re.fullmatch(r"[A-Z_]+=[A-Za-z0-9_.:,|=/+-]*", line) for line in given)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_sh_sets_the_variables_of_the_shell_that_sources_it(
    shell: str, make_profile: MakeProfile, library: Path, tmp_path: Path
) -> None:
    (tmp_path / "tuned.sh").write_text(export.render(make_profile(), "sh"))
    seen = printed_environment([shell, "-euc", f". {tmp_path}/tuned.sh; env -0"])
    assert contains(seen, expected(make_profile(), library))


def test_sh_keeps_what_was_preloaded_before_behind_its_own(
    make_profile: MakeProfile, library: Path, tmp_path: Path
) -> None:
    (tmp_path / "tuned.sh").write_text(export.render(make_profile(), "sh"))
    other = "libm.so.6"
    seen = printed_environment(["dash", "-euc", f". {tmp_path}/tuned.sh; env -0"], LD_PRELOAD=other)
    assert seen["LD_PRELOAD"] == f"{library}:{other}"


def test_the_wrapper_runs_a_program_with_its_words_and_status(
    make_profile: MakeProfile, library: Path, tmp_path: Path
) -> None:
    script = tmp_path / "run-tuned"
    script.write_text(export.render(make_profile(), "wrapper"))
    script.chmod(0o755)
    seen = printed_environment([str(script), "env", "-0"])
    assert contains(seen, expected(make_profile(), library))
    done = subprocess.run([script, "sh", "-c", 'echo "$#:$2"; exit 7', "sh", "a b", "c  d"],
                          capture_output=True, text=True)  # fmt: skip
    assert (done.stdout, done.returncode) == ("2:c  d\n", 7)


def test_the_environment_reaches_the_library_and_is_what_it_confirms(
    make_profile: MakeProfile, tmp_path: Path
) -> None:
    profile = make_profile()
    script = tmp_path / "run-tuned"
    script.write_text(export.render(profile, "wrapper"))
    done = subprocess.run(
        ["sh", script, "true"],
        env={**os.environ, "HZ_CONFIRM": "1", "HZ_STRICT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    confirmed = json.loads(done.stderr.splitlines()[-1].removeprefix("HZ_CONFIRM "))["config"]
    assert contains(confirmed, profile.config)


def test_a_systemd_drop_in_is_accepted_by_systemd(
    make_profile: MakeProfile, library: Path, tmp_path: Path
) -> None:
    units = tmp_path / "etc" / "systemd" / "system"
    (units / "app.service.d").mkdir(parents=True)
    (units / "app.service").write_text("[Service]\nExecStart=/bin/true\n")
    drop_in = units / "app.service.d" / "50-hztune.conf"
    drop_in.write_text(export.render(make_profile(), "systemd"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "true").symlink_to("/bin/true")
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={tmp_path}", "app.service"],
        capture_output=True,
        text=True,
    )
    assert "50-hztune.conf" not in done.stderr, done.stderr
    assignments = re.findall(r'^Environment="([^"]+)"$', drop_in.read_text(), re.M)
    assert dict(line.split("=", 1) for line in assignments) == expected(make_profile(), library)


def test_systemd_does_complain_of_a_drop_in_that_is_wrong(tmp_path: Path) -> None:
    units = tmp_path / "etc" / "systemd" / "system"
    (units / "app.service.d").mkdir(parents=True)
    (units / "app.service").write_text("[Service]\nExecStart=/bin/true\n")
    (units / "app.service.d" / "50-hztune.conf").write_text('[Service]\nEnvironment="A=%z"\n')
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={tmp_path}", "app.service"],
        capture_output=True,
        text=True,
    )
    assert "50-hztune.conf" in done.stderr


# ---- containers ----------------------------------------------------------------------------------


IN_IMAGE = "/usr/local/lib/libhz.so"


def test_a_dockerfile_sets_the_variables_after_it_brought_the_library(
    make_profile: MakeProfile,
) -> None:
    lines = [
        line
        for line in export.render(make_profile(), "dockerfile").splitlines()
        if not line.startswith("#")
    ]
    assert lines[0] == f"COPY libhz.so {IN_IMAGE}"
    given = [re.fullmatch(r'ENV ([A-Z_]+)="([^"$\\]*)"', line) for line in lines[1:]]
    assert all(given)
    assert {m[1]: m[2] for m in given if m} == expected(make_profile(), IN_IMAGE)


def test_a_dockerfile_installs_the_package_of_another_allocator(
    foreign: Callable[[str], Profile],
) -> None:
    text = export.render(foreign("jemalloc"), "dockerfile")
    assert "apt-get install -y --no-install-recommends libjemalloc2" in text
    assert 'ENV LD_PRELOAD="libjemalloc.so.2"' in text


def test_compose_reads_as_strings(make_profile: MakeProfile) -> None:
    read = yaml.safe_load(export.render(make_profile(), "compose"))
    entries = read["services"]["app"]["environment"]
    assert all(isinstance(entry, str) for entry in entries)
    assert dict(entry.split("=", 1) for entry in entries) == expected(make_profile(), IN_IMAGE)


def test_k8s_reads_as_a_list_of_names_and_string_values(make_profile: MakeProfile) -> None:
    entries = yaml.safe_load(export.render(make_profile(), "k8s"))["env"]
    assert all(set(entry) == {"name", "value"} for entry in entries)
    assert all(isinstance(entry["value"], str) for entry in entries)
    wanted = expected(make_profile(), IN_IMAGE)
    assert {entry["name"]: entry["value"] for entry in entries} == wanted


@pytest.mark.parametrize(
    "name", ["compose", "k8s", "env", "sh", "wrapper", "systemd", "dockerfile"]
)
def test_an_unchanged_program_is_exported_as_nothing_to_set(
    name: str, make_profile: MakeProfile
) -> None:
    nothing = make_profile({}, allocator=AllocatorId("none", "", "", ""))
    assert "LD_PRELOAD=" not in export.render(nothing, name)


# ---- building hz ---------------------------------------------------------------------------------


HEADER_READER = """
#include <hz/params.h>
#include <stdio.h>
#include CONFIG
int main(void)
{
    printf("HZ_CONFIG_SCHEMA %lld\\n", (long long)HZ_CONFIG_SCHEMA);
#define HZ_INT(name, NAME, ...) printf(#name " %lld\\n", (long long)HZ_CONFIG_##NAME);
#define HZ_ENUM(name, NAME, ...) printf(#name " %lld\\n", (long long)HZ_CONFIG_##NAME);
#include <hz/params.def>
    return 0;
}
"""


def read_by_a_compiler(header: Path, root: Path) -> dict[str, int]:
    """The macros of `header`, as a C compiler values them."""
    source = header.with_name("reader.c")
    source.write_text(HEADER_READER)
    subprocess.run(
        ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-DCONFIG=<{header}>",
         f"-I{root}/core/include", source, "-o", header.with_name("reader")],
        check=True,
    )  # fmt: skip
    done = subprocess.run([header.with_name("reader")], capture_output=True, text=True, check=True)
    return {name: int(value) for name, value in map(str.split, done.stdout.splitlines())}


def as_number(name: str, value: Value) -> int:
    if value == "auto":
        return -1
    return value if isinstance(value, int) else params.find(name).choices.index(value)


def configurations() -> dict[str, dict[str, Value]]:
    """One for each value at an end of a row that is legal by itself, and the defaults."""
    found: dict[str, dict[str, Value]] = {"defaults": {}}
    for row in params.table():
        for value in row.choices or (row.low, row.high):
            try:
                params.check({row.name: value})
            except UsageError:
                continue
            found[f"{row.name}={value}"] = {row.name: value}
    return found


def test_a_compiler_reads_every_configuration_from_the_header_as_it_was_meant(
    make_profile: MakeProfile, tmp_path: Path, root: Path
) -> None:
    header = tmp_path / "hz_config.h"
    everything: dict[str, Value] = {}
    for config in configurations().values():
        try:
            params.check({**everything, **config})
        except UsageError:
            continue
        everything |= config
    for config in ({}, everything):
        header.write_text(export.render(make_profile(config), "header"))
        wanted = {name: as_number(name, v) for name, v in params.complete(config).items()}
        assert read_by_a_compiler(header, root) == {"HZ_CONFIG_SCHEMA": params.schema(), **wanted}


@pytest.mark.parametrize("config", configurations().values(), ids=configurations().keys())
def test_the_header_names_every_row_once(
    config: dict[str, Value], make_profile: MakeProfile
) -> None:
    text = export.render(make_profile(config), "header")
    defined = re.findall(r"^#define (HZ_CONFIG_\w+) \S+$", text, re.M)
    assert sorted(defined) == sorted(["HZ_CONFIG_SCHEMA", *(row.macro for row in params.table())])


def test_the_header_puts_first_what_the_search_changed(make_profile: MakeProfile) -> None:
    text = export.render(make_profile(), "header")
    found, at_defaults = text.split("at their defaults")
    assert "#define HZ_CONFIG_MAGAZINE_CAP 512" in found
    assert "default 256" in found
    assert "#define HZ_CONFIG_DEPOT_LOCK HZ_DEPOT_LOCK_SPIN" in found
    assert "HZ_CONFIG_SHARDS HZ_AUTO" in at_defaults


def test_cmake_takes_the_cache_script_and_writes_the_same_header(
    make_profile: MakeProfile, tmp_path: Path
) -> None:
    (tmp_path / "tuned.cmake").write_text(export.render(make_profile(), "cmake"))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(x NONE)\n"
    )
    build = tmp_path / "build"
    subprocess.run(
        ["cmake", "-C", tmp_path / "tuned.cmake", "-S", tmp_path, "-B", build],
        check=True,
        capture_output=True,
    )
    assert (build / "hz_config.h").read_text() == export.render(make_profile(), "header")
    assert (
        f"HZ_CONFIG_HEADER:FILEPATH={build}/hz_config.h" in (build / "CMakeCache.txt").read_text()
    )


# ---- source code ---------------------------------------------------------------------------------


def test_the_glibc_source_compiles_and_names_what_mallopt_cannot_set(
    foreign: Callable[[str], Profile], tmp_path: Path
) -> None:
    text = export.render(foreign("glibc"), "c-glibc")
    (tmp_path / "a.c").write_text(text)
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-c", tmp_path / "a.c", "-o", tmp_path / "a.o"],
        check=True,
    )
    assert "mallopt(M_ARENA_MAX, 2);" in text
    assert "missing: glibc.malloc.tcache_count=64 has no mallopt" in text


def test_the_jemalloc_source_defines_the_string_that_jemalloc_reads(
    foreign: Callable[[str], Profile], tmp_path: Path
) -> None:
    profile = foreign("jemalloc")
    (tmp_path / "conf.c").write_text(export.render(profile, "c-jemalloc"))
    (tmp_path / "main.c").write_text(
        "#include <stdio.h>\n"
        "extern const char *malloc_conf;\n"
        "int main(void) { puts(malloc_conf); }\n"
    )
    program = tmp_path / "main"
    subprocess.run(
        [
            "cc",
            "-Wall",
            "-Wextra",
            "-Werror",
            tmp_path / "conf.c",
            tmp_path / "main.c",
            "-o",
            program,
        ],
        check=True,
    )
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == profile.environment["MALLOC_CONF"]


def test_the_rust_source_ends_the_string_as_c_does(foreign: Callable[[str], Profile]) -> None:
    profile = foreign("jemalloc")
    conf = profile.environment["MALLOC_CONF"]
    assert f'b"{conf}\\0"' in export.render(profile, "rust-jemalloc")


MIMALLOC_STANDIN = """
typedef enum mi_option_e { %s } mi_option_t;
void mi_option_set(mi_option_t option, long value);
"""


def test_the_mimalloc_source_compiles_and_sets_each_option(
    foreign: Callable[[str], Profile], tmp_path: Path
) -> None:
    profile = foreign("mimalloc")
    text = export.render(profile, "c-mimalloc")
    options = re.findall(r"mi_option_set\((mi_option_\w+), (\d+)\);", text)
    assert len(options) == len(profile.environment) > 0
    names = ", ".join(name for name, _ in options)
    (tmp_path / "mimalloc.h").write_text(MIMALLOC_STANDIN % names)
    (tmp_path / "a.c").write_text(text)
    command = ["cc", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", "-c", tmp_path / "a.c"]
    subprocess.run([*command, "-o", tmp_path / "a.o"], check=True)
