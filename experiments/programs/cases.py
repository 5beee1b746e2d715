"""The programs that the experiments measure: how each is started, and what it needs.

One table for all experiments. `CASES` are tuned (run.py), each with the options that it gets of
hztune; `COMPARED` are programs that are only set beside each other under several allocators
(../real-programs).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import inputs

from hztune.measure.program import Program, described

HERE = Path(__file__).resolve().parent
SUITE = "mimalloc-bench"
"""Whose programs no distribution has: one builds them and puts them on the PATH."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program, or a server and its load.

    Attributes:
        name: In the results.
        options: Of hztune, beside the allocator and the budget.
        command: The program; empty: a workload or a server is in the options. In both, and in
            `build`, {here}, {work}, {python} and {size} are put in.
        size: How much it does where its speed matters.
        short: How much it does where only its output matters.
        allocator: Whose parameters are sought; "any" chooses among all.
        needs: Programs that must be installed, each with its Debian package, or SUITE.
        variables: Set for hztune and so for the program.
        build: The command that makes the program; empty: it is installed.
    """

    name: str
    options: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    size: int = 0
    short: int = 0
    allocator: str = "any"
    needs: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    build: tuple[str, ...] = ()

    def words(self, work: Path, size: int) -> list[str]:
        """The program's command."""
        return [word.format(**_held(work, size)) for word in self.command]

    def told(self, work: Path, size: int) -> list[str]:
        """The options."""
        return [word.format(**_held(work, size)) for word in self.options]

    def builds(self, work: Path) -> list[str]:
        """The command that makes the program; empty: none."""
        return [word.format(**_held(work, self.size)) for word in self.build]

    def program(self, work: Path, size: int) -> Program:
        """What hztune measures."""
        if self.command:
            return described(tuple(self.words(work, size)), name=self.name)
        told = self.told(work, size)
        options = {told[at].removeprefix("--"): told[at + 1] for at in range(0, len(told), 2)}
        return described(name=self.name, **options)

    @property
    def is_program(self) -> bool:
        """Whether it is a program or a server, and not one of hztune's own workloads."""
        return bool(self.command) or "--server" in self.options


def _held(work: Path, size: int) -> dict[str, object]:
    return {"here": HERE, "work": work, "python": sys.executable, "size": size}


PYTHON = ("{python}", "-S", "-E")
JQ = "group_by(.group) | map({{name: .[0].group, sum: (map(.value) | add)}}) | length"
YOSYS = "read_verilog {work}/logic.v; proc; opt; techmap; opt; stat"
POSTGRES = "/usr/lib/postgresql/15/bin"
PGBENCH = f"{POSTGRES}/pgbench -h {{{{dir}}}} -p {{{{port}}}} -U postgres postgres"
IS_ROOT = os.geteuid() == 0
"""PostgreSQL refuses to run as root."""

DB_BENCH = (
    "d=$(mktemp -d) && db_bench --benchmarks=fillrandom,readrandom,readseq --num={size} --db=$d "
    "--disable_wal=1 --compression_type=none --seed=1 --write_buffer_size=1000000 "
    "--cache_size=4000000 --max_background_jobs=1 2> /dev/null | grep -o '[0-9]* of [0-9]* found'; "
    "rm -r $d"
)
"""Its own report has times, which differ from run to run."""

OWN = "chown postgres" if IS_ROOT else "true"
AS_POSTGRES = "chroot --userspec=postgres / " if IS_ROOT else ""
CLUSTER = (
    "work=$(realpath {work}) && "
    f"chmod a+x $work && mkdir $work/pg && {OWN} $work/pg && "
    f"{AS_POSTGRES}{POSTGRES}/initdb -D $work/pg/data -U postgres --no-sync -A trust "
    f"--wal-segsize=1 > $work/pg.log && "
    f"{AS_POSTGRES}{POSTGRES}/pg_ctl -D $work/pg/data -w -s "
    "-o \"-k $work/pg -c listen_addresses=''\" start > $work/pg.log && "
    f"{POSTGRES}/pgbench -q -i -h $work/pg -U postgres postgres && "
    f"{AS_POSTGRES}{POSTGRES}/pg_ctl -D $work/pg/data -w -s -m fast stop"
)
"""Makes the tables that each run of the server has a copy of."""

