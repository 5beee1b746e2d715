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
from collections.abc import Callable
from pathlib import Path

import pytest

from hztune import params

pytestmark = pytest.mark.slow

Build = Callable[..., Path]
DEADLINE_S = 600

CONSUMER_CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(consumer C)
find_package(hz 0.1 REQUIRED)
add_executable(with_static main.c)
target_link_libraries(with_static PRIVATE hz::static)
add_executable(with_prefixed main.c)
target_link_libraries(with_prefixed PRIVATE hz::prefixed)
add_executable(with_shared main.c)
target_link_libraries(with_shared PRIVATE hz::shared)
"""

CONSUMER_C = """
#include <hz/hz.h>
#include <hz/params.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    char *text = hz_malloc(100);
    int64_t cap = 0;
    strcpy(text, hz_version());
    hz_param_value("magazine_cap", &cap);
    printf("%s %lld\\n", text, (long long)cap);
    hz_free(text);
    return 0;
}
"""


NEEDED = {
    "core/CMakeLists.txt",
    "core/src/alloc.c",
    "tuner/_core.cdef.h",
    "search_spaces/hz.toml",
    "tests/conftest.py",
    "README.md",
    "LICENSE",
    "pyproject.toml",
}


def run(command: list[str | Path], **options: object) -> str:
    """Runs a command to its end and returns its stdout; its stderr stands in the error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def distributions(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and with the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, root])
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    """The wheel."""
    (found,) = distributions.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a fresh virtual environment that holds the wheel.

    What hztune depends on is lent by the environment that runs the tests, behind the fresh one's
    own packages, so that nothing is fetched.
    """
    home = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(home, with_pip=True)
    lent = sysconfig.get_path("platlib")
    (site,) = home.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n")
    run(
        [
            home / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            wheel,
        ]
    )
    return home / "bin"


@pytest.fixture
def answer(root: Path) -> str:
    """What the consumer prints: the version and a default, both from their one home."""
    match = re.search(r"project\(hz VERSION (\S+)", (root / "core/CMakeLists.txt").read_text())
    assert match is not None
    return f"{match[1]} {params.find('magazine_cap').default}\n"


@pytest.fixture
def outside(tmp_path: Path) -> dict[str, object]:
    """Options for a process that knows nothing of the checkout."""
    hidden = ("HZTUNE_CORE", "PYTHONPATH", "LD_LIBRARY_PATH", "CMAKE_PREFIX_PATH")
    return {"cwd": tmp_path, "env": {k: v for k, v in os.environ.items() if k not in hidden}}


def test_the_wheel_carries_libraries_headers_programs_and_spaces(wheel: Path, root: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    headers = {f"include/hz/{path.name}" for path in (root / "core/include/hz").iterdir()}
    spaces = {
        f"share/hztune/search_spaces/{p.name}" for p in (root / "search_spaces").glob("*.toml")
    }
    wanted = {
        "lib/libhz.so", "lib/libhz.a", "lib/libhz_prefixed.a", "lib/libhz-deepbind.so",
        "lib/cmake/hz/hzConfig.cmake", "lib/pkgconfig/hz.pc",
        "bin/hz-bench", "bin/hz-turns", "bin/hz-launch", *headers, *spaces,
    }  # fmt: skip
    assert {f"hztune/core/{name}" for name in wanted} <= names
    assert "hztune/_core.abi3.so" in names


def test_the_wheel_carries_every_module_of_the_package_and_no_test(wheel: Path, root: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    modules = {str(p.relative_to(root / "tuner")) for p in (root / "tuner/hztune").rglob("*.py")}
    assert names == modules


def test_one_wheel_serves_every_python_from_3_10_on(wheel: Path) -> None:
    assert "-cp310-abi3-linux_" in wheel.name


def test_the_sdist_holds_what_a_build_and_its_tests_need(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= NEEDED
    assert not [
        name for name in names if "__pycache__" in name or name.startswith((".git/", "build"))
    ]


def test_the_installed_command_answers_from_its_own_table(
    installed: Path, outside: dict[str, object]
) -> None:
    rows = json.loads(run([installed / "hztune", "params", "--json"], **outside))
    assert "magazine_cap" in [row["name"] for row in rows]


def test_every_path_of_the_installed_command_is_its_own(
    installed: Path, outside: dict[str, object]
) -> None:
    for what in (
        "lib",
        "static-lib",
        "deepbind",
        "include",
        "cmake",
        "bench",
        "launch",
        "turns",
        "spaces",
    ):
        path = Path(run([installed / "hztune", "paths", f"--{what}"], **outside).strip())
        assert path.exists()
        assert path.is_relative_to(installed.parent)


def test_the_installed_programs_run_and_the_library_takes_part(
    installed: Path, outside: dict[str, object]
) -> None:
    bench, lib = (
        run([installed / "hztune", "paths", option], **outside).strip()
        for option in ("--bench", "--lib")
    )
    listed = json.loads(run([bench, "--list", "--json"], **outside))
    assert "larson" in [each["name"] for each in listed["workloads"]]
    confirm = run(["sh", "-c", f"LD_PRELOAD={lib} HZ_CONFIRM=1 /bin/true 2>&1"], **outside)
    assert confirm.startswith("HZ_CONFIRM {")


def built_consumer(tmp_path: Path, hz_dir: Path, outside: dict[str, object]) -> Path:
    """A project that finds hz at `hz_dir`, built."""
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER_CMAKE)
    (tmp_path / "main.c").write_text(CONSUMER_C)
    build = tmp_path / "build"
    run(["cmake", "-S", tmp_path, "-B", build, f"-Dhz_DIR={hz_dir}"], **outside)
    run(["cmake", "--build", build], **outside)
    return build


@pytest.mark.parametrize("program", ["with_static", "with_prefixed", "with_shared"])
def test_a_project_finds_hz_in_the_installed_wheel(
    program: str, installed: Path, tmp_path: Path, answer: str, outside: dict[str, object]
) -> None:
    hz_dir = Path(run([installed / "hztune", "paths", "--cmake"], **outside).strip())
    build = built_consumer(tmp_path, hz_dir, outside)
    assert run([build / program], **outside) == answer


@pytest.fixture(scope="module")
def prefix(core_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation prefix that was moved after `cmake --install`."""
    first = tmp_path_factory.mktemp("prefix") / "first"
    run(["cmake", "--install", core_build, "--prefix", first])
    return first.rename(first.with_name("moved"))


