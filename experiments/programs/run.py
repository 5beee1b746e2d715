"""Tune real programs, one study each, and write down what came out.

    run.py                                all cases, about a quarter of an hour
    run.py --only large-buffers redis     some of them; the others' results are kept
    run.py --list                         what there is, and the command of each

Each case is one `hztune tune` of its own, as a user would start it. Its summary and its profile go
to results.json as soon as it has ended, with the machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
MEANT_STATUSES = (0, 3)  # a verdict, or "nothing keeps the limit"
FUNCTIONS = 10
PIGEONS = 10


@dataclass(frozen=True, slots=True)
class Case:
    """One study.

    Attributes:
        name: In the results.
        options: Of hztune, beside the allocator and the budget.
        command: The program; empty: a workload or a server is in the options. In both, {here},
            {work}, {python} and {size} are put in.
        size: How much it does in a study.
        short: How much it does where only its output matters.
        allocator: Whose parameters are sought; "any" chooses among all.
        needs: Programs that must be installed, each with its Debian package.
        variables: Set for hztune and so for the program.
    """

    name: str
    options: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    size: int = 0
    short: int = 0
    allocator: str = "any"
    needs: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    def words(self, work: Path, size: int) -> list[str]:
        """The program's command."""
        return [word.format(**_held(work, size)) for word in self.command]

    def told(self, work: Path, size: int) -> list[str]:
        """The options."""
        return [word.format(**_held(work, size)) for word in self.options]


def _held(work: Path, size: int) -> dict[str, object]:
    return {"here": HERE, "work": work, "python": sys.executable, "size": size}


PYTHON = ("{python}", "-S", "-E")
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


class CaseError(Exception):
    """A case that could not be measured; the message says why."""


