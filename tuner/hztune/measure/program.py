"""A whole program as a target: what is run around it, and what its speed is.

A metric becomes a rate: operations per second of any kind, of which more is better. Wall time
counts as one operation a run; a metric of which less is better counts by its reciprocal.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from msgspec import structs

from hztune import process
from hztune.arguments import command_words, expression, named_command, within
from hztune.blocks import Arm
from hztune.errors import HztuneError, UsageError
from hztune.measure import network
from hztune.measure.identity import Fault
from hztune.measure.program_input import STDIN, Input, input_of
from hztune.quota import Quota
from hztune.rests import DEFAULT_IDLE_S, MOST_IDLE_S, RestPlan
from hztune.scratch import require_plain
from hztune.workload import WorkloadSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

Rate = Callable[[float, str], "float | Fault"]
"""From a run's wall seconds and what it printed to its rate, or to why it has none."""

Counts = Callable[[str], "tuple[Mapping[str, int], Mapping[str, int]]"]
"""From what a run printed to what its allocator counted, and what is known of the whole process."""

Better = Literal["higher", "lower"]

OPEN = "{}"
"""Stands first in a program's words where each arm brings a command of its own."""

By = Literal["turns", "runs"]

OUTPUT_BYTES = 64 << 20
"""Most that a program may print when its output matters."""

_PLACED = re.compile(r"(?<!\$)\{(port|dir)\}")
"""Words in a server's commands that each run has its own value for; `${port}` is a shell's own."""

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_READY_S = 60.0
_LEAST_TIMEOUT_S = 0.1
_MOST_TIMEOUT_S = 7 * 86400.0
_MOST_WARMUPS = 1000
_MOST_PORT = 65535
_COMMAND_S = 60.0
_HOOK_S = 600.0
_LEAST_LOAD_S = 0.25
"""Least length of one of several loads of a workload."""

_BENCH_RESTS = "^hz-bench: at rest$"


