"""What a Prometheus answers, bounded in size and time."""

from __future__ import annotations

import base64
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from queue import Empty, Queue
from threading import Thread
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
    found: Queue[list[Series] | str] = Queue()
    # a thread, as a timeout of sockets begins anew with each byte
    work = partial(_told, found, base, query, patience_s, span)
    Thread(target=work, daemon=True).start()
    try:
        told = found.get(timeout=patience_s)
    except Empty:
        told = f"does not answer: no end after {patience_s:g} s"
    if isinstance(told, str):
        raise HztuneError(f"Prometheus, asked for {query!r}, {told}")
    return told


def _told(
    found: Queue[list[Series] | str], base: str, query: str, patience_s: float,
    span: Mapping[str, float] | None,
) -> None:  # fmt: skip
    # Puts the series there, or what it does instead. All of them or none are asked for, in the
    # words of Thanos and of VictoriaMetrics.
    asked = {"query": query, "partial_response": "false", "deny_partial_response": "1"}
    words = urllib.parse.urlencode({**asked, **(span or {})})
    try:
        parts = urllib.parse.urlsplit(base.rstrip("/"))
        login, _, host = parts.netloc.rpartition("@")
        url = f"{parts.scheme}://{host}{parts.path}/api/v1/query{'_range' if span else ''}?{words}"
        request = urllib.request.Request(url)
        if login:
            told = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {told}")
        with urllib.request.urlopen(request, timeout=patience_s) as answer:
            content = _content(answer)
        series = []
        for each in msgspec.json.decode(content, type=_Answer).data.result:
            points = each.values if span else each.value and [each.value]
            if points is None:
                raise ValueError("a series of it has no points")
            series.append((each.metric, [(at_s, float(text)) for at_s, text in points]))
        found.put(series)
    except urllib.error.HTTPError as error:
        why = str(error.reason)
        with suppress(*_NO_ANSWER):  # it says more than its status
            why = str(msgspec.json.decode(_content(error))["error"])
        found.put(f"answers {error.code}: {printable(why)[:200]}")
    except _NO_ANSWER as error:
        found.put(f"does not answer: {printable(str(error))}")


def _content(answer: IO[bytes]) -> bytes:
    content = answer.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    return content
