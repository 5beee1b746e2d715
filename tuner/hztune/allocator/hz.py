"""hz, hztune's own: it refuses what is wrong (HZ_STRICT) and says what it took (HZ_CONFIRM)."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path

from hztune import artifacts, params
from hztune.allocator.base import (
    Adapter,
    Config,
    Environment,
    Installed,
    Memory,
    WrongConfiguration,
)
from hztune.allocator.knobs import AUTO
from hztune.allocator.probe import run_true
from hztune.files import sha256_of
from hztune.params import Param, Value

_SERVICES = ("HZ_STRICT", "HZ_CONFIRM", "HZ_STATS")
_CONFIRMS = "HZ_CONFIRM "
"""How the line begins in which hz says with which parameters it runs."""


class Hz(Adapter):
    """hz, preloaded from where this hztune was installed."""

    name = "hz"
    check_advice = "start the program once with HZ_CONFIRM=1: it says on stderr what it runs with"
    confirms = True
    chatter = re.compile(rf"^{_CONFIRMS}.*$", re.M)

    def installed(self) -> Installed:
        """Returns the libhz.so of this installation, after it has run once."""
        path = artifacts.library()
        preload = artifacts.preloadable(path)
        stderr = run_true({"LD_PRELOAD": preload, "HZ_CONFIRM": "1"}).stderr
        said = _confirmation(stderr)
        if said is None:
            raise WrongConfiguration(
                f"{path} does not say HZ_CONFIRM when it is preloaded; rebuild or reinstall hztune"
            )
        return Installed(self.name, str(said["version"]), preload, path, sha256_of(path), "")

    def library_stems(self) -> tuple[str, ...]:
        """Returns the one stem that it is built under."""
        return ("libhz",)

    def knobs(self, installed: Installed) -> tuple[Param, ...]:
        """Returns the core's own table."""
        return params.table()

    def check(self, config: Config, installed: Installed) -> None:
        """Asks the core, which decides what is legal, then that numbers are no texts."""
        params.check(config)
        super().check(config, installed)

    def variables(self) -> tuple[str, ...]:
        """Returns one variable for each row, and the service variables."""
        return ("LD_PRELOAD", *(param.env for param in params.table()), *_SERVICES)

    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns one variable for each parameter that is given."""
        return params.environment(config)

    def confirm_environment(self, environment: Mapping[str, str]) -> Environment:
        """Returns `environment` with both services on: a bad setting ends with status 78."""
        return {**environment, "HZ_STRICT": "1", "HZ_CONFIRM": "1"}

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """Returns the configuration that the process wrote; `auto` is a number there."""
        said = _confirmation(stderr)
        return None if said is None else _values(said["config"])

    def verify(self, config: Config, confirmed: Mapping[str, Value]) -> None:
        """Compares every row, the defaults too: nothing may have been added on the way."""
        super().verify(params.complete(config), confirmed)

    def effective(self, memory: Memory) -> dict[str, Value]:
        """Returns what stands in hz_cfg: one 64-bit number a row, in the order of the table.

        Nothing of an hz with another table, where a number is not legal in this one's row.
        """
        rows = params.table()
        held = memory("hz_cfg", 8 * len(rows))
        if held is None:
            return {}
        numbers = struct.unpack(f"={len(rows)}q", held)
        found: dict[str, Value] = {}
        for row, number in zip(rows, numbers, strict=True):
            value = _meaning(row, number)
            if value is None:
                return {}
            found[row.name] = value
        return found

    def requested(self, environment: Mapping[str, str], installed: Installed) -> dict[str, Value]:
        """Returns one value for each variable of a row."""
        return {
            row.name: _asked(row, environment[row.env])
            for row in params.table()
            if row.env in environment
        }

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns what a process that does nothing else confirms."""
        done = run_true(self.confirm_environment(environment))
        said = self.confirmed(done.stderr)
        if said is None:
            raise WrongConfiguration(
                f"hz did not confirm its configuration; the process {done.describe()}"
            )
        return said


def _asked(row: Param, text: str) -> Value:
    """Returns what a variable asks for, legal or not."""
    return int(text) if text.lstrip("-").isdecimal() and row.kind != "enum" else text


def _meaning(row: Param, number: int) -> Value | None:
    """Returns what a number in hz_cfg means; None: it is not legal in that row.

    A word stands there as its index, and `auto` as -1.
    """
    if row.may_be_auto and number == -1:
        return AUTO
    if not row.low <= number <= row.high:
        return None
    return row.choices[number] if row.kind == "enum" else number


def _confirmation(stderr: str) -> dict[str, object] | None:
    """Returns what the first process confirmed, if all that did so agree."""
    lines = [line for line in stderr.splitlines() if line.startswith(_CONFIRMS)]
    said: list[dict[str, object]] = [json.loads(line.removeprefix(_CONFIRMS)) for line in lines]
    for other in said[1:]:
        if other["config"] != said[0]["config"]:
            raise WrongConfiguration(
                f"process {other['pid']} runs hz with another configuration than process "
                f"{said[0]['pid']}; look for a wrapper or start script that changes variables"
            )
    return said[0] if said else None


def _values(config: object) -> dict[str, Value]:
    """Returns a confirmed configuration as values, refusing what is none."""
    if not isinstance(config, dict):
        raise WrongConfiguration(f"hz confirmed no configuration but {config!r}")
    return {str(name): value for name, value in config.items() if isinstance(value, (int, str))}
