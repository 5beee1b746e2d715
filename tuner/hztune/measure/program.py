"""A whole program as a target: what is run around it, and what its speed is.

A metric becomes a rate: operations per second of any kind, of which more is better. Wall time
counts as one operation a run; a metric of which less is better counts by its reciprocal.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hztune import artifacts, process
from hztune.arguments import command_words, expression, named_command, within
from hztune.blocks import Arm
from hztune.errors import HztuneError, UsageError
from hztune.files import STDIN, Input, input_of, require_plain
from hztune.measure.identity import Fault
from hztune.quota import Quota
from hztune.rests import DEFAULT_IDLE_S, RestPlan

Rate = Callable[[float, str], "float | Fault"]
"""From a run's wall seconds and what it printed to its rate, or to why it has none."""

Counts = Callable[[str], "tuple[Mapping[str, int], Mapping[str, int]]"]
"""From what a run printed: what its allocator counted, and what is known of the whole process."""

Measure = Callable[[dict[str, str]], float]
"""A function of the user's: from the environment of a fresh process to its seconds, or a figure."""

Better = Literal["higher", "lower"]
By = Literal["turns", "runs"]

OPEN = "{}"  # stands first in a program's words where each arm brings its own command

CALLED = "measured by a function of yours: hztune does not see which allocator its processes have"

OUTPUT_BYTES = 64 << 20  # most that a program may print when its output matters

TOO_MUCH = Fault("bad_output", f"it printed more than {OUTPUT_BYTES >> 20} MiB")

_PLACED = re.compile(r"(?<!\$)\{(port|dir)\}")
"""What each run of a server has its own value for; `${port}` is a shell's own."""

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_READY_S = 60.0
_LEAST_TIMEOUT_S = 0.1
_MOST_TIMEOUT_S = 7 * 86400.0
_MOST_WARMUPS = 1000
_MOST_PORT = 65535
_COMMAND_S = 60.0
_HOOK_S = 600.0
_CLEAN_UP_S = 10.0  # a run that was cut is cleaned up after, too
_NETWORK_TRIAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Metric:
    """The rate of a run: the last match of the regex's group, or what the command prints."""

    regex: str = ""
    command: str = ""
    better: Better = "higher"

    def __post_init__(self) -> None:
        """Raises UsageError where the expression is none, or has no group."""
        if self.regex:
            expression(self.regex, "--metric-regex")

    def __call__(self, wall_s: float, stdout: str) -> float | Fault:
        if self.command:
            done = _shell(self.command, stdout)
            if not done.ok:
                return Fault("bad_output", f"--metric-cmd {done.describe()}")
            return rate_of(done.stdout, self.better)
        found = [match[1] or "" for match in re.finditer(self.regex, stdout)]
        if not found:
            return Fault("bad_output", f"nothing it printed matches --metric-regex {self.regex!r}")
        return rate_of(found[-1], self.better)


@dataclass(frozen=True, slots=True)
class Service:
    """What makes a program a server: it answers, is put under load, and is then stopped.

    A new field here makes other studies of the old ones: all of it says what a study is of.
    """

    load: str  # shell command that puts it under load; its time and its output are what is measured
    ready: str = ""  # shell command that succeeds as soon as the server answers; "" to try the port
    port: int = 0  # TCP port of this machine on which it answers; 0 with `ready`, and with `{port}`


