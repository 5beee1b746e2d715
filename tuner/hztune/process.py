"""Children: each in a session of its own, its output bounded, ended with all that it started.

The only importer of `subprocess`. Whatever the child does (ignores SIGTERM, forks, moves to another
session, floods or closes its output, stops itself), the caller gets control back by the deadline
and nothing of the child's stays behind: its tree is found by session, by descent and, for processes
that left both, by a mark in their environment. Other children of this process, which may be a
program that uses hztune as a library, are not waited for. When this process dies, even by SIGKILL,
the kernel ends the child (PR_SET_PDEATHSIG; it is bound to the thread that started the child, which
must therefore outlive it).
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hztune import artifacts
from hztune.arguments import printable
from hztune.errors import HztuneError, OutOfTime, UsageError
from hztune.files import reason_of, variables_of

MARK = "HZTUNE_CHILD"  # marks every process of a child's tree; each child has its own value

_READ_BYTES = 1 << 16
_DRAIN_BYTES = 1 << 22
_LINE_BYTES = 1 << 22
_KILL_S = 30.0  # a killed process may first have to wait for a disk
_HIDDEN_S = 1.0
_INT_BYTES = 4
_MOST_SAID = 300

_left: ContextVar[Callable[[], float]] = ContextVar("left", default=lambda: math.inf)


@contextlib.contextmanager
def limited(seconds: Callable[[], float]) -> Iterator[None]:
    """Lets no child of this thread outlive a time: what waits for one then raises OutOfTime."""
    token = _left.set(seconds)
    try:
        yield
    finally:
        _left.reset(token)


def left_s() -> float:
    """The seconds until `limited` ends what runs; infinite where nothing does."""
    return _left.get()()


class Stalled(HztuneError):
    """A child said nothing for longer than it may."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a child ended: its exit status, or minus the number of the signal that ended it.

    `stdout` is the first part of what it wrote there (`truncated`: there was more), `stderr` the
    first and the last part, each within the limit.
    """

    code: int
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool
    wall_s: float

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out

    def describe(self) -> str:
        by = f"was ended by {signal_name(-self.code)}"
        end = f"ended with exit status {self.code}" if self.code >= 0 else by
        end = f"did not end within {self.wall_s:.1f} s" if self.timed_out else end
        said = last_words(self.stderr)
        return f"{end}: {said}" if said else end


def last_words(text: str) -> str:
    """The last line of what a program wrote, as it can stand in a sentence; "": none."""
    said = printable(" ".join("".join(text.strip().splitlines()[-1:]).split()))
    return said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]} [...]"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def run(argv: Sequence[str], *, deadline_s: float, **options: Any) -> Finished:
    with Child(argv, **options) as child:
        return child.finish(deadline_s)


class Child:
    """A running child; leaving the `with` block kills whatever is left of its tree."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes | None = b"",
        output_limit: int = 1 << 20,
        keep_stdout: bool = True,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Starts a program without a shell; UsageError: it does not exist, or cannot be executed.

        `env`: all of it; None: this process's own. `stdin`: None: a pipe that `send` writes to.
        `output_limit`: bytes of stdout, and of stderr, that are kept; more is read and dropped.
        `keep_stdout`: False: it writes to nowhere, so that reading it disturbs nothing.
        """
        self._mark = secrets.token_hex(8)
        self._started = time.monotonic()
        self._name = Path(argv[0]).name
        self._process = _start(
            argv,
            {**(os.environ if env is None else env), MARK: self._mark},
            stdin,
            pass_fds,
            cwd=cwd,
            stdout=subprocess.PIPE if keep_stdout else subprocess.DEVNULL,
        )
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except ProcessLookupError:
            _kill_tree(self._process.pid, self._mark)
            with self._process:
                raise self._status_lost() from None
        self._output = _Kept(output_limit, 0)
        self._errors = _Kept(output_limit // 2, output_limit - output_limit // 2)
        self._drained = 0
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pidfd, selectors.EVENT_READ, None)
        streams = ((self._process.stdout, self._output), (self._process.stderr, self._errors))
        for stream, kept in streams:
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self._selector.register(stream.fileno(), selectors.EVENT_READ, kept)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: str) -> None:
        """Writes a line to the child's stdin; a child that has ended is no error here."""
        assert self._process.stdin is not None, "started without a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def lines(self, stall_s: float) -> Iterator[str]:
        """Yields each whole line of stdout at once; Stalled: none came for `stall_s` seconds."""
        rest = b""
        deadline = time.monotonic() + stall_s
        while not self._ended:
            chunk = self._pump(deadline)
            if chunk is None:
                raise Stalled(f"{self._name} said nothing for {stall_s:g} s")
            *complete, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES:
                raise Stalled(f"{self._name} writes a line that does not end")
            for line in complete:
                yield line.decode(errors="replace")
            if complete:
                deadline = time.monotonic() + stall_s
            elif not self._ended and time.monotonic() > deadline:
                raise Stalled(f"{self._name} wrote no whole line for {stall_s:g} s")

    def wait(self, seconds: float) -> bool:
        """Reads what the child writes for that long; true, and at once, when it has ended."""
        deadline = time.monotonic() + seconds
        while not self._ended:
            chunk = self._pump(deadline)
            if chunk is None:
                return False
            self._output.add(chunk)  # before another look at the clock: what was read is kept
            if not self._ended and time.monotonic() > deadline:
                return False
        return True

    def finish(self, deadline_s: float) -> Finished:
        """Kills the child at the deadline. HztuneError: this process waited for it elsewhere."""
        timed_out = not self.wait(deadline_s)
        wall_s = time.monotonic() - self._started
        self.kill()
        return Finished(
            code=self._process.returncode,
            stdout=self._output.text(),
            stderr=self._errors.text(),
            timed_out=timed_out,
            truncated=self._output.overflowed,
            wall_s=wall_s,
        )

    def stop(self, grace_s: float) -> Finished:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        return self.finish(grace_s)

    def kill(self) -> None:
        """Kills the whole tree, reaps it and closes every descriptor; once more does nothing."""
        if self._pidfd < 0:
            return
        try:
            self._end_tree()
        except KeyboardInterrupt:
            self._end_tree()  # no process stays behind, in whatever hurry the user is
            raise
        finally:
            pidfd, self._pidfd = self._pidfd, -1
            os.close(pidfd)
            self._selector.close()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()

    def _end_tree(self) -> None:
        _kill_tree(self._process.pid, self._mark)
        if self._process.returncode is not None:
            return
        self._process.returncode = 0  # what `Popen.wait` would say where the status is lost
        try:
            ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        except ChildProcessError:
            raise self._status_lost() from None
        assert ended is not None, "it was waited for"
        is_exit = ended.si_code == os.CLD_EXITED
        self._process.returncode = ended.si_status if is_exit else -ended.si_status

    def _pump(self, deadline: float) -> bytes | None:
        """Waits for something to happen and returns what came on stdout; None: nothing in time.

        When the child has ended and nothing is left to read, `_ended` becomes true; a descendant
        that floods the outputs delays that by a few megabytes only.
        """
        wait_s, most_s = deadline - time.monotonic(), left_s()
        events = self._selector.select(max(0.0, min(wait_s, most_s)))
        if most_s <= 0.0 or (not events and most_s < wait_s):
            raise OutOfTime("the budget is used up")
        if not events:
            return None
        chunks = {id(key.data): self._read(key) for key, _ in events if key.data is not None}
        self._errors.add(chunks.get(id(self._errors), b""))
        if len(chunks) < len(events):  # one of the events is the end of the child
            count = sum(map(len, chunks.values()))
            self._drained += count
            self._ended = count == 0 or self._drained > _DRAIN_BYTES
        return chunks.get(id(self._output), b"")

    def _read(self, key: selectors.SelectorKey) -> bytes:
        try:
            chunk = os.read(key.fd, _READ_BYTES)
        except BlockingIOError:
            return b""
        if not chunk:
            self._selector.unregister(key.fd)
        return chunk

    def _status_lost(self) -> HztuneError:
        return HztuneError(
            f"how {self._name} ended is lost: the program that uses hztune ignores SIGCHLD, or "
            "waits for children that it did not start"
        )


