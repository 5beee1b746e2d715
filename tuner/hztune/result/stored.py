"""A result as it is kept beside the blocks of its study, and read back.

Its profiles are kept as their files hold them, its account field by field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hztune import profile as profiles
from hztune import schema
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
        UsageError: Something in it is not legal.
    """
    account = schema.judged(ended["account"], Account)
    made, *front = (_profile(each) for each in (ended["profile"], *ended.get(FRONT, ())))
    return Result(made, account, tuple(front), folder)


def stored_form(value: Any) -> Any:
    """A value as JSON holds it."""
    return msgspec.to_builtins(value, enc_hook=dict)  # of mappings that nothing can change


def _profile_json(made: Profile) -> Any:
    """A profile as it stands in its file."""
    return json.loads(profiles.dumps(made))


def _profile(kept: Any) -> Profile:
    return profiles.parse(json.dumps(kept).encode())