CPP = ("g++", "-std=c++20", "-O2", "-pthread")
CASES = (
    Case("large-buffers", command=(*PYTHON, "{here}/large_buffers.py", "{size}"), size=5, short=2),
    Case(
        "dicts",
        command=("{python}", "-S", "{here}/dicts.py", "{size}"),
        size=100,
        short=20,
        variables=(("PYTHONMALLOC", "malloc"),),
    ),
    Case("lua", command=("lua5.4", "{here}/words.lua", "{size}"), size=600, short=20,
         needs=(("lua5.4", "lua5.4"),)),
    Case("ruby", command=("ruby", "--disable=gems", "{here}/words.rb", "{size}"),
         size=1_000, short=20, needs=(("ruby", "ruby"),)),
    Case(
        "php",
        command=("php", "-n", "{here}/words.php", "{size}"),
        size=1_000,
        short=20,
        needs=(("php", "php-cli"),),
        variables=(("USE_ZEND_ALLOC", "0"),),
    ),
    Case("node", command=("node", "{here}/objects.js", "{size}"), size=60, short=2,
         needs=(("node", "nodejs"),)),
    Case("z3", command=("z3", "{work}/pigeons.smt2"), needs=(("z3", "z3"),)),
    Case(
        "redis",
        (
            "--server",
            "redis-server --port {{port}} --save '' --loglevel warning",
            "--load",
            "redis-benchmark -p {{port}} -n {size} -r 20000 -d 400 -P 16 -t set,hset -q",
        ),
        size=200_000,
        short=500,
        needs=(("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")),
    ),
    Case(
        "memcached",
        (
            "--server",
            "memcached -u nobody -l 127.0.0.1 -p {{port}} -U 0 -t 1 -m 512",
            "--load",
            "memcslap --servers=127.0.0.1:{{port}} --concurrency=4 --execute-number={size}",
        ),
        size=10_000,
        short=50,
        needs=(("memcached", "memcached"), ("memcslap", "libmemcached-tools")),
    ),
    Case(
        "nginx",
        (
            "--prepare",
            "printf '%s' 'pid {{dir}}/pid; events {{}} http {{ access_log off; "
            "gzip on; gzip_min_length 1; gzip_types *; "
            "client_body_temp_path {{dir}}/1; proxy_temp_path {{dir}}/2; "
            "fastcgi_temp_path {{dir}}/3; uwsgi_temp_path {{dir}}/4; scgi_temp_path {{dir}}/5; "
            "server {{ listen 127.0.0.1:{{port}}; root {here}; }} }}' > {{dir}}/nginx.conf",
            "--server",
            "nginx -c {{dir}}/nginx.conf -e {{dir}}/errors "
            "-g 'daemon off; master_process off;'",
            "--load",
            "ab -q -n {size} -c 8 -H 'Accept-Encoding: gzip' http://127.0.0.1:{{port}}/orders.sql",
        ),
        size=4_000,
        short=50,
        needs=(("nginx", "nginx-light"), ("ab", "apache2-utils")),
    ),
    Case(
        "postgres",
        (
            "--prepare",
            f"{OWN} {{{{dir}}}} && cp -a {{work}}/pg/data {{{{dir}}}}/data",
            "--server",
            f"{AS_POSTGRES}{POSTGRES}/postgres -D {{{{dir}}}}/data -p {{{{port}}}} -k {{{{dir}}}} "
            "-c fsync=off -c autovacuum=off -c dynamic_shared_memory_type=mmap",
            "--ready",
            f"{POSTGRES}/pg_isready -q -h {{{{dir}}}} -p {{{{port}}}}",
            "--load",
            f"{PGBENCH} -n -S -c 2 -t {{size}}",
        ),
        size=2_000,
        short=50,
        variables=(("TMPDIR", "/dev/shm"),),  # a copy on a disk takes longer than what is measured
        needs=((f"{POSTGRES}/postgres", "postgresql-15"), (f"{POSTGRES}/pgbench", "postgresql-15")),
        build=("sh", "-c", CLUSTER),
    ),
    Case(
        "sqlite",
        command=("sqlite3", ":memory:", ".read {here}/orders.sql"),
        needs=(("sqlite3", "sqlite3"),),
    ),
    Case(
        "cpp-messages",
        command=("{work}/messages", "{size}"),
        size=700,
        short=40,
        needs=(("g++", "g++"),),
        build=(*CPP, "{here}/messages.cpp", "-o", "{work}/messages"),
    ),
    Case("gcc", command=("gcc", "-O1", "-c", "{work}/large.c", "-o", "/dev/null"),
         needs=(("gcc", "gcc"),)),
    Case("clang", command=("clang", "-O1", "-c", "{work}/large.c", "-o", "/dev/null"),
         needs=(("clang", "clang"),)),
    Case("xz", command=("xz", "-9", "-k", "-c", "{work}/small"), needs=(("xz", "xz-utils"),)),
    Case(
        "memory-possible",
        ("--max-rss", "0.7x"),
        ("{work}/phases", "{size}"),
        size=3,
        short=1,
        allocator="glibc",
        needs=(("g++", "g++"),),
        build=(*CPP, "{here}/phases.cpp", "-o", "{work}/phases"),
    ),
    Case(
        "memory-impossible",
        ("--max-rss", "0.2x"),
        (*PYTHON, "{here}/large_buffers.py", "{size}"),
        size=5,
        short=2,
        allocator="glibc",
    ),
    Case(
        "remote-glibc",
        ("--workload", "remote", "--param", "remote=50", "--threads", "8"),
        allocator="glibc",
    ),
)  # fmt: skip