@dataclass(frozen=True, slots=True)
class Program:
    argv: tuple[str, ...]
    rate: Rate | None = None  # None: the reciprocal of its wall time
    prepare: str = ""  # shell commands around each run, not timed
    cleanup: str = ""
    check: str = ""  # a shell command that reads its stdout and fails if that is wrong
    timeout_s: float = DEFAULT_TIMEOUT_S  # a run that takes longer is hanging
    rss_limit_mb: int = 0  # a run whose processes together take more is ended; 0: no limit
    seed_option: str = ""  # gives it the seed of a block
    threads: int = 0  # that it keeps busy; 0: unknown
    warmups: int = 1  # uncounted runs before the first block
    service: Service | None = None
    ready_s: float = DEFAULT_READY_S  # a server that does not answer within that time is hanging
    counts: Counts | None = None  # what it prints beside its speed
    name: str = ""  # how the user calls it; "": like its file
    commands: tuple[tuple[str, tuple[str, ...]], ...] = ()  # for OPEN, by the arm's allocator
    by: By | Literal[""] = ""  # how it is measured; "": as is found out
    span_s: float = 0.0  # after it a load is told to end, by SIGINT; 0: it ends by itself
    own_kb: Callable[[str], int] | None = None  # reads how much memory is no allocator's
    rest: RestPlan | None = None  # its rounds of load and rest
    seeks_kept: bool = False  # whether what it keeps at rest is made less, not its speed better
    quota: Quota | None = None  # the container of each run; None: it has the machine
    has_network: bool = False  # whether each copy of a server, with its load, has its own
    input: Input | None = None  # what each run reads on stdin
    call: Measure | None = None  # measures in its place, and starts what it likes; None: it is run
    #: The options that described it, without those that stood at their defaults.
    asked: tuple[tuple[str, object], ...] = field(default=(), compare=False)

    @property
    def reads_output(self) -> bool:
        """Whether what it prints matters."""
        return bool(self.rate or self.check or self.own_kb)

    @property
    def better(self) -> Better:
        return self.rate.better if isinstance(self.rate, Metric) else "higher"

    @property
    def metric(self) -> str:
        """What its rate reads, as JSON: equal for equal metrics; "": its time."""
        if not isinstance(self.rate, Metric):
            return ""
        return json.dumps([self.rate.regex, self.rate.command, self.rate.better == "lower"])

    @property
    def label(self) -> str:
        """What it is called in reports."""
        if self.is_open:
            return self.name or ("server" if self.service else "program")
        return self.name or Path(self.argv[0]).name

    @property
    def is_open(self) -> bool:
        return self.argv[0] == OPEN

    @property
    def shell_commands(self) -> tuple[str, ...]:
        """What is given to a shell around it; of a server its load stands first."""
        service = (self.service.load, self.service.ready) if self.service else ()
        metric = self.rate.command if isinstance(self.rate, Metric) else ""
        return tuple(filter(None, (*service, self.prepare, self.cleanup, self.check, metric)))

    def of(self, arm: Arm) -> Program:
        """What is run for an arm: the program itself, or the arm's command in its place."""
        own = dict(self.commands).get(arm.allocator)
        return replace(self, argv=(*own, *self.argv[1:])) if own else self

    def command(self, seed: int) -> list[str]:
        """What to run in a block of that seed."""
        return [*self.argv, *([self.seed_option, str(seed)] if self.seed_option else [])]

    def resting(self, usual: RestPlan | None = None) -> Program:
        """The program with a rest to be looked at, or else `usual`; UsageError: it says none."""
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

    def measure(self, wall_s: float, stdout: str) -> float | Fault:
        if self.check:
            done = _shell(self.check, stdout)
            if not done.ok:
                return Fault("bad_output", f"--check {done.describe()}")
        return self.rate(wall_s, stdout) if self.rate else 1.0 / wall_s


Programs = Program | Sequence[Program] | Sequence[str]  # several, or the words of one