@dataclass(frozen=True, slots=True)
class Service:
    """What makes a program a server: it answers, is put under load, and is then stopped.

    All of it belongs to what a study is of: another field makes other studies of the old ones.

    Attributes:
        load: Shell command that puts it under load; its time and its output are what is measured.
        ready: Shell command that succeeds as soon as the server answers; "" to try the port.
        port: TCP port of this machine on which it answers; 0 with `ready`, and where each run has
            a port of its own, `{port}`.
    """

    load: str
    ready: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """What is run.

    Attributes:
        argv: Program and arguments; of a server, the server's.
        rate: Its speed; None: the reciprocal of its wall time.
        metric: What `rate` reads, in words: equal for equal metrics.
        reads_output: Whether the rate or the check needs what the program prints.
        prepare: Shell command before each run, not timed; "" for none.
        cleanup: Shell command after each run, not timed; "" for none.
        check: Shell command that reads the program's stdout and fails if it is wrong; "" for none.
        timeout_s: A run that takes longer is hanging.
        ready_s: A server that does not answer within that time is hanging.
        rss_limit_mb: A run whose processes together take more is ended; 0: no limit.
        seed_option: Option that gives the program the seed of a block; "" for none.
        threads: Threads that it keeps busy; 0: unknown.
        warmups: Uncounted runs before the first block.
        service: How it is used, if it is a server.
        counts: What it prints beside its speed; None: nothing of interest.
        name: How the user calls it; "": it has no name but its file's.
        better: Which numbers of its metric are better; only of interest where it has one.
        commands: What stands for OPEN in `argv`, by the allocator of the arm.
        by: How it is measured, "turns" or "runs"; "": as is found out.
        span_s: Seconds after which a server's load is told to end, by SIGINT; 0: it ends by itself.
        own_kb: Reads how much of its memory is no allocator's from what it prints; None: nothing.
        rest: Its rounds of load and rest; None: it is not looked at while it rests.
        seeks_kept: Whether what it keeps at rest is made less, and not its speed better.
        quota: The container in which each of its runs is measured; None: it has the machine.
        has_network: Whether each copy of a server, with its load, has a network of its own.
        input: What each run reads on stdin; None: nothing.
    """

    argv: tuple[str, ...]
    rate: Rate | None = None
    metric: str = ""
    reads_output: bool = False
    prepare: str = ""
    cleanup: str = ""
    check: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    rss_limit_mb: int = 0
    seed_option: str = ""
    threads: int = 0
    warmups: int = 1
    service: Service | None = None
    ready_s: float = DEFAULT_READY_S
    counts: Counts | None = None
    name: str = ""
    better: Better = "higher"
    commands: tuple[tuple[str, tuple[str, ...]], ...] = ()
    by: By | Literal[""] = ""
    span_s: float = 0.0
    own_kb: Callable[[str], int] | None = None
    rest: RestPlan | None = None
    seeks_kept: bool = False
    quota: Quota | None = None
    has_network: bool = False
    input: Input | None = None

    @property
    def label(self) -> str:
        """What it is called in reports."""
        if self.is_open:
            return self.name or ("server" if self.service else "program")
        return self.name or Path(self.argv[0]).name

    @property
    def is_open(self) -> bool:
        """Whether arms bring commands of their own."""
        return self.argv[0] == OPEN

    def of(self, arm: Arm) -> Program:
        """Returns what is run for an arm: the program itself, or the arm's command in its place."""
        own = dict(self.commands).get(arm.allocator)
        return replace(self, argv=(*own, *self.argv[1:])) if own else self

    @property
    def is_surrounded(self) -> bool:
        """Whether shell commands stand around it: a server's load, or --prepare or --cleanup."""
        return bool(self.service or self.prepare or self.cleanup)

    def command(self, seed: int) -> list[str]:
        """Returns what to run in a block of that seed."""
        seeded = [self.seed_option, str(seed)] if self.seed_option else []
        return [*self.argv, *seeded]

    def resting(self, usual: RestPlan | None = None) -> Program:
        """Returns the program with a rest to be looked at; `usual` where none was described.

        Raises:
            UsageError: Nothing says when it rests.
        """
        plan = self.rest or usual or RestPlan()
        if self.service is None and not plan.says:
            raise UsageError(
                f"nothing says when {self.label} rests: give --rests REGEX, which a line on its "
                "stdout matches when its load has ended (it goes on when it gets a line on stdin), "
                "or a server with --server and --load"
            )
        if self.by == "turns":
            raise UsageError("memory at rest is measured by runs; leave --by turns out")
        return replace(self, rest=plan)

    def texts(self) -> tuple[str, ...]:
        """Returns every text of it that a shell or the kernel is given."""
        around = (self.service.load, self.service.ready) if self.service else ()
        return (*self.argv, self.prepare, self.cleanup, *around)

    def measure(self, wall_s: float, stdout: str) -> float | Fault:
        """Returns the rate of a run that ended well, or why it has none."""
        if self.check:
            done = _shell(self.check, stdout)
            if not done.ok:
                return Fault("bad_output", f"--check {done.describe()}")
        return self.rate(wall_s, stdout) if self.rate else 1.0 / wall_s

    def counted(self, stdout: str) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Returns what the allocator of a run that ended well counted, and facts of its process."""
        return self.counts(stdout) if self.counts else ({}, {})


def bench_program(
    spec: WorkloadSpec,
    seconds: float = 1.0,
    rss_limit_mb: int = 0,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Program:
    """Returns a built-in workload as a program, for those that turns cannot measure."""
    words = spec.command(seed=0)
    at = words.index("--seed")
    if spec.rest is not None:
        seconds = max(_LEAST_LOAD_S, seconds / spec.rest.rounds)
    argv = (*words[:at], *words[at + 2 :], *spec.span(seconds))
    return Program(
        argv,
        rate=_bench_p99_rate if spec.goal == "p99" else _bench_rate,
        rest=spec.rest and structs.replace(spec.rest, says=_BENCH_RESTS),
        seeks_kept=spec.goal == "kept",
        quota=spec.quota,
        counts=_bench_counts,
        reads_output=True,
        rss_limit_mb=rss_limit_mb,
        seed_option="--seed",
        timeout_s=timeout_s,
        threads=spec.threads,
        own_kb=_bench_own_kb if spec.trace is not None else None,
    )


class ProgramOptions(TypedDict, total=False):
    """What may be said about a program, as the command line names it.

    Attributes:
        metric_regex: The number in what it prints, in a group; "": its time is measured.
        metric_cmd: A shell command that reads what it printed and prints the number.
        lower_is_better: Whether a lower number is the better one.
        prepare: A shell command before each run, untimed.
        cleanup: A shell command after each run, untimed.
        check: A shell command that reads what it printed, and fails where that is wrong.
        warmup: Uncounted runs before the first one.
        timeout: Seconds; a run that takes longer is hanging.
        ready_timeout: Seconds; a server that takes longer to answer is hanging.
        server: The command of a server, which is started afresh for each run.
        load: What puts the server under load.
        ready: A shell command that succeeds as soon as the server answers.
        ready_port: Or the TCP port on which it then answers.
        idle_s: Seconds after the load until its memory is read again.
        rounds: Loads, each with such a rest behind it; None: one.
        rests: What the line on stdout matches by which a program says that its load has ended.
        cpus: CPUs of the container in which it is measured; None: all.
        memory: Memory of that container, as written: "512M"; "": all.
        name: How it is called; "": like its file.
        by: "turns" or "runs"; None: as is found out.
        input: The file that every run reads on stdin, from its start; "-": what this process's
            stdin is redirected from; "": none.
    """

    metric_regex: str
    metric_cmd: str
    lower_is_better: bool
    prepare: str
    cleanup: str
    check: str
    warmup: int
    timeout: float
    ready_timeout: float
    server: str
    load: str
    ready: str
    ready_port: int | None
    idle_s: float
    rounds: int | None
    rests: str
    cpus: float | None
    memory: str
    name: str
    by: By | None
    input: str


def described(
    argv: tuple[str, ...] = (),
    *,
    metric_regex: str = "",
    metric_cmd: str = "",
    lower_is_better: bool = False,
    prepare: str = "",
    cleanup: str = "",
    check: str = "",
    warmup: int = 1,
    timeout: float = DEFAULT_TIMEOUT_S,
    ready_timeout: float = DEFAULT_READY_S,
    server: str = "",
    load: str = "",
    ready: str = "",
    ready_port: int | None = None,
    idle_s: float = 0.0,
    rounds: int | None = None,
    rests: str = "",
    cpus: float | None = None,
    memory: str = "",
    name: str = "",
    by: By | None = None,
    input: str = "",
) -> Program:
    """The program that words and options describe, as the command line names them.

    Raises:
        UsageError: The options exclude each other, or the expression is none.
    """
    within("--warmup", warmup, 0, _MOST_WARMUPS)
    within("--timeout", timeout, _LEAST_TIMEOUT_S, _MOST_TIMEOUT_S)
    within("--ready-timeout", ready_timeout, _LEAST_TIMEOUT_S, _MOST_TIMEOUT_S)
    within("--idle-s", idle_s, 0, MOST_IDLE_S)
    if ready_port is not None:
        within("--ready-port", ready_port, 1, _MOST_PORT)
    if not server and not argv:
        raise UsageError("a program has no words; give what is run, and its arguments")
    rate = _rate(metric_regex, metric_cmd, lower_is_better)
    service = _service(server, load, ready, ready_port, idle_s, rests)
    if service is None and ready_timeout != DEFAULT_READY_S:
        raise UsageError("--ready-timeout needs --server COMMAND")
    if service is not None:
        _refuse_lost_port([server, prepare], service)
        _refuse_odd_dir([server, prepare, cleanup, service.load, service.ready])
    fixed = server and not placeholders(server, prepare)
    if by == "turns" and fixed and not network.can_be_had():
        raise UsageError(
            "--by turns needs a port of its own for each copy of the server: write {port} in "
            "--server and --load where the port stands; or run hztune as root, which may give each "
            "copy a network of its own"
        )
    if server and argv:
        raise UsageError("give a server (--server) or a program (-- PROGRAM), one of them")
    _refuse_pipeline(argv)
    made = Program(
        argv=command_words(server, "--server") if server else argv,
        rate=rate,
        metric=json.dumps([metric_regex, metric_cmd, lower_is_better]) if rate else "",
        reads_output=rate is not None or bool(check),
        prepare=prepare,
        cleanup=cleanup,
        check=check,
        timeout_s=timeout,
        ready_s=ready_timeout,
        warmups=warmup,
        service=service,
        name=name,
        better="lower" if lower_is_better else "higher",
        by=by or "",
        quota=Quota.of(cpus, memory),
        input=_input(input, server, rests),
    )
    if made.quota is not None and by == "turns":
        raise UsageError(
            "--by turns and a container exclude each other: a quota counts the time in which "
            "others have their turn; leave --by turns out"
        )
    if rounds is None and not rests and not idle_s:
        return made
    return made.resting(RestPlan(idle_s or DEFAULT_IDLE_S, 1 if rounds is None else rounds, rests))


def named(texts: Sequence[str], **options: Unpack[ProgramOptions]) -> tuple[Program, ...]:
    """The programs that NAME='./program args' describe; the options hold for each.

    Raises:
        UsageError: One is not so written, two have one name, or the options are not legal.
    """
    pairs = [named_command(text, "--command") for text in texts]
    found = tuple(replace(described(words, **options), name=name) for name, words in pairs)
    names = [program.name for program in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--command gives the name {twice!r} twice; each needs one of its own")
    return found


def _service(
    server: str, load: str, ready: str, port: int | None, idle_s: float, rests: str
) -> Service | None:
    """How a server is used, if there is one."""
    if not server:
        if load or ready or port:
            raise UsageError("--load, --ready and --ready-port need --server COMMAND")
        if idle_s and not rests:
            raise UsageError(
                "--idle-s needs --server COMMAND, or --rests REGEX, by which a program says that "
                "its load has ended"
            )
        return None
    if rests:
        raise UsageError("--rests is for a program; a server rests when its --load has ended")
    if not load:
        raise UsageError("--server needs --load COMMAND, which puts the server under load")
    if ready and port:
        raise UsageError("give --ready COMMAND or --ready-port N, one of them")
    return Service(load, ready, port or 0)


def _input(name: str, server: str, rests: str) -> Input | None:
    """What each run reads on stdin; what is only redirected there is nothing to a server."""
    if server:
        if name not in ("", STDIN):
            raise UsageError("--input is for a program; a server is asked by its --load")
        return None
    found = input_of(name)
    if found is not None and rests:
        raise UsageError(
            "with --rests a program is told on stdin to go on, so it can read no file there; leave "
            "--input out, or give an empty stdin: < /dev/null"
        )
    return found


def _refuse_lost_port(starting: list[str], service: Service) -> None:
    """Sees to it that server and load meet, and that it can be seen when the server answers.

    Args:
        starting: The commands that tell the server its port.
        service: How it is used.

    Raises:
        UsageError: They do not.
    """
    told, sought = placeholders(*starting), placeholders(service.load, service.ready)
    if "port" in told and not placeholders(service.load):
        raise UsageError(
            f"--server has {{port}}, another port for each run, and --load {service.load!r} has "
            "not: write {port} there, too, where the load's port stands"
        )
    if "port" in sought - told and "dir" not in told:
        raise UsageError(
            "--load or --ready has {port}, another port for each run, and --server has not: write "
            "{port} there, too (or in --prepare, where that writes the server's configuration)"
        )
    if "port" in told and service.port:
        raise UsageError(
            f"--server has {{port}}, another port for each run, and --ready-port says "
            f"{service.port}; leave --ready-port out: {{port}} is tried"
        )
    if not (service.ready or service.port or "port" in told):
        raise UsageError(
            "nothing says when the server answers: write {port} where its port stands in --server "
            "and --load (each run then has a port of its own), or give --ready COMMAND or "
            "--ready-port N"
        )


def _refuse_pipeline(argv: tuple[str, ...]) -> None:
    """Sees to it that a program is not given the words of another one as its arguments.

    Raises:
        UsageError: It is.
    """
    for word, after in pairwise(argv):
        if word in ("|", "&&", "||") and shutil.which(after):
            raise UsageError(
                f"no shell reads the {word!r} before {after}; give the whole line to one: "
                "sh -c 'PROGRAM ...'"
            )


def _refuse_odd_dir(commands: list[str]) -> None:
    """Sees to it, before anything runs, that commands can be given a directory.

    Raises:
        UsageError: They cannot.
    """
    if "dir" in placeholders(*commands):
        require_plain()


def placeholders(*texts: str) -> set[str]:
    """Returns which of "port" and "dir" stand in commands as words to be replaced."""
    return {found for text in texts for found in _PLACED.findall(text)}


def filled(text: str, values: Mapping[str, str]) -> str:
    """Returns a command with the values of one run in it, by name."""
    return _PLACED.sub(lambda found: values[found[1]], text)


def _rate(regex: str, command: str, lower: bool) -> Rate | None:
    if regex and command:
        raise UsageError("--metric-regex and --metric-cmd exclude each other; give one of them")
    if lower and not (regex or command):
        raise UsageError(
            "--lower-is-better needs --metric-regex or --metric-cmd: time is so anyway"
        )
    better: Better = "lower" if lower else "higher"
    if regex:
        return by_regex(regex, better)
    return by_command(command, better) if command else None


def by_regex(pattern: str, better: Better) -> Rate:
    """Returns the rate that a regular expression's first group finds in what a run prints.

    Raises:
        UsageError: It is no regular expression, or has no group.
    """
    compiled = expression(pattern, "--metric-regex")

    def rate(wall_s: float, stdout: str) -> float | Fault:
        found = compiled.findall(stdout)
        if not found:
            return Fault("bad_output", f"nothing it printed matches --metric-regex {pattern!r}")
        last = found[-1]
        return _rate_of(last if isinstance(last, str) else last[0], better)

    return rate


def by_command(command: str, better: Better) -> Rate:
    """Returns the rate that a shell command prints after a run; it reads the run's stdout."""

    def rate(wall_s: float, stdout: str) -> float | Fault:
        done = _shell(command, stdout)
        if not done.ok:
            return Fault("bad_output", f"--metric-cmd {done.describe()}")
        return _rate_of(done.stdout, better)

    return rate


