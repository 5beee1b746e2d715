"""hz-trace: what it does with a file, its errors as those of hztune."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hztune import artifacts, process
from hztune.errors import HztuneError, UsageError
from hztune.files import may_be_replaced
from hztune.trace import overview

_DEADLINE_S = 24 * 3600.0
_REFUSED = 2
_BESIDE = ".unpacked-"
_ZIP = b"PK\3\4"
_PREFIXES = ("hz-trace: ", "hz-record: ")
_NO_ZIP = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError,
)  # fmt: skip
"""What zipfile raises where a zip is damaged, or of a kind that it does not read."""


def describe(path: Path) -> dict[str, Any]:
    """Returns what `hz-trace info` says of a trace.

    Raises:
        UsageError: It is none.
        HztuneError: What it says of itself is nothing that hztune writes.
    """
    said, _ = _run("info", path)
    try:
        told: dict[str, Any] = json.loads(said)
        overview.trace_lines(told)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise HztuneError(
            f"{str(path)!r} has notes that hztune does not write; `hztune trace anonymize` makes a "
            "trace without them"
        ) from None
    return told


def cut(path: Path, output: Path, from_s: float | None, to_s: float | None) -> list[str]:
    """Writes a part of a trace, or what stands before its damage; returns what is to be said.

    Raises:
        UsageError: It is no trace, or cannot be written.
        HztuneError: Nothing is left of it.
    """
    words = [] if from_s is None else ["--from", repr(from_s)]
    words += [] if to_s is None else ["--to", repr(to_s)]
    return _run("cut", path, "--output", str(output), *words)[1]


def anonymize(path: Path, output: Path, round_sizes: int | None) -> list[str]:
    """Writes a trace without names; with `round_sizes` (bytes), without exact sizes.

    Raises:
        UsageError: It is no trace, or cannot be written.
        HztuneError: It is damaged.
    """
    words = [] if round_sizes is None else ["--round-sizes", str(round_sizes)]
    return _run("anonymize", path, "--output", str(output), *words)[1]


def convert(path: Path, output: Path, form: str) -> list[str]:
    """Writes a recording of any form that is known as trace, text, aosp or mtrace.

    Android's text is zipped where the file's name ends in .zip.

    Raises:
        UsageError: It is none of them, or is not what it seems to be.
        HztuneError: It is damaged, or cannot be written.
    """
    with _unpacked(path, output) as source:
        if form == "aosp" and output.suffix == ".zip":
            return _convert_zipped(source, output)
        return _run("convert", source, "--output", str(output), "--to", form)[1]


def _convert_zipped(source: Path, output: Path) -> list[str]:
    """Writes Android's text and packs it."""
    if not may_be_replaced(output):
        raise UsageError(f"cannot write {output}: it is a folder, a device or a pipe; name a file")
    if not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: there is no folder {output.parent}")
    try:
        with tempfile.TemporaryDirectory(prefix=_BESIDE, dir=output.parent) as folder:
            text, packed = Path(folder, f"{output.stem}.txt"), Path(folder, "packed")
            said = _run("convert", source, "--output", str(text), "--to", "aosp")[1]
            with zipfile.ZipFile(packed, "x", zipfile.ZIP_DEFLATED) as archive:
                archive.write(text, text.name)
            packed.rename(output)
    except OSError as error:
        raise HztuneError(f"cannot write {str(output)!r}: {error.strerror}") from error
    return said


@contextmanager
def _unpacked(path: Path, output: Path) -> Iterator[Path]:
    """The file itself; of a zip, as Android's traces come, the one file in it."""
    if not _is_zip(path):
        yield path
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix=_BESIDE, dir=output.parent)
    except OSError as error:
        raise HztuneError(f"cannot unpack {path} beside {output}: {error.strerror}") from error
    with folder:
        source = _unpack(path, Path(folder.name))
        try:
            yield source
        except HztuneError as error:
            raise type(error)(str(error).replace(str(source), f"{path}: {source.name}")) from None


def _unpack(path: Path, folder: Path) -> Path:
    """Unpacks the one file of a zip into a folder; returns where it stands."""
    unpacked = folder / path.stem
    try:
        with zipfile.ZipFile(path) as archive:
            files = [each for each in archive.infolist() if not each.is_dir()]
            if len(files) != 1:
                raise UsageError(f"{path} holds {len(files)} files; a zipped trace is one file")
            size, free = files[0].file_size, shutil.disk_usage(folder).free
            if size > free:
                raise UsageError(f"{path} unpacks to {size} bytes, and there is room for {free}")
            with archive.open(files[0]) as packed, unpacked.open("wb") as text:
                shutil.copyfileobj(packed, text, 1 << 20)
    except _NO_ZIP as error:
        raise UsageError(f"{path} is a zip that cannot be unpacked: {error}") from error
    except OSError as error:
        raise HztuneError(f"cannot unpack {path}: {error.strerror or error}") from error
    return unpacked


def _is_zip(path: Path) -> bool:
    if not path.is_file():  # nor a pipe, from which nothing may ever come
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except OSError:
        return False  # hz-trace says why it cannot be read


def _run(verb: str, path: Path, *words: str) -> tuple[str, list[str]]:
    """Runs hz-trace; returns what it wrote, and what is to be said about it."""
    done = process.run(
        [str(artifacts.trace_tool()), verb, str(path), *words],
        deadline_s=_DEADLINE_S,
        output_limit=64 << 20,
    )
    said = [_bare(line) for line in done.stderr.splitlines()]
    if not done.ok:
        reason = said[-1] if said and done.code > 0 else f"hz-trace {done.describe()}"
        raise UsageError(reason) if done.code == _REFUSED else HztuneError(reason)
    return done.stdout, said


def _bare(line: str) -> str:
    return next((line.removeprefix(p) for p in _PREFIXES if line.startswith(p)), line)
