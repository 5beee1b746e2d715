"""Small processes that are started under an allocator to ask what it is and what it runs with.

A probe is a fresh process, never this one: hztune itself must not run on what it measures, and some
allocators cannot be loaded later than at the start (jemalloc's static TLS).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from hztune import process
from hztune.allocator.base import WrongConfiguration

_SECONDS = 20.0
#: What a probe keeps of our own environment, so that it finds what the target would find.
_KEPT = ("PATH", "LD_LIBRARY_PATH")
#: A probe prints this before its JSON, since an allocator may print on stdout as well.
_MARK = "HZTUNE_PROBE "
_PREAMBLE = f"""
import ctypes, json
def say(answer):
    print({_MARK!r} + json.dumps(answer), flush=True)
def mapped():
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return sorted({{line.split(None, 5)[5].strip() for line in maps if "/" in line}})
this = ctypes.CDLL(None)
"""


def run_true(environment: Mapping[str, str]) -> process.Finished:
    """Runs a dynamic program that does nothing: only loader and allocator may say something."""
    return run_probe(environment, shutil.which("true") or "/bin/true")


def run_probe(environment: Mapping[str, str], *words: str) -> process.Finished:
    """Runs a command under `environment` and the little of our own that a probe needs.

    Of a dynamic loader with the path of a program, the program's own code is not executed.
    """
    own = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return process.run(words, env={**own, **environment}, deadline_s=_SECONDS)


def ask(code: str, environment: Mapping[str, str]) -> Any:
    """What Python code under `environment` gives to `say`; else WrongConfiguration.

    It finds `ctypes`, `mapped()` (the files in its address space) and `this` (its symbols).
    """
    done = run_probe(environment, sys.executable, "-I", "-S", "-c", _PREAMBLE + code)
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    before = done.stderr.strip().splitlines()[-3:-1]
    shown = " ".join(f"{name}={value}" for name, value in environment.items())
    raise WrongConfiguration(
        f"a probe process {done.describe()} (under {shown})"
        + "".join(f"; {line.strip()}" for line in before)
    )