def _rate_of(text: str, better: Better) -> float | Fault:
    """Returns a printed number as a rate."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return Fault("bad_output", f"the metric is no number: {text.strip()[:80]!r}")
    if not math.isfinite(value) or value <= 0.0:
        return Fault("bad_output", f"the metric is {value:g}; it must be a number above 0")
    return value if better == "higher" else 1.0 / value


def _bench_counts(stdout: str) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Returns the counters of the process, and what it says of itself.

    That is the operations and page faults of the counted window, and the memory that it holds at
    the end of its rest, where it rests.
    """
    result = json.loads(stdout)
    counters = (result.get("hz") or {}).get("counters", {})
    facts = {name: result[name] for name in ("ops", "minor_faults")}
    if rest := result.get("rss_idle_kb"):
        facts["rss_idle_kb"] = rest["at_the_end"]
    return counters, facts


def _bench_own_kb(stdout: str) -> int:
    """Returns the memory that hz-bench keeps for itself, KiB; 0 where it printed no result."""
    try:
        return int(json.loads(stdout)["own_kb"])
    except (ValueError, KeyError, TypeError):
        return 0


def _bench_rate(wall_s: float, stdout: str) -> float | Fault:
    """Returns the rate that hz-bench reports."""
    try:
        return _rate_of(str(json.loads(stdout)["ops_per_s"]), "higher")
    except (ValueError, KeyError, TypeError):
        return Fault("bad_output", "hz-bench printed no result")


def _bench_p99_rate(wall_s: float, stdout: str) -> float | Fault:
    """Returns one over the nanoseconds that 99 of 100 mallocs, and of 100 frees, keep to."""
    try:
        found = json.loads(stdout)["latency"]
        return _rate_of(str(max(found[call]["p99_ns"] for call in ("malloc", "free"))), "lower")
    except (ValueError, KeyError, TypeError):
        return Fault("bad_output", "hz-bench printed no latencies")


def hook(option: str, command: str, environment: Mapping[str, str]) -> None:
    """Runs a command of the user's beside the timed part; "": there is none.

    Raises:
        HztuneError: It failed.
    """
    if not command:
        return
    done = process.run(["/bin/sh", "-c", command], env=environment, deadline_s=_HOOK_S)
    if not done.ok:
        raise HztuneError(f"{option} {command!r} {done.describe()}")


def _shell(command: str, stdin: str) -> process.Finished:
    """Runs a shell command of the user's on what a program printed."""
    return process.run(["/bin/sh", "-c", command], stdin=stdin.encode(), deadline_s=_COMMAND_S)