def described(
    argv: Sequence[str] = (),
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
    """A program of yours that can be tuned, compared or verified on.

    Args:
        argv: Its words, ("./program", "-x"); () where `server` is given.
        metric_regex: Finds the number in what it prints, in a group; "": its time is measured.
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
        input: A file that every run reads on stdin; "-": what stdin is redirected from.

    Raises:
        UsageError: They exclude each other, or one is not legal.
    """
    options = {key: value for key, value in locals().items() if key != "argv"}
    if isinstance(argv, str):
        raise UsageError(f"the program {argv!r} is one text; give its words: ('ls', '-l')")
    within("--warmup", warmup, 0, _MOST_WARMUPS)
    within("--timeout", timeout, _LEAST_TIMEOUT_S, _MOST_TIMEOUT_S)
    within("--ready-timeout", ready_timeout, _LEAST_TIMEOUT_S, _MOST_TIMEOUT_S)
    quota = Quota.of(cpus, memory)
    _refuse(
        {
            "a program has no words; give what is run, and its arguments": not (server or argv),
            "give a server (--server) or a program (-- PROGRAM), one of them": server and argv,
            "--by turns and a container exclude each other: a quota counts the time in which "
            "others have their turn; leave --by turns out": quota is not None and by == "turns",
        }
    )
    made = Program(
        argv=command_words(server, "--server") if server else tuple(argv),
        rate=_metric(metric_regex, metric_cmd, lower=lower_is_better),
        prepare=prepare,
        cleanup=cleanup,
        check=check,
        timeout_s=timeout,
        ready_s=ready_timeout,
        warmups=warmup,
        service=_service(options),
        name=name,
        by=by or "",
        quota=quota,
        input=_input(input, rests, server=server),
        asked=tuple(
            (key, value)
            for key, value in options.items()
            if (value or key == "warmup") and value != _DEFAULTS.get(key)
        ),
    )
    if rounds is None and not rests and not idle_s:
        return made
    return made.resting(RestPlan(idle_s or DEFAULT_IDLE_S, 1 if rounds is None else rounds, rests))


_DEFAULTS = {
    "warmup": 1, "timeout": DEFAULT_TIMEOUT_S, "ready_timeout": DEFAULT_READY_S, "input": STDIN,
}  # fmt: skip


def called(measure: Measure, *, maximize: bool = False) -> Program:
    if not callable(measure):
        raise UsageError(f"measure is {measure!r}; give a function that takes an environment")
    own = getattr(measure, "__qualname__", type(measure).__qualname__)
    name = own.rpartition(".")[2].strip("<>")
    rate = Metric(regex="(.*)") if maximize else None
    where = getattr(measure, "__module__", "")
    return Program((f"{where}:{own}",), rate=rate, call=measure, name=name)


def asked_programs(
    program: Programs | None, measure: Measure | None = None, *, maximize: bool = False
) -> list[Program]:
    """The programs that are asked for; UsageError: one is not legal, or they exclude each other."""
    if measure is not None:
        if program:
            raise UsageError("program and measure exclude each other; give one of them")
        return [called(measure, maximize=maximize)]
    if maximize:
        raise UsageError("maximize is of measure; a program prints its figure: metric_regex")
    if isinstance(program, Program):
        return [program]
    if isinstance(program, str):
        return [described(program)]  # which refuses it
    given = [*(program or ())]
    programs = [each for each in given if isinstance(each, Program)]
    words = [each for each in given if isinstance(each, str)]
    if len(given) not in (len(programs), len(words)):
        raise UsageError(f"program is {given!r:.100}; give its words, each a text, or programs")
    return [described(words)] if words else programs


def named(texts: Sequence[str], like: Program | None = None) -> tuple[Program, ...]:
    """The programs that NAME='./program args' describe, for the rest like one with other words.

    UsageError: one is not so written, or two have one name.
    """
    pairs = [named_command(text, "--command") for text in texts]
    like = like or Program((OPEN,))
    found = tuple(replace(like, argv=words, name=name) for name, words in pairs)
    names = [program.name for program in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError(f"--command gives the name {twice!r} twice; each needs one of its own")
    return found


def _refuse(mistakes: Mapping[str, object]) -> None:
    if why := next((why for why, is_made in mistakes.items() if is_made), ""):
        raise UsageError(why)


def _metric(regex: str, command: str, *, lower: bool) -> Metric | None:
    has_one = bool(regex or command)
    both = "--metric-regex and --metric-cmd exclude each other; give one of them"
    none = "--lower-is-better needs --metric-regex or --metric-cmd: time is so anyway"
    _refuse({both: regex and command, none: lower and not has_one})
    return Metric(regex, command, "lower" if lower else "higher") if has_one else None


def _service(options: Mapping[str, Any]) -> Service | None:
    server, load, ready = (str(options[name]) for name in ("server", "load", "ready"))
    port, rests = options["ready_port"], options["rests"]
    if port is not None:
        within("--ready-port", port, 1, _MOST_PORT)
    if not server:
        idle = "--idle-s needs --server COMMAND, or --rests REGEX, by which a program says that "
        mistakes = {
            "--load, --ready and --ready-port need --server COMMAND": load or ready or port,
            f"{idle}its load has ended": options["idle_s"] and not rests,
        }
        _refuse(mistakes)
        return None
    prepare, cleanup = options["prepare"], options["cleanup"]
    told, by_load = placeholders(server, prepare), placeholders(load)
    is_unknown = not (ready or port or "port" in told)
    mistakes = {
        "--rests is for a program; a server rests when its --load has ended": rests,
        "--server needs --load COMMAND, which puts the server under load": not load,
        "give --ready COMMAND or --ready-port N, one of them": ready and port,
        f"--server has {{port}}, another port for each run, and --load {load!r} has not: write "
        "{port} there, too, where the load's port stands": "port" in told and not by_load,
        "--load or --ready has {port}, another port for each run, and --server has not: write "
        "{port} there, too (or in --prepare, where that writes the server's configuration)": (
            "port" in placeholders(load, ready) - told and "dir" not in told
        ),
        f"--server has {{port}}, another port for each run, and --ready-port says {port}; leave "
        "--ready-port out: {port} is tried": "port" in told and port,
        "nothing says when the server answers: write {port} where its port stands in --server and "
        "--load (each run then has a port of its own), or give --ready COMMAND or --ready-port "
        "N": is_unknown,
    }
    _refuse(mistakes)
    if "dir" in placeholders(server, prepare, cleanup, load, ready):
        require_plain()
    meets = options["by"] == "turns" and not told and not can_have_networks()
    alone = "--by turns needs a port of its own for each copy of the server: write {port} in "
    alone += "--server and --load where the port stands; or run hztune as root, which may give each"
    _refuse({f"{alone} copy a network of its own": meets})
    return Service(load, ready, port or 0)


def _input(name: str, rests: str, *, server: str) -> Input | None:
    """What each run reads on stdin; what is only redirected there is nothing to a server."""
    if server:
        told = "--input is for a program; a server is asked by its --load"
        _refuse({told: name not in ("", STDIN)})
        return None
    found = input_of(name)
    if found is not None and rests:
        raise UsageError(
            "with --rests a program is told on stdin to go on, so it can read no file there; leave "
            "--input out, or give an empty stdin: < /dev/null"
        )
    return found


def placeholders(*texts: str) -> set[str]:
    """Which of "port" and "dir" stand in commands as words to be replaced."""
    return {found for text in texts for found in _PLACED.findall(text)}


def filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACED.sub(lambda found: values[found[1]], text)


@cache
def can_have_networks() -> bool:
    """Whether each copy of a server may have a network of its own; it is tried out.

    It has all ports free and loopback only. hz-launch makes it: root may, and others where the
    kernel lets them make a user namespace.
    """
    words = [str(artifacts.launch()), "--own-network", "--", str(artifacts.launch()), "--help"]
    return process.run(words, deadline_s=_NETWORK_TRIAL_S).ok


def rate_of(text: str, better: Better) -> float | Fault:
    try:
        value = float(re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text))  # 1,234.5
    except ValueError:
        return Fault("bad_output", f"the metric is no number: {text.strip()[:80]!r}")
    if not math.isfinite(value) or value <= 0.0:
        return Fault("bad_output", f"the metric is {value:g}; it must be a number above 0")
    return value if better == "higher" else 1.0 / value


def hook(option: str, command: str, environment: Mapping[str, str]) -> None:
    """Runs a command of the user's beside the timed part; HztuneError: it failed."""
    if not command:
        return
    ends = time.monotonic() + max(process.left_s(), _CLEAN_UP_S if option == "--cleanup" else 0.0)
    with process.limited(lambda: ends - time.monotonic()):
        done = process.run(["/bin/sh", "-c", command], env=environment, deadline_s=_HOOK_S)
    if not done.ok:
        raise HztuneError(f"{option} {command!r} {done.describe()}")


def _shell(command: str, stdin: str) -> process.Finished:
    return process.run(["/bin/sh", "-c", command], stdin=stdin.encode(), deadline_s=_COMMAND_S)
