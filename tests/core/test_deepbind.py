"""Programs that load libraries with RTLD_DEEPBIND run under every preloaded allocator: PHP does."""

from __future__ import annotations

import pytest

OTHERS = {
    "jemalloc": "libjemalloc.so.2",
    "mimalloc": "libmimalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
}
#: RTLD_DEEPBIND reaches the C library.
KEPT = {"HZ_KEEP_DEEPBIND": "1"}
#: PHP's blocks are malloc's own, all of them.
PLAIN = {"USE_ZEND_ALLOC": "0"}

PHP = r"""
foreach (get_loaded_extensions() as $name) echo $name, ' ', phpversion($name), "\n";
$rows = array_map(fn($i) => ['id' => $i, 'name' => str_repeat('n', $i % 90)], range(1, 3000));
$text = json_encode($rows);
echo crc32($text), ' ', json_decode($text, true) == $rows ? 'same' : 'other', "\n";
echo strlen(iconv('UTF-8', 'ISO-8859-1', str_repeat("\u{e4}", 999))), ' ', ctype_digit('12'), "\n";
echo count(token_get_all('<?php ' . str_repeat('f($x); ', 500))), ' ', setlocale(LC_ALL, 0), "\n";
echo preg_match_all('/"n+"/', $text), ' ', hash('sha256', serialize($rows)), "\n";
$file = new SplTempFileObject(); foreach ($rows as $row) $file->fputcsv($row); echo $file->ftell();
echo ' ', FFI::cdef('size_t strlen(const char *);')->strlen('four'), ' ', posix_getpid() > 0, "\n";
"""


@pytest.fixture(params=["hz", *OTHERS])
def allocator(request):
    return str(request.param)


@pytest.fixture
def under(allocator, libhz):
    """The variables that put a program under the allocator."""
    if allocator == "hz":
        return {"LD_PRELOAD": str(libhz)}
    return {"LD_PRELOAD": f"{OTHERS[allocator]}:{libhz.with_name('libhz-deepbind.so')}"}


# ---- PHP, whose extensions are loaded so --------------------------------------------------------


@pytest.mark.parametrize("variables", [{}, PLAIN], ids=["its own heap", "malloc alone"])
@pytest.mark.parametrize(
    "words",
    [("-r", "echo 1;"), ("-m",), ("-r", PHP), ("-n", "-r", "echo 1;")],
    ids=["one line", "modules", "extensions", "without its ini"],
)
def test_php_prints_what_it_prints_without_a_preload(words, variables, under, preload):
    wanted = preload("php", *words, **variables, LD_PRELOAD="")
    got = preload("php", *words, **variables, **under)
    assert (wanted.returncode, wanted.stderr) == (0, "")
    assert (got.returncode, got.stderr, got.stdout) == (0, "", wanted.stdout)


# ---- a program of ours --------------------------------------------------------------------------


def test_a_library_shares_the_malloc_of_its_program_and_the_switch_lets_the_flag_through(
    allocator, under, holds
):
    holds("deepbind", **under, TEST_ALLOCATOR=OTHERS.get(allocator, "libhz.so"))
    holds("deepbind", **under, **KEPT)
