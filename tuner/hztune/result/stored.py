"""A result as it is kept beside the blocks of its study, and read back.

Its profiles are kept as their files hold them, its account field by field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hztune import profile as profiles
from hztune.blocks import Arm
from hztune.errors import HztuneError
from hztune.profile import Profile
from hztune.result import FRONT, Account, Result


def ending(result: Result) -> dict[str, Any]:
    """What an ended study keeps of itself; `read` reads it back."""
    front = [_profile_json(member) for member in result.front]
    return {
        "profile": _profile_json(result.profile),
        "account": stored_form(result.account),
        **({FRONT: front} if front else {}),
    }


def read(ended: Mapping[str, Any], folder: Path | None) -> Result:
    """The result of a study that has ended, from what is stored of it.

    Args:
        ended: What `ending` made.
        folder: Where its results are now.

    Raises:
        UsageError: A profile in it is none.
        HztuneError: A later version of hztune wrote it.
    """
    try:
        account = _value(Account, ended["account"])
    except (KeyError, TypeError) as error:
        raise HztuneError(
            f"the end of this study was written by another version of hztune ({error}); "
            "report it with that one"
        ) from error
    made, *front = (_profile(each) for each in (ended["profile"], *ended.get(FRONT, ())))
    return Result(made, account, tuple(front), folder)


def stored_form(value: Any) -> Any:
    """A value as JSON holds it."""
    if is_dataclass(value):
        return {field.name: stored_form(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: stored_form(each) for key, each in value.items()}
    return [stored_form(each) for each in value] if isinstance(value, tuple) else value


def _value(kind: Any, kept: Any) -> Any:
    """The value of a type that `stored_form` made plain; what is missing has its default."""
    if get_origin(kind) is UnionType:
        if kept is None:
            return None
        kind = next(each for each in get_args(kind) if each is not type(None))
    if kind is Arm:
        return Arm.of(kept["allocator"], dict(kept["params"]))
    if is_dataclass(kind) and isinstance(kind, type) and kept is not None:
        hints = get_type_hints(kind)
        there = {field.name for field in fields(kind)} & kept.keys()
        return kind(**{name: _value(hints[name], kept[name]) for name in there})
    if get_origin(kind) is tuple and kept is not None:
        rows = kept.items() if isinstance(kept, Mapping) else kept
        of = get_args(kind)
        return tuple(_value(of[0] if of[-1] is ... else Any, each) for each in rows)
    return kept


def _profile_json(made: Profile) -> Any:
    """A profile as it stands in its file."""
    return json.loads(profiles.dumps(made))


def _profile(kept: Any) -> Profile:
    return profiles.parse(json.dumps(kept).encode())
