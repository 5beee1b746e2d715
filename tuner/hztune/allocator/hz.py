"""hz, hztune's own: its knobs are the core's table, and the core decides what is legal."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any

from hztune import artifacts, params
from hztune.allocator.base import Config, Environment, Installed, Memory, WrongConfiguration
from hztune.allocator.library import Library
from hztune.allocator.probe import run_true
from hztune.allocator.tables import AUTO, KnobRow
from hztune.files import sha256_of
from hztune.params import Param, Value


class Hz(Library):
    """hz, preloaded from where this hztune was installed."""

    def installed(self) -> Installed:
        """The libhz.so of this installation, after it has run once."""
        path = artifacts.library()
        preload = artifacts.preloadable(path)
        said = self._said(run_true({"LD_PRELOAD": preload, "HZ_CONFIRM": "1"}).stderr)
        if said is None:
            raise WrongConfiguration(
                f"{path} does not say HZ_CONFIRM when it is preloaded; rebuild or reinstall hztune"
            )
        return Installed(self.name, str(said["version"]), preload, path, sha256_of(path), "")

    def rows(self, installed: Installed) -> tuple[KnobRow, ...]:
        return _rows()

    def knobs(self, installed: Installed) -> tuple[Param, ...]:
        return params.table()

    def check(self, config: Config, installed: Installed) -> None:
        """Asks the core, which decides what is legal, then that numbers are no texts."""
        params.check(config)
        super().check(config, installed)

    def variables(self) -> tuple[str, ...]:
        return ("LD_PRELOAD", *(param.env for param in params.table()), *self.table.others)

    def settings(self, config: Config, installed: Installed) -> Environment:
        return params.environment(config)

    def requests(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return {r.name: environment[r.env] for r in params.table() if r.env in environment}

    def value_of(self, row: KnobRow, text: str) -> Value:
        """What a variable asks for, legal or not."""
        return row.value(text) if text.lstrip("-").isdecimal() else text

    def preloads(self, installed: Installed) -> tuple[str, ...]:
        return (installed.preload,)

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """The configuration that the process wrote; `auto` is a number there."""
        said = self._said(stderr)
        return None if said is None else said["config"]

    def verify(self, config: Config, confirmed: Mapping[str, Value]) -> None:
        """Compares every row, the defaults too: nothing may have been added on the way."""
        super().verify(params.complete(config), confirmed)

    def effective(self, memory: Memory) -> dict[str, Value]:
        """What stands in hz_cfg: one 64-bit number a row, in the order of the table.

        Nothing of an hz with another table, where a number is not legal in this one's row.
        """
        rows = params.table()
        held = memory("hz_cfg", 8 * len(rows))
        numbers = struct.unpack(f"={len(rows)}q", held) if held else ()
        meant = [_meaning(row, number) for row, number in zip(rows, numbers, strict=False)]
        found = {r.name: value for r, value in zip(rows, meant, strict=False) if value is not None}
        return found if len(found) == len(rows) else {}

    def _said(self, stderr: str) -> dict[str, Any] | None:
        """What the first process confirmed, if all that did so agree."""
        lines = re.findall(self.table.said, stderr, re.M)
        said: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for other in said[1:]:
            if other["config"] != said[0]["config"]:
                raise WrongConfiguration(
                    f"process {other['pid']} runs hz with another configuration than process "
                    f"{said[0]['pid']}; look for a wrapper or start script that changes variables"
                )
        return said[0] if said else None


@cache
def _rows() -> tuple[KnobRow, ...]:
    table = params.table()
    return tuple(KnobRow(name=p.name, doc=p.doc, default=0, words=p.choices) for p in table)


def _meaning(row: Param, number: int) -> Value | None:
    """What a number in hz_cfg means: a word is there as its index, `auto` as -1; None: nothing."""
    if row.may_be_auto and number == -1:
        return AUTO
    if not row.low <= number <= row.high:
        return None
    return row.choices[number] if row.kind == "enum" else number