@pytest.mark.parametrize("program", ["with_static", "with_prefixed", "with_shared"])
def test_a_project_finds_hz_in_a_prefix_that_was_moved(
    program: str, prefix: Path, tmp_path: Path, answer: str, outside: dict[str, object]
) -> None:
    (hz_dir,) = prefix.rglob("cmake/hz")
    build = built_consumer(tmp_path, hz_dir, outside)
    assert run([build / program], **outside) == answer


@pytest.mark.parametrize("linking", ["shared", "static"])
def test_pkg_config_gives_flags_that_link(
    linking: str, prefix: Path, tmp_path: Path, answer: str, outside: dict[str, object]
) -> None:
    (folder,) = prefix.rglob("pkgconfig")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    ask = ["pkg-config", "--cflags", "--libs", *(["--static"] if linking == "static" else []), "hz"]
    flags = run(ask, env=environment).split()  # type: ignore[arg-type]
    (tmp_path / "main.c").write_text(CONSUMER_C)
    libdir = next(flag[2:] for flag in flags if flag.startswith("-L"))
    how = ["-Wl,-Bstatic"] if linking == "static" else [f"-Wl,-rpath,{libdir}"]
    back = ["-Wl,-Bdynamic"] if linking == "static" else []
    run(["cc", tmp_path / "main.c", *how, *flags, *back, "-o", tmp_path / "main"], **outside)
    assert run([tmp_path / "main"], **outside) == answer
