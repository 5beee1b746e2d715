"""What files may hold: types with their ranges, and how one is read and written.

msgspec decodes; what it refuses becomes one printable sentence that says where and what was got.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from hztune.errors import UsageError

_TEXT = r"[A-Za-z0-9 _.:,;@()/+=#-]"
_WORD = r"[A-Za-z0-9_.:+-]"

Word = Annotated[str, Meta(pattern=rf"\A{_WORD}{{1,64}}\Z")]
"""The least that a name or value may be, so that no newline, NUL or quote can travel in it."""
WordOrNone = Annotated[str, Meta(pattern=rf"\A{_WORD}{{0,64}}\Z")]
Text = Annotated[str, Meta(pattern=rf"\A{_TEXT}{{0,128}}\Z")]
"""A description for people; harmless in a C comment, a shell comment and YAML."""
VersionText = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:+~-]{0,64}\Z")]
HttpUrl = Annotated[str, Meta(pattern=r"\A(https?://[^/?#\s]+(/[^?#@\s]*)?)?\Z")]
# or nothing; an @ or / of a password in it is %40 or %2F
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Sha256OrNone = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
Created = Annotated[
    str, Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\Z")
]
"""A time, UTC: 2026-01-31T12:00:00Z."""
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"  # of Created

Setting = Annotated[int, Meta(ge=1 - 2**63, le=2**63 - 1)] | Word
"""Value of a parameter: `params.Value` as a file may hold it."""
Times = Annotated[float, Meta(ge=0.0, le=1e9)]
Whole = Annotated[int, Meta(ge=0, le=10**9)]

_T = TypeVar("_T")
_MOST_SHOWN = 40
_LEGAL = {"str": "text", "float": "a number", "int": "a whole number"}


class Schema(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=False
):
    """Base of everything that a file holds; a field that has its default is left out."""


def as_text(text: str) -> str:
    return re.sub(f"(?!{_TEXT}).", "-", text, flags=re.DOTALL)[:128]


def as_word(text: str) -> str:
    return re.sub(f"(?!{_WORD}).", "-", text, flags=re.DOTALL)[:64]


def time_of(key: str, text: str) -> datetime:
    try:
        return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=timezone.utc)
    except ValueError:
        raise UsageError(
            f"{key} is {text!r}; legal is a time that exists, such as 2026-01-31T12:00:00Z"
        ) from None


def parse(content: bytes | str) -> Any:
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        raise UsageError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise UsageError("it is not UTF-8 text") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"it is not JSON: {error}") from None


def judged(value: object, kind: type[_T]) -> _T:
    """`value` as a `kind`, which names every field; UsageError says where, and what was got."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError(_sentence(str(error), value)) from None


def _sentence(said: str, value: Any) -> str:
    """Msgspec's message ("Expected `int`, got `str` - at `$.search.seed`"), the place first."""
    what, _, place = re.sub("`(.*?)`", lambda m: _LEGAL.get(m[1], m[1]), said).partition(" - at ")
    path = place.removeprefix("$").removeprefix(".")
    if what.startswith("Object "):  # a field is missing or unknown
        return ascii(f"{path}: {what[7:]}" if path else what[7:])[1:-1]
    for key in re.findall(r"\w+", path):
        held = value if isinstance(value, (dict, list)) else {}
        value = held[int(key)] if isinstance(held, list) else held.get(key)
    if "[...]" in path or isinstance(value, (dict, list)):
        return ascii(f"{path or 'it'}: {what}")[1:-1]
    if isinstance(value, str):
        value = re.sub(r".+@", "...@", value, flags=re.DOTALL)  # it may hold a login
    return (
        f"{path or 'it'} is {ascii(value)[:_MOST_SHOWN]}; {ascii(what[0].lower() + what[1:])[1:-1]}"
    )