class _Kept:
    def __init__(self, head: int, tail: int) -> None:
        self._limits = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self.overflowed = False

    def add(self, chunk: bytes) -> None:
        head, tail = self._limits
        room = head - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if (over := len(self._tail) - tail) > 0:
            self.overflowed = True
            del self._tail[:over]

    def text(self) -> str:
        return (self._head + self._tail).decode(errors="replace")


def _start(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes | None,
    pass_fds: Sequence[int],
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Starts a program by `hz-launch --tie`, which ties its life to ours and executes it.

    Python may do nothing of that between fork and exec: other threads may hold locks that it needs
    there, and a signal that arrives there is lost. `hz-launch` itself runs without the program's
    variables, which may preload a library: it reads them from a descriptor.
    """
    with contextlib.ExitStack() as stack:
        try:
            given = os.memfd_create("hztune")
            stack.callback(os.close, given)
            os.write(given, b"".join(_variables(env)))
            source: int = subprocess.PIPE if stdin is None else subprocess.DEVNULL
            if stdin:
                file = stack.enter_context(tempfile.TemporaryFile())
                file.write(stdin)
                file.seek(0)
                source = file.fileno()
            failure, report = os.pipe()
            stack.callback(os.close, failure)
            tie = map(str, (artifacts.launch(), "--tie", os.getpid(), given, report))
            try:
                process = subprocess.Popen(
                    [*tie, *argv],
                    env={MARK: env[MARK]},
                    pass_fds=(*pass_fds, given, report),
                    stdin=source,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    **options,
                )
            finally:
                os.close(report)
            try:
                if number := int.from_bytes(os.read(failure, _INT_BYTES), sys.byteorder):
                    raise OSError(number, os.strerror(number))
            except BaseException:
                process.kill()
                with process:
                    raise
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot start {argv[0]}: {reason_of(error)}") from error
    return process


def _variables(env: Mapping[str, str]) -> Iterator[bytes]:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"no program can be given the variable {name!r}")
        yield os.fsencode(f"{name}={value}\0")


def _kill_tree(root: int, mark: str) -> None:
    """Kills `root`, its session, descendants and orphans, until a look finds none of them."""
    began, was_clean = time.monotonic(), False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    while True:
        table = _processes()
        marks = _marks_of_orphans(table, root)
        found = {root} | {pid for pid, row in table.items() if row.session == root}
        found |= {pid for pid, of in marks.items() if of == mark}
        while more := {pid for pid, row in table.items() if row.parent in found} - found:
            found |= more
        members = {pid for pid in found & table.keys() if not table[pid].is_dead}
        is_early = time.monotonic() - began < _HIDDEN_S
        if not members and not (is_early and None in marks.values()):
            if was_clean:  # one that forks and ends between list and look is missed by one look
                return
            was_clean = True
            continue
        was_clean = False
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            if pid != root:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        if members and time.monotonic() - began > _KILL_S:
            raise HztuneError(f"cannot end process {min(members)}; end it by hand and start again")
        time.sleep(0.001)


class _ProcessStat(NamedTuple):
    is_dead: bool
    parent: int
    session: int
    start: int
    has_environment: bool


def _processes() -> dict[int, _ProcessStat]:
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                table[int(name)] = _stat_of(int(name))
    return table


def stat_words(pid: int) -> list[str]:
    """The words of /proc/PID/stat behind the name, the state first. OSError: it is gone."""
    text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()


def cpu_seconds(pid: int) -> float:
    """By clock_getcpuclockid(3), as ticks of /proc are too coarse; OSError: the process is gone."""
    return time.clock_gettime(~pid << 3 | 2)


def _stat_of(pid: int) -> _ProcessStat:
    state, *rest = stat_words(pid)
    parent, session, threads, start, environment = (int(rest[at]) for at in (0, 2, 16, 18, 47))
    return _ProcessStat(state == "Z" and threads < 2, parent, session, start, bool(environment))


def _marks_of_orphans(table: Mapping[int, _ProcessStat], root: int) -> dict[int, str | None]:
    """Those that may be orphans of `root`'s tree, each with its mark.

    An orphan goes to a process above this one, or to the first of its container, and began after
    `root`. The mark is read once for each look, so that none is missed between two questions.
    """
    above = {os.getpid(), 1}
    while more := {table[pid].parent for pid in above if pid in table} - above:
        above |= more
    began = table[root].start if root in table else 0
    return {
        pid: _mark_of(pid)
        for pid, row in table.items()
        if row.parent in above - {0} and row.start >= began and not row.is_dead and pid not in above
    }


def _mark_of(pid: int) -> str | None:
    """The mark that a process was started with, "" without one; None: it shows none.

    A process that executes a program, or gives up its memory, has no environment then.
    """
    try:
        variables = variables_of(pid)
        if variables == [b""]:
            if not _stat_of(pid).has_environment:
                return None
            variables = variables_of(pid)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    start = f"{MARK}=".encode()
    found = next((each for each in variables if each.startswith(start)), start)
    return found[len(start) :].decode(errors="replace")