def build(work: Path) -> None:
    """Compiles and writes what the commands need into `work`.

    Raises:
        CaseError: A compiler is missing, or refuses.
    """
    for name in ("messages", "phases"):
        source = HERE / f"{name}.cpp"
        words = ["g++", "-std=c++20", "-O2", "-pthread", str(source), "-o", str(work / name)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise CaseError("g++ is not installed (Debian's package: g++)") from error
        if done.returncode != 0:
            raise CaseError(f"{source.name} does not compile: {done.stderr[:400]}")
    (work / "large.c").write_text("".join(large_source()))
    (work / "pigeons.smt2").write_text("".join(pigeons(PIGEONS)))
    (work / "small").write_bytes(b"".join(b"%d %d\n" % (i, i * i % 9973) for i in range(10_000)))


def large_source() -> Iterator[str]:
    """C that gives an optimiser much to allocate: functions full of branches and loops."""
    yield "#include <stdint.h>\n"
    for number in range(FUNCTIONS):
        yield f"uint64_t f{number}(uint64_t x, const uint32_t *p)\n{{\n"
        for step in range(60):
            yield f"    if (x % {step + 3} == {number % (step + 3)})\n"
            yield f"        for (unsigned i = 0; i < {step + 2}; i++)\n"
            yield f"            x += p[(x + i) & 255] ^ {step};\n"
            yield f"    else\n        x = (x << {step % 13 + 1}) ^ (x >> {step % 7 + 1});\n"
        yield "    return x;\n}\n"


def pigeons(count: int) -> Iterator[str]:
    """SMT-LIB that a solver must refute by trying: `count` pigeons, a hole less."""
    holes = range(count - 1)
    for pigeon in range(count):
        for hole in holes:
            yield f"(declare-const p{pigeon}h{hole} Bool)\n"
        yield f"(assert (or {' '.join(f'p{pigeon}h{hole}' for hole in holes)}))\n"
    for hole in holes:
        for one in range(count):
            for other in range(one):
                yield f"(assert (not (and p{one}h{hole} p{other}h{hole})))\n"
    yield "(check-sat)\n"


def missing(case: Case) -> list[str]:
    """What is not installed of what a case needs, in words."""
    return [
        f"{program} is not installed (Debian's package: {package})"
        for program, package in case.needs
        if shutil.which(program) is None
    ]


def study(case: Case, work: Path, budget: str, allocator: str, out: Path) -> list[str]:
    """The command line of a case's study."""
    line = [sys.executable, "-m", "hztune", "tune", "--allocator", allocator, "--budget", budget]
    line += ["--out", str(out), "--json", *case.told(work, case.size)]
    return [*line, "--", *case.words(work, case.size)] if case.command else line


def measure(case: Case, work: Path, budget: str, allocator: str) -> dict[str, Any]:
    """Carries out a case's study and returns what it left.

    Raises:
        CaseError: A program is missing, or hztune failed.
    """
    if lacking := missing(case):
        raise CaseError(f"{case.name}: {'; '.join(lacking)}")
    out = work / f"study-{case.name}"
    line = study(case, work, budget, allocator, out)
    variables = [f"{name}={value}" for name, value in case.variables]
    done = subprocess.run(
        ["env", *variables, *line], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in MEANT_STATUSES:
        raise CaseError(f"{case.name}: hztune ended with status {done.returncode}")
    summary = json.loads(done.stdout)
    del summary["out"]
    return {
        "name": case.name,
        "options": list(case.options),
        "command": list(case.command),
        "size": case.size,
        "variables": dict(case.variables),
        "asked": allocator,
        "budget": budget,
        "exit_status": done.returncode,
        "remarks": remarks(case),
        "summary": summary,
        "profile": json.loads((out / "profile.json").read_text()),
    }


def remarks(case: Case) -> list[str]:
    """What hztune says of the programs that a case needs: one may bring its own allocator."""
    from hztune.allocator import loaded_program

    return [said for program, _ in case.needs for said in loaded_program.inspect(program).remarks()]


def record(results: Path, rows: dict[str, dict[str, Any]]) -> None:
    """Writes the results so far, in the order of CASES."""
    ordered = [rows[case.name] for case in CASES if case.name in rows]
    text = json.dumps({"schema": 1, "cases": ordered}, indent=1)
    results.write_text(text + "\n")


def known(results: Path) -> dict[str, dict[str, Any]]:
    """The results of an earlier run, by name."""
    if not results.is_file():
        return {}
    return {row["name"]: row for row in json.loads(results.read_text())["cases"]}


def line_of(row: dict[str, Any]) -> str:
    """A result in one line."""
    found = row["summary"]
    ratio = "-" if found["ratio"] is None else f"{found['ratio']:.3f}x"
    ends = "" if found["ratio"] is None else f" [{found['ci_low']:.3f}, {found['ci_high']:.3f}]"
    rss = "" if found["rss_ratio"] is None else f"  memory {found['rss_ratio']:.2f}x"
    allocator = row["profile"]["allocator"]["name"]
    return f"{row['name']:18}{found['verdict']:13}{ratio}{ends}{rss}  {allocator} {found['params']}"


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", choices=[case.name for case in CASES], default=[])
    add("--budget", default="90s", help="of each study; default 90s")
    add("--allocator", default="", help="instead of each case's own: any, glibc, ...")
    add("--results", type=Path, default=RESULTS, help="default: results.json beside this file")
    add("--list", action="store_true", help="print the cases and measure nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Carry out the studies; 1 when one could not be measured."""
    asked = arguments(words)
    chosen = [case for case in CASES if not asked.only or case.name in asked.only]
    if asked.list:
        for case in chosen:
            line = study(case, Path("WORK"), asked.budget, case.allocator, Path("OUT"))
            print(case.name, shlex.join(line[3:]))
        return 0
    rows, status = known(asked.results), 0
    with tempfile.TemporaryDirectory(prefix="hztune-programs-") as folder:
        work = Path(folder)
        build(work)
        for case in chosen:
            try:
                row = measure(case, work, asked.budget, asked.allocator or case.allocator)
            except CaseError as error:
                print(error, file=sys.stderr)
                status = 1
                continue
            row["measured"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            rows[case.name] = row
            record(asked.results, rows)
            print(line_of(row), flush=True)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CaseError as error:
        sys.exit(f"run.py: {error}")