COMPARED = (
    Case("lua-trees", command=("lua5.4", "{here}/trees.lua", "{size}"), size=300, short=5,
         needs=(("lua5.4", "lua5.4"),)),
    Case(
        "cpp-trees",
        command=("{work}/trees", "{size}"),
        size=200,
        short=20,
        needs=(("g++", "g++"),),
        build=(*CPP, "{here}/trees.cpp", "-o", "{work}/trees"),
    ),
    Case("cfrac", command=("cfrac", "{size}"), size=17545186520507317056371138836327483,
         short=1000730021, needs=(("cfrac", SUITE),)),
    Case("espresso", command=("espresso", "{work}/cover.pla"), needs=(("espresso", SUITE),)),
    Case("barnes", command=("sh", "-c", "exec barnes < {work}/bodies"),
         needs=(("barnes", SUITE),)),
    Case(
        "gs",
        command=(
            "gs", "-q", "-dBATCH", "-dNOPAUSE", "-sDEVICE=ppmraw", "-sOutputFile=/dev/null",
            "-c", "/rounds {size} def", "-f", "{here}/shapes.ps",
        ),
        size=300,
        short=10,
        needs=(("gs", "ghostscript"),),
    ),
    Case("perl", command=("perl", "{here}/words.pl", "{size}"), size=600, short=20,
         needs=(("perl", "perl"),)),
    Case("jq", command=("jq", "-c", JQ, "{work}/records.json"), needs=(("jq", "jq"),)),
    Case("yosys", command=("yosys", "-Q", "-T", "-p", YOSYS), needs=(("yosys", "yosys"),)),
    Case("db-bench", command=("sh", "-c", DB_BENCH), size=60_000, short=2_000,
         variables=(("TMPDIR", "/dev/shm"),), needs=(("db_bench", "rocksdb-tools"),)),
    Case(
        "rust",
        command=("{work}/words-rust", "{size}"),
        size=1_500,
        short=20,
        needs=(("rustc", "rustc"),),
        build=("rustc", "-O", "{here}/words.rs", "-o", "{work}/words-rust"),
    ),
    Case(
        "go-cgo",
        command=("{work}/words-go", "{size}"),
        size=1_500,
        short=20,
        needs=(("go", "golang-go"), ("gcc", "gcc")),
        build=("go", "build", "-o", "{work}/words-go", "{here}/words.go"),
    ),
)  # fmt: skip


class CaseError(Exception):
    """A case that could not be measured; the message says why."""


def build(
    work: Path,
    cases: Iterable[Case],
    functions: int = inputs.FUNCTIONS,
    pigeons: int = inputs.PIGEONS,
) -> None:
    """Makes what the commands of cases need in `work`, but programs without a compiler."""
    inputs.write(work, functions, pigeons)
    lines = {case.build: case for case in cases if case.build and not missing(case)}
    for case in lines.values():
        done = subprocess.run(case.builds(work), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CaseError(f"{case.name} cannot be built: {done.stderr[:400]}")


def missing(case: Case) -> list[str]:
    """What is not installed of what a case needs, in words."""
    return [
        f"{program} is not installed ({_source(package)})"
        for program, package in case.needs
        if shutil.which(program) is None
    ]


def _source(package: str) -> str:
    if package == SUITE:
        return f"{SUITE} has it: build it and put it on the PATH"
    return f"Debian's package: {package}"


@contextmanager
def environment(case: Case) -> Iterator[None]:
    """Sets the variables of a case."""
    before = dict(os.environ)
    os.environ.update(case.variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
