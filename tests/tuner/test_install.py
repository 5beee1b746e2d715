"""What users install works: the wheel, the sdist behind it, the CMake package, pkg-config."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from hztune import params, profile

pytestmark = pytest.mark.slow

DEADLINE_S = 900
HIDDEN = ("HZTUNE_CORE", "PYTHONPATH", "LD_LIBRARY_PATH", "CMAKE_PREFIX_PATH")
PROGRAMS = ("with_static", "with_prefixed", "with_shared")

CONSUMER_CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(consumer C)
find_package(hz 0.1 REQUIRED)
foreach(kind static prefixed shared)
    add_executable(with_${kind} main.c)
    target_link_libraries(with_${kind} PRIVATE hz::${kind})
endforeach()
"""

CONSUMER_C = """
#include <hz/hz.h>
#include <hz/params.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    char *text = hz_malloc(100);
    char cap[32];
    strcpy(text, hz_version());
    hz_get("magazine_cap", cap, sizeof cap);
    printf("%s %s\\n", text, cap);
    hz_free(text);
    return 0;
}
"""


def run(command, **options):
    """Runs a command to its end and returns its stdout; its stderr stands in the error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    """The wheel, not optimized, that was built from the sdist, which lies beside it."""
    folder = tmp_path_factory.mktemp("dist")
    quick = {"PYTHON": sys.executable, "SKBUILD_CMAKE_BUILD_TYPE": "Quick"}
    run([root / ".ci" / "wheels", folder], env={**os.environ, **quick})
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The bin directory of a fresh virtual environment that holds the wheel.

    What hztune depends on is lent by the environment that runs the tests, behind the fresh one's
    own packages, pip among it, so that nothing is fetched.
    """
    home = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(home)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{sysconfig.get_path('platlib')}\n")
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run([*pip, wheel])
    return home / "bin"


@pytest.fixture
def answer(root):
    """What the consumer prints: the version and a default, both from their one home."""
    match = re.search(r"project\(hz VERSION (\S+)", (root / "core/CMakeLists.txt").read_text())
    return f"{match[1]} {params.find('magazine_cap').default}\n"


@pytest.fixture
def outside(tmp_path):
    """Options for a process in a folder, which knows nothing of the checkout."""
    return {"cwd": tmp_path, "env": {k: v for k, v in os.environ.items() if k not in HIDDEN}}


