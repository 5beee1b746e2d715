"""What a Prometheus answers, bounded in size and time."""

from __future__ import annotations

import base64
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import IO

import msgspec

from hztune.arguments import printable
from hztune.errors import HztuneError

_MOST_BYTES = 1 << 29
_NO_ANSWER = (
    OSError, ValueError, LookupError, TypeError, RecursionError, HTTPException,
    msgspec.MsgspecError,
)  # fmt: skip

_Point = tuple[float, str]
Series = tuple[dict[str, str], list[tuple[float, float]]]
"""Labels, and points: seconds since 1970, value."""


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[_Point] | None = None  # of a range
    value: _Point | None = None  # of a moment


class _Result(msgspec.Struct):
    result: list[_Series]


class _Answer(msgspec.Struct):
    data: _Result


def queried(
    base: str, query: str, patience_s: float, span: Mapping[str, float] | None = None
) -> list[Series]:
    """The series of a query in PromQL: now, or over a span ("start", "end", "step", in seconds).

    `base`: an URL, with user:password@ where one must log in. HztuneError: it does not answer
    within `patience_s`, or not with series.
    """
    asked = {"query": query, "partial_response": "false", **(span or {})}  # as Thanos knows it
    words = urllib.parse.urlencode(asked)
    source = f"Prometheus, asked for {query!r},"
    try:
        scheme, _, rest = base.rstrip("/").partition("://")
        login, _, place = rest.rpartition("@")  # a password may hold a / or #
        url = f"{scheme}://{place}/api/v1/query{'_range' if span else ''}?{words}"
        request = urllib.request.Request(url)
        if login:
            told = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {told}")
        with urllib.request.urlopen(request, timeout=patience_s) as answer:
            content = _content(answer, patience_s)
        series = []
        for each in msgspec.json.decode(content, type=_Answer).data.result:
            points = each.values if span else each.value and [each.value]
            if points is None:
                raise ValueError("a series of it has no points")
            series.append((each.metric, [(at_s, float(text)) for at_s, text in points]))
        return series
    except urllib.error.HTTPError as error:
        why = str(error.reason)
        with suppress(*_NO_ANSWER):  # it says more than its status
            why = str(msgspec.json.decode(_content(error, patience_s))["error"])
        raise HztuneError(f"{source} answers {error.code}: {printable(why)[:200]}") from None
    except _NO_ANSWER as error:
        raise HztuneError(f"{source} does not answer: {printable(str(error))}") from None


def _content(answer: IO[bytes], patience_s: float) -> bytes:
    """ValueError: it is too much, or takes too long."""
    content, until = bytearray(), time.monotonic() + patience_s
    while part := answer.read1(1 << 20):  # type: ignore[attr-defined]
        content += part
        if len(content) > _MOST_BYTES or time.monotonic() > until:
            raise ValueError(f"no end after {patience_s:g} s or {_MOST_BYTES >> 20} MiB")
    return bytes(content)
