"""Commands to paste: a program with its options, as they stand on the command line of hztune."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from hztune.measure.program import DEFAULT_READY_S, DEFAULT_TIMEOUT_S, Program

_PLACED = re.compile(r"[\w@%+=:,./{}-]+", re.ASCII)
"""Words that hztune reads as they are; a shell never sees those of a server."""


def command(program: Program, words: Sequence[str] = (), *, rest: bool = True) -> str:
    """The line that measures a program.

    Args:
        program: What is measured.
        words: What stands behind `hztune`, before the program.
        rest: Whether its rounds of load and rest are asked for, too.
    """
    about = [*_measured_by(program), *_around(program), *(_resting(program) if rest else [])]
    own = _server(program) if program.service else ["--", *program.argv]
    return shlex.join(["hztune", *words, *about, *own])


def _server(program: Program) -> list[str]:
    service = program.service
    assert service is not None, "a program without a service is no server"
    own = " ".join(word if _PLACED.fullmatch(word) else shlex.quote(word) for word in program.argv)
    words = ["--server", own, "--load", service.load]
    words += ["--ready", service.ready] if service.ready else []
    return words + (["--ready-port", str(service.port)] if service.port else [])


def _measured_by(program: Program) -> list[str]:
    """How its speed is read."""
    regex, shell, lower = json.loads(program.metric) if program.metric else ("", "", False)
    words = ["--metric-regex", regex] if regex else []
    words += ["--metric-cmd", shell] if shell else []
    return words + (["--lower-is-better"] if lower else [])


def _around(program: Program) -> list[str]:
    """What is run around it, and where."""
    texts = (
        ("--prepare", program.prepare), ("--cleanup", program.cleanup), ("--check", program.check)
    )  # fmt: skip
    words = [word for option, text in texts if text for word in (option, text)]
    words += ["--input", program.input.name] if program.input else []
    words += ["--warmup", str(program.warmups)] if program.warmups != 1 else []
    if program.timeout_s != DEFAULT_TIMEOUT_S:
        words += ["--timeout", f"{program.timeout_s:g}"]
    if program.ready_s != DEFAULT_READY_S:
        words += ["--ready-timeout", f"{program.ready_s:g}"]
    words += ["--by", program.by] if program.by else []
    return words + list(program.quota.options if program.quota else ())


def _resting(program: Program) -> list[str]:
    """Its rounds of load and rest, where they were described."""
    plan = program.rest
    if plan is None:
        return []
    words = ["--idle-s", f"{plan.idle_s:g}", "--rounds", str(plan.rounds)]
    return words + (["--rests", plan.says] if plan.says else [])
