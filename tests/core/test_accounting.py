"""What mallinfo2, malloc_info and their kin tell of the memory that a program has."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

Preload = Callable[..., "subprocess.CompletedProcess[str]"]

CONFIGURATIONS = (
    {},
    {"HZ_SHARDS": "4", "HZ_DEPOT_LOCK": "lockfree"},
    {"HZ_SHARDS": "4", "HZ_REMOTE_GROUPING": "shard", "HZ_DEFER_FREE": "64"},
    {"HZ_SHARDS": "2", "HZ_REMOTE_GROUPING": "none", "HZ_DOUBLE_FREE": "at_call"},
    {"HZ_HARDENING": "light", "HZ_SPAN_CACHE": "0", "HZ_MAGAZINE_CAP": "32"},
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=lambda c: " ".join(f"{k[3:]}={v}" for k, v in c.items())
)
def test_live_and_free_bytes_are_true_under(
    configuration: dict[str, str], core_tests: Path, preload: Preload
) -> None:
    done = preload(core_tests / "tests" / "accounting", **configuration, TEST_ALLOCATOR="libhz.so")
    assert done.returncode == 0, done.stdout + done.stderr


def number(parent: ElementTree.Element, path: str, name: str) -> int:
    """An attribute of the one element that `path` finds below `parent`."""
    found = parent.findall(path)
    assert len(found) == 1, f"{path}: {len(found)} times"
    return int(found[0].attrib[name])


def bytes_in_use(parent: ElementTree.Element) -> int:
    """What the system gave, less what is free."""
    free = sum(number(parent, f"total[@type='{kind}']", "size") for kind in ("fast", "rest"))
    return number(parent, "system[@type='current']", "size") - free


@pytest.mark.slow
@pytest.mark.parametrize(
    ("allocator", "tolerance"), [("glibc", 0.01), ("hz", 0)], ids=["glibc", "hz"]
)
def test_a_reader_of_malloc_info_understands(
    allocator: str, tolerance: float, core_tests: Path, libhz: Path, preload: Preload
) -> None:
    library = {"glibc": "", "hz": str(libhz)}[allocator]
    done = preload(core_tests / "tests" / "accounting", "--xml", LD_PRELOAD=library)
    told, text = done.stdout.split("\n", 1)
    root = ElementTree.fromstring(text)
    assert (root.tag, root.attrib["version"]) == ("malloc", "1")
    heaps = root.findall("heap")
    assert [heap.attrib["nr"] for heap in heaps] == [str(i) for i in range(len(heaps))]
    assert bytes_in_use(root) == sum(map(bytes_in_use, heaps))
    in_use = bytes_in_use(root) + number(root, "total[@type='mmap']", "size")
    assert in_use == pytest.approx(int(told), rel=tolerance, abs=0)
    for heap in heaps:
        sizes = heap.findall("sizes/size")
        assert sizes, "no free block"
        for size in sizes:
            low, high, total, count = (
                int(size.attrib[k]) for k in ("from", "to", "total", "count")
            )
            assert low * count <= total <= high * count
    for parent in [root, *heaps]:
        most = number(parent, "system[@type='max']", "size")
        assert number(parent, "system[@type='current']", "size") <= most
        assert number(parent, "aspace[@type='total']", "size") > 0
        assert number(parent, "aspace[@type='mprotect']", "size") > 0