def test_the_wheel_carries_modules_libraries_headers_and_spaces(wheel, root):
    names = set(zipfile.ZipFile(wheel).namelist())
    headers = {f"include/hz/{path.name}" for path in (root / "core/include/hz").iterdir()}
    files = (root / "search_spaces").glob("*.toml")
    spaces = {f"share/hztune/search_spaces/{path.name}" for path in files}
    wanted = {
        "lib/libhz.so", "lib/libhz.a", "lib/libhz_prefixed.a", "lib/libhz-deepbind.so",
        "lib/libhz-agent.so",
        "lib/cmake/hz/hzConfig.cmake", "lib/pkgconfig/hz.pc",
        "bin/hz-bench", "bin/hz-turns", "bin/hz-launch", "bin/hz-alternate", *headers, *spaces,
        "lib/libhz-recorder.so", "bin/hz-record", "bin/hz-trace",
    }  # fmt: skip
    assert {f"hztune/core/{name}" for name in wanted} <= names
    tables = {p.name for p in (root / "tuner/hztune/allocator").glob("*.toml")}
    assert {f"hztune/allocator/{name}" for name in tables} <= names
    assert {"hztune/_core.abi3.so", "hztune/py.typed"} <= names
    modules = {str(p.relative_to(root / "tuner")) for p in (root / "tuner/hztune").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules


def test_one_wheel_serves_every_python_and_glibc_and_its_readme_stands_alone(wheel):
    """Python from 3.10 on, and glibc from 2.34 on."""
    found = re.search(r"-cp310-abi3-manylinux_2_([0-9]+)_[a-z]", wheel.name)
    assert found is not None and int(found[1]) <= 34, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    (home,) = re.findall("^Project-URL: Repository, (.+)$", text, re.M)
    inside = [each for each in re.findall(r"\]\(([^)]+)\)", text) if each[0] != "#"]
    assert inside and all(each.startswith(f"{home}/") for each in inside)


def test_the_sdist_holds_what_a_build_and_its_tests_need(wheel):
    """The wheel was built from it."""
    (path,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {".ci/wheels", "tests/conftest.py", "core/src/alloc.c", "LICENSE"}
    assert not [n for n in names if "__pycache__" in n or n.startswith((".git/", "build"))]


def test_the_installed_command_needs_nothing_else(installed, make_profile, outside, root):
    share = root / "tuner" / "share"
    committed = [path.relative_to(share) for path in share.rglob("*") if path.is_file()]
    assert len(committed) == 3, "completions"
    for path in committed:
        assert (installed.parent / "share" / path).read_bytes() == (share / path).read_bytes()
    rows = run([installed / "hztune", "paths"], **outside).splitlines()
    paths = [Path(row.split(maxsplit=1)[1]) for row in rows]
    assert len(paths) == 12
    assert all(path.exists() and path.is_relative_to(installed.parent) for path in paths)
    profile.save(make_profile(), outside["cwd"] / "profile.json")
    command, bare = installed / "hztune", {**outside, "env": {"PATH": str(installed)}}
    assert "findings" in json.loads(run([command, "doctor", "--json"], **bare))
    assert "larson" in run([command, "list", "workloads"], **bare)
    under = run([command, "run", "profile.json", "--", "/usr/bin/env"], **bare)
    assert f"LD_PRELOAD={installed.parent}" in under


def test_a_project_finds_hz_in_the_wheel(installed, tmp_path, answer, outside):
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER_CMAKE)
    (tmp_path / "main.c").write_text(CONSUMER_C)
    hz_dir = run([installed / "hztune", "paths", "--cmake"], **outside).strip()
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Dhz_DIR={hz_dir}"], **outside)
    run(["cmake", "--build", tmp_path / "build"], **outside)
    assert [run([tmp_path / "build" / name], **outside) for name in PROGRAMS] == 3 * [answer]
    for archive in ("libhz.a", "libhz_prefixed.a"):  # a program that links one gets no more of it
        (found,) = installed.parent.rglob(archive)
        assert ".debug_info" not in run(["objdump", "-h", found])


@pytest.mark.parametrize("linking", ["shared", "static"])
def test_pkg_config_gives_flags_that_link(linking, installed, tmp_path, answer, outside):
    (folder,) = installed.parent.rglob("core/lib/pkgconfig")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    ask = ["pkg-config", "--cflags", "--libs", *(["--static"] if linking == "static" else []), "hz"]
    flags = run(ask, env=environment).split()
    (tmp_path / "main.c").write_text(CONSUMER_C)
    libdir = next(flag[2:] for flag in flags if flag.startswith("-L"))
    how = ["-Wl,-Bstatic"] if linking == "static" else [f"-Wl,-rpath,{libdir}"]
    back = ["-Wl,-Bdynamic"] if linking == "static" else []
    run(["cc", tmp_path / "main.c", *how, *flags, *back, "-o", tmp_path / "main"], **outside)
    assert run([tmp_path / "main"], **outside) == answer


def test_hz_as_a_folder_is_configured(root, tmp_path, outside):
    (tmp_path / "hz_config.h").touch()
    (tmp_path / "main.c").write_text(CONSUMER_C)
    (tmp_path / "CMakeLists.txt").write_text(f"""
        cmake_minimum_required(VERSION 3.20)
        project(consumer C)
        set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
        set(HZ_CONFIG_HEADER hz_config.h)
        add_subdirectory({root / "core"} hz)
        add_executable(program main.c)
        target_link_libraries(program PRIVATE hz::static hz::prefixed hz::shared)
    """)
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"], **outside)
    built = json.loads((tmp_path / "build" / "compile_commands.json").read_text())
    commands = [each["command"] for each in built]
    (command,) = [each for each in commands if "hz_static.dir/src/alloc.c" in each]
    assert str(tmp_path / "hz_config.h") in command
    assert not [each["file"] for each in built if "/core/bench/" in each["file"]]
