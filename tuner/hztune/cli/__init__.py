"""The command line: this file is the map, each command lives in a file of this package.

A bare `hztune [options]` is `hztune tune [options]`. Data goes to stdout, everything else to
stderr. Nothing heavy is imported before a command needs it: help, profiles and exports answer at
once.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hztune import api
from hztune.arguments import workload_name
from hztune.cli.options import print_lines
from hztune.errors import HztuneError, StoppedByUser, UsageError
from hztune.interrupt import end_in_order, work_in_child_of_first

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    name: module
    for module, names in (
        ("tune", "tune"),
        ("profile", "show export run"),
        ("verify", "verify"),
        ("profile", "history report"),
        ("compare", "compare"),
        ("trace", "suggest record trace"),
        ("list", "list params paths doctor stats set trim"),
        ("govern", "govern metrics"),
        ("canary", "canary"),
    )
    for name in names.split()
}
"""Every command, in the order of the help, and the module that holds it."""

_NO_WHOLE_NUMBER = re.compile("is not a valid integer( range)?$")
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_DISPATCHED = {*COMMANDS, "--help", "--version"}
_BARE = "tune"


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for; without one, `tune` is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_stranger = args and args[0] not in _DISPATCHED and not args[0].startswith("-")
        if is_stranger and not ctx.resilient_parsing:
            raise no_command(args[0])
        return super().parse_args(ctx, with_command(args))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands; where an option begins, those of `tune`, too, which need not be named."""
        own = super().shell_complete(ctx, incomplete)
        tune = self.get_command(ctx, _BARE)
        if tune is None or not incomplete:
            return own
        known = {each.value for each in own}
        options = tune.shell_complete(click.Context(tune, parent=ctx), incomplete)
        return own + [each for each in options if each.value not in known]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"hztune.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command


_HELP = """Find the best allocator configuration for a workload on this machine, and prove it.

\b
hztune --workload larson --threads 32     search, write the profile, print the verdict
hztune export PROFILE --format header     use what was found
hztune run PROFILE -- ./program           run a program under it

Without a command, hztune runs `tune`.
"""


@click.group(cls=LazyGroup, help=_HELP, context_settings={"help_option_names": ["--help"]})
@click.version_option(package_name="hztune", prog_name="hztune", message="%(prog)s %(version)s")
def hztune() -> None:
    """The whole command line."""


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # a path that is no UTF-8, too
    open_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it loses how children ended
    work_in_child_of_first()
    end_in_order()
    sys.exit(status_of(sys.argv[1:]))


def open_streams() -> None:
    """Opens what the caller has closed of stdin, stdout and stderr: a file of ours would be it."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(handle)


def with_command(words: list[str]) -> list[str]:
    """The words with `tune` put first where no command is named; no words at all ask for help."""
    if not words:
        return ["--help"]
    return words if words[0] in _DISPATCHED else [_BARE, *words]


def status_of(words: list[str]) -> int:
    """Runs one command; every error becomes one sentence on stderr and an exit status."""
    try:
        result: Any = hztune.main(args=words, prog_name="hztune", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except HztuneError as error:
        return _failed(str(error), error.exit_status)
    except click.ClickException as error:
        return _failed(_sentence(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _failed("interrupted", StoppedByUser.exit_status)
    except BrokenPipeError:
        _drop_stdout()
        return 1
    except OSError as error:
        _drop_stdout()
        if error.filename is None and error.errno in _UNWRITABLE:
            lost = "the output is lost, files that were written stay"
            return _failed(f"cannot write to stdout: {error.strerror}; {lost}", 1)
        return _failed(f"{error.filename or 'the system'}: {error.strerror}", 1)
    return result if isinstance(result, int) else 0


def _drop_stdout() -> None:
    """Lets the interpreter not fail again at its end, when it flushes what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _failed(sentence: str, status: int) -> int:
    with suppress(OSError):  # the status tells it, too
        print_lines([f"hztune: {sentence}"], err=True)
    return status


def _sentence(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split()).rstrip(".")
    text = _NO_WHOLE_NUMBER.sub("is no whole number", text)
    ctx = getattr(error, "ctx", None)
    return f"{text} (see `{ctx.command_path} --help`)" if ctx else text


def no_command(word: str, after: str = "tune") -> UsageError:
    if after.rpartition(" ")[2] == "tune":
        return UsageError(f"{word!r} is no command of hztune; {_meant(word)}")
    return UsageError(
        f"{word!r} is no command of hztune and no option "
        "(`hztune --help` lists the commands; a program of your own stands after --)"
    )


def _meant(word: str) -> str:
    try:
        workloads = [each.name for each in api.workloads()]
    except HztuneError:  # hz was not built
        workloads = []
    if workload_name(word) in workloads:
        return f"it is a workload: hztune --workload {shlex.quote(word)}"
    beside = f"./{word}" if "/" not in word else word
    if program := next((each for each in (word, beside) if shutil.which(each)), ""):
        return f"it is a program: hztune -- {shlex.quote(program)}"
    if Path(word).is_file():
        return f"it is a file, and not executable: hztune -- INTERPRETER {shlex.quote(word)}"
    if near := get_close_matches(word, COMMANDS, n=1):
        return f"did you mean hztune {near[0]}? (`hztune --help` lists the commands)"
    if near := get_close_matches(word, workloads, n=1):
        return f"did you mean hztune --workload {near[0]}? (`hztune list workloads` lists them)"
    return "`hztune --help` lists the commands, and a program of your own stands after --"
