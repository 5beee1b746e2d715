"""The exports that a compiler, CMake or a program reads: each is compiled, and most are run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hztune import export, params
from hztune.errors import UsageError
from hztune.params import Value
from hztune.profile import AllocatorId, Profile

MakeProfile = Callable[..., Profile]


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
    profile_of: Callable[[str], Profile], tmp_path: Path
) -> None:
    text = export.render(profile_of("glibc"), "c-glibc")
    (tmp_path / "a.c").write_text(text)
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-c", tmp_path / "a.c", "-o", tmp_path / "a.o"],
        check=True,
    )
    assert "mallopt(M_ARENA_MAX, 2);" in text
    assert "missing: glibc.malloc.tcache_count=64 has no mallopt" in text


ARENAS = """
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
static pthread_barrier_t all;
static void *work(void *block)
{
    block = malloc(100);
    pthread_barrier_wait(&all);
    free(block);
    return NULL;
}
int main(void)
{
    pthread_t threads[8];
    pthread_barrier_init(&all, NULL, 8);
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    return malloc_info(0, stdout);
}
"""


def test_the_glibc_source_acts_in_the_program_that_holds_it(
    profile_of: Callable[[str], Profile], tmp_path: Path
) -> None:
    (tmp_path / "tuned.c").write_text(export.render(profile_of("glibc"), "c-glibc"))
    (tmp_path / "main.c").write_text("#include <stdio.h>" + ARENAS)
    heaps = []
    for sources in ([], [tmp_path / "tuned.c"]):
        program = tmp_path / "main"
        subprocess.run(["cc", "-pthread", tmp_path / "main.c", *sources, "-o", program], check=True)
        environment = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=8"}  # the source overrides it
        said = subprocess.run(
            [program], env=environment, capture_output=True, text=True, check=True
        ).stdout
        heaps.append(said.count("<heap nr="))
    assert heaps[0] > 2 >= heaps[1]


@pytest.fixture
def linked(tmp_path: Path) -> Callable[..., Path]:
    """Compiles an exported source and a program that shows what it does to one file."""

    def make(source: str, main: str, *flags: str) -> Path:
        (tmp_path / "conf.c").write_text(source)
        (tmp_path / "main.c").write_text("#include <stdio.h>\n" + main)
        program = tmp_path / "main"
        files = [tmp_path / "conf.c", tmp_path / "main.c"]
        warnings = ["-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *warnings, *files, *flags, "-o", program], check=True)
        return program

    return make


def test_the_jemalloc_source_acts_in_a_program_that_is_linked_with_jemalloc(
    profile_of: Callable[[str], Profile], linked: Callable[..., Path]
) -> None:
    profile = profile_of("jemalloc")
    program = linked(
        export.render(profile, "c-jemalloc"),
        "int mallctl(const char *, void *, size_t *, void *, size_t);\n"
        "int main(void) {\n"
        "    unsigned n = 0; size_t size = sizeof n;\n"
        '    int failed = mallctl("opt.narenas", &n, &size, NULL, 0);\n'
        '    printf("%u\\n", n);\n'
        "    return failed;\n"
        "}\n",
        "-l:libjemalloc.so.2",
    )
    for environment, found in (({}, profile.params["narenas"]), ({"MALLOC_CONF": "narenas:5"}, 5)):
        done = subprocess.run([program], env=environment, capture_output=True, text=True)
        assert (done.returncode, int(done.stdout)) == (0, found)


def test_the_jemalloc_source_defines_the_string_that_jemalloc_reads(
    profile_of: Callable[[str], Profile], linked: Callable[..., Path]
) -> None:
    profile = profile_of("jemalloc")
    program = linked(
        export.render(profile, "c-jemalloc"),
        "extern const char *malloc_conf;\nint main(void) { puts(malloc_conf); }\n",
    )
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == profile.environment["MALLOC_CONF"]


def test_the_rust_source_ends_the_string_as_c_does(profile_of: Callable[[str], Profile]) -> None:
    profile = profile_of("jemalloc")
    conf = profile.environment["MALLOC_CONF"]
    assert f'b"{conf}\\0"' in export.render(profile, "rust-jemalloc")


def test_the_mimalloc_source_acts_in_a_program_that_is_linked_with_mimalloc(
    profile_of: Callable[[str], Profile], linked: Callable[..., Path]
) -> None:
    profile = profile_of("mimalloc")
    text = export.render(profile, "c-mimalloc")
    options = dict(re.findall(r"mi_option_set\((mi_option_\w+), (\d+)\);", text))
    assert len(options) == len(profile.environment) > 0
    reads = "".join(f'    printf("%ld\\n", mi_option_get({name}));\n' for name in options)
    main = f"#include <mimalloc.h>\nint main(void) {{\n{reads}}}\n"
    program = linked(text, main, "-lmimalloc")
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == list(options.values())


def test_a_size_of_mimalloc_is_a_number_of_kib_in_c(make_profile: MakeProfile) -> None:
    newer = AllocatorId("mimalloc", "2.1.7", "libmimalloc.so.2", "c" * 64)
    text = export.render(make_profile({"arena_reserve": 1 << 16}, allocator=newer), "c-mimalloc")
    assert "mi_option_set(mi_option_arena_reserve, 65536);" in text
