"""Real programs give the same output and exit status on hz as on the C library's malloc.

Those, too, that load libraries with RTLD_DEEPBIND, under every preloaded allocator: PHP does.

With TEST_MORE above 1 (tests/soak) they run in the hardened modes, too.
"""

import os
import shutil
import subprocess
import sys

import pytest
from tests.bench.conftest import LIBRARIES

PYTHON = """
import json, pickle, re, threading, collections, zlib
def work(n, out):
    rows = [{"id": i, "name": "n" * (i % 50), "tags": list(range(i % 9))} for i in range(1500)]
    text = json.dumps(rows)
    assert json.loads(text) == rows and pickle.loads(pickle.dumps(rows)) == rows
    out[n] = (len(text), len(re.findall(r'"n+"', text)), zlib.crc32(text.encode()))
out = {}
threads = [threading.Thread(target=work, args=(n, out)) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
queue = collections.deque(maxlen=1000)
for i in range(40000): queue.append(bytes(i % 3000))
print(sorted(out.items()), sum(map(len, queue)))
"""

SQL = """
PRAGMA journal_mode=WAL;
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
  INSERT INTO t SELECT i, printf('row %d', i * 7919 % 30011), zeroblob(i % 400) FROM n;
CREATE INDEX u ON t(b);
DELETE FROM t WHERE a % 3 = 0;
UPDATE t SET b = b || 'x' WHERE a % 5 = 0;
VACUUM;
PRAGMA integrity_check;
SELECT count(*), sum(length(c)), min(b), max(b) FROM t;
SELECT substr(b, 5, 1), count(*) FROM t GROUP BY 1 ORDER BY 1;
"""

GIT = """
set -e
git init -q -b main r; cd r
git config user.name Tester; git config user.email tester@example.org; git config gc.auto 0
export GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z
for i in $(seq 8); do
    seq $((i * 500)) > f$i; seq $i $((i * 300)) > common; git add .; git commit -q -m "number $i"
done
git checkout -q -b side HEAD~5; seq 9 > side; git add .; git commit -q -m side
git checkout -q main; git merge -q -m merged side
git log --stat --format=%H%s; git gc -q; git fsck --full; git repack -q -a -d -f
git diff HEAD~4 | sha256sum
"""

BASH = """
declare -A seen; text=
for i in {1..6000}; do seen[$((i % 997))]+=x; text=${text: -500}$i; done
for f in $(seq 1 100); do (echo $f | tr 1 2) ; done | sort | sha256sum
echo ${#seen[@]} ${#text} $(printf '%s\\n' "${!seen[@]}" | sort -n | sha256sum)
"""

SORT = "seq 40000 | sort -R --random-source=/bin/ls | sort --parallel=4 -S 20M | sha256sum"
XZ = "seq 100000 > s; xz -T4 -2 -k s; xz -dc s.xz | cmp - s && wc -c < s.xz"
TAR = """
cp -r /usr/include/linux/can t; tar czf t.tgz t; mv t u; tar xzf t.tgz; diff -r t u && echo same
"""

PROGRAMS = {
    "ls lists a large directory": ["ls", "-laR", "--time-style=+%s", "/usr/include"],
    "bash runs a script with many children": ["bash", "-c", BASH],
    "sqlite3 writes, vacuums and checks a database": ["sqlite3", "x.db", SQL],
    "git commits, merges, collects garbage and checks": ["bash", "-c", GIT],
    "sort sorts in parallel": ["bash", "-c", SORT],
    "xz compresses in threads and gets it back": ["bash", "-c", XZ],
    "tar and gzip go there and back": ["bash", "-c", TAR],
    "python threads parse and pickle, every object on malloc": [
        "env", "PYTHONMALLOC=malloc", "/usr/bin/python3", "-c", PYTHON,
    ],
}  # fmt: skip


STEPS = ["off"] if os.environ.get("TEST_MORE", "1") == "1" else ["off", "light", "full"]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("words", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_prints_and_ends_as_on_the_c_library(words, step, preload, tmp_path):
    wanted = preload(*words, LD_PRELOAD="")
    for path in tmp_path.iterdir():  # the second run finds the same empty directory
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    got = preload(*words, HZ_STRICT="1", HZ_HARDENING=step)
    assert (wanted.returncode, wanted.stderr) == (0, ""), f"without hz it fails: {wanted.stderr}"
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout == wanted.stdout


# ---- RTLD_DEEPBIND, which PHP's extensions are loaded with ---------------------------------------


ALLOCATORS = {"hz": "libhz.so", **LIBRARIES}
PLAIN = {"USE_ZEND_ALLOC": "0"}
"""PHP's blocks are malloc's own, all of them."""

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


@pytest.fixture(params=ALLOCATORS)
def under(request, libhz):
    """The variables that put a program under an allocator, whose library they name."""
    soname = ALLOCATORS[request.param]
    others = f"{soname}:{libhz.with_name('libhz-deepbind.so')}"
    return {"LD_PRELOAD": str(libhz) if soname == libhz.name else others, "TEST_ALLOCATOR": soname}


@pytest.mark.parametrize("variables", [{}, PLAIN], ids=["its own heap", "malloc alone"])
@pytest.mark.parametrize(
    "words", [("-r", PHP), ("-n", "-r", "echo 1;")], ids=["extensions", "without its ini"]
)
def test_php_prints_what_it_prints_without_a_preload(words, variables, under, preload):
    wanted = preload("php", *words, **variables, LD_PRELOAD="")
    got = preload("php", *words, **variables, **under)
    assert (wanted.returncode, wanted.stderr) == (0, "")
    assert (got.returncode, got.stderr, got.stdout) == (0, "", wanted.stdout)


def test_a_library_shares_the_malloc_of_its_program_or_has_the_flag(under, holds):
    holds("deepbind", **under)
    holds("deepbind", **under, HZ_KEEP_DEEPBIND="1")


PLUGIN = """#include <new>
extern "C" int catches(void) {
    volatile unsigned long much = 1UL << 62;
    try { delete (char *)::operator new(much); return 0; } catch (std::bad_alloc &) { return 1; }
}
"""


def test_a_plugin_in_cxx_of_a_program_in_c_catches_what_its_new_throws(preload, tmp_path):
    library = tmp_path / "plugin.so"
    words = ["c++", "-x", "c++", "-shared", "-fPIC", "-o", library, "-"]
    subprocess.run(words, input=PLUGIN, text=True, check=True)
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).catches())"
    done = preload(sys.executable, "-c", code, library)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
