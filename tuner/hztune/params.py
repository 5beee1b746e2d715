"""The table of parameters, as the core holds it: read, never restated.

The core's C code decides whether an hz configuration is legal, through cffi; this is the only file
that imports `_core`. The same shape, `Param`, describes the knobs of other allocators, which are
judged here by their row alone, and by their adapter for the rest; and those of workloads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, Literal

from hztune import artifacts
from hztune.errors import UsageError, did_you_mean

Value = int | str  # a number, one of the parameter's words, or `auto`

Scale = Literal["linear", "log", "pow2"]

# No octal, no exponent, no suffix: they mean different things to different allocators.
_PLAIN_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_MESSAGE_BYTES = 512


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    default: Value
    doc: str
    low: int = 0  # least legal number; for an enum the index of the first word, 0
    high: int = 0  # greatest legal number; for an enum the index of the last word
    scale: Scale = "linear"
    unit: str = ""
    choices: tuple[str, ...] = ()  # the legal words; empty for a number
    may_be_auto: bool = False
    env: str = ""  # the variable that sets it; "" when it belongs to another allocator
    macro: str = ""  # the macro of hz_config.h; likewise
    is_experimental: bool = False  # only experiments set it: no shipped search, no usual list
    is_live: bool = False  # whether it may change while a process runs

    @property
    def kind(self) -> Literal["int", "enum"]:
        return "enum" if self.choices else "int"

    def legal(self) -> str:
        if self.kind == "enum":
            return "one of: " + " ".join(self.choices)
        kind = "a power of two" if self.scale == "pow2" else "a whole number"
        unit = f" ({self.unit})" if self.unit else ""
        special = ", or auto" if self.may_be_auto else ""
        return f"{kind} from {self.low} to {self.high}{unit}{special}"


@cache
def table() -> tuple[Param, ...]:
    """Every row of params.def, in its order."""
    core = _core()
    return tuple(_row(core, index) for index in range(core.lib.hz_param_count()))


def schema() -> int:
    """The version of the table's meaning, which hz_config.h carries."""
    return int(_core().lib.HZ_CONFIG_SCHEMA_VERSION)


def find(name: str) -> Param:
    rows = {param.name: param for param in table()}
    if name in rows:
        return rows[name]
    hint = did_you_mean(name, rows, most=2)
    raise UsageError(f"hz has no parameter {name!r}{hint} (`hztune params` lists them)")


def defaults() -> dict[str, Value]:
    return {param.name: param.default for param in table()}


def complete(config: Mapping[str, Value]) -> dict[str, Value]:
    return {param.name: config.get(param.name, param.default) for param in table()}


def parse(param: Param, text: str) -> Value:
    """The value that `text` stands for; UsageError: `text` is not legal for `param`."""
    is_number = text not in param.choices and _PLAIN_DECIMAL.fullmatch(text)
    value: Value = int(text) if is_number else text
    if param.env:
        check({param.name: text}, relations=False)
    else:
        judge(param, value)
    return value


def judge(param: Param, value: Value) -> None:
    """Judges one value of another allocator's knob by its row alone; else UsageError."""
    if value == "auto" and param.may_be_auto:
        return
    if param.kind == "enum":
        legal = value in param.choices
    else:
        legal = type(value) is int and param.low <= value <= param.high
        if legal and param.scale == "pow2":
            legal = value == 0 or int(value).bit_count() == 1
    if not legal:
        raise UsageError(f'{param.name} is "{value}"; legal is {param.legal()}')


def check(config: Mapping[str, Value], *, relations: bool = True) -> None:
    """Asks the core whether it would run with `config`; UsageError in the core's own words.

    Without `relations`, the rows stand each in its own range, but need not fit each other.
    """
    core = _core()
    held = core.ffi.new("hz_config *")
    message = core.ffi.new("char[]", _MESSAGE_BYTES)
    core.lib.hz_config_default(held)
    for name, value in config.items():
        index = core.lib.hz_param_find(find(name).name.encode())
        if not core.lib.hz_config_set(held, index, _c_text(name, value), message, _MESSAGE_BYTES):
            raise UsageError(_string(core, message))
    if relations and not core.lib.hz_config_check(held, message, _MESSAGE_BYTES):
        raise UsageError(_string(core, message))


def environment(config: Mapping[str, Value]) -> dict[str, str]:
    """The variables that give hz `config`, in the table's order; UsageError: it would not run."""
    check(config)
    return {row.env: str(config[row.name]) for row in table() if row.name in config}


def nearly(variable: str) -> str | None:
    """The variable of hz that `variable` is probably a misspelling of, or None."""
    core = _core()
    row = core.lib.hz_param_nearly(variable.encode())
    return None if row == core.ffi.NULL else _string(core, row.env)


@cache
def _core() -> ModuleType:
    """The compiled table: the package's own, or the one built with the core of HZTUNE_CORE."""
    path = artifacts.core_module()
    if path is None:
        from hztune import _core as installed

        return installed
    spec = spec_from_file_location("hztune._core", path)
    assert spec and spec.loader  # a path that ends in .so always has a loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _row(core: Any, index: int) -> Param:
    row = core.lib.hz_param_at(index)
    default = _string(core, row.default_text)
    scales: dict[int, Scale] = {
        core.lib.HZ_SCALE_LINEAR: "linear",
        core.lib.HZ_SCALE_LOG: "log",
        core.lib.HZ_SCALE_POW2: "pow2",
    }
    texts = {name: _string(core, getattr(row, name)) for name in ("name", "unit", "env", "macro")}
    same = ("low", "high", "may_be_auto", "is_experimental", "is_live")
    others: dict[str, Any] = {**texts, **{name: getattr(row, name) for name in same}}
    return Param(
        default=int(default) if default.lstrip("-").isdecimal() else default,
        scale=scales[row.scale],
        choices=tuple(_string(core, row.choices).split()),
        doc=_string(core, row.doc),
        **others,
    )


def _string(core: Any, pointer: Any) -> str:
    text: bytes = core.ffi.string(pointer)
    return text.decode()


def _c_text(name: str, value: Value) -> bytes:
    """The value as C reads it; what C would cut short (a NUL) or misread is refused here."""
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isprintable():
        raise UsageError(f"{name} is {value!r}; legal is {find(name).legal()}")
    return text.encode()
