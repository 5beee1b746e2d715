"""The results directory: samples while they are made, then the profile and what is made from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hztune import export, files, profile
from hztune.errors import UsageError
from hztune.profile import PROFILE
from hztune.result import FRONT, Result, front_file
from hztune.store import kept_command
from hztune.store.log import SAMPLES, is_there
from hztune.tune.request import Task

_EXPORTS = {"env": "profile.env", "header": "hz_config.h"}


@contextmanager
def directory(task: Task) -> Iterator[Path]:
    """Makes the results directory, or finds the one to go on with; one that stays empty goes again.

    Raises:
        UsageError: It is no directory, cannot be made, or holds no study to resume.
    """
    request = task.request
    path = request.out or Path("hztune-results") / _fresh_name(task)
    if request.resume and not is_there(path):
        raise UsageError(f"there is no study to resume in {str(path)!r} (it has no {SAMPLES})")
    is_new = not path.exists()
    files.make_folder(path)
    try:
        yield path
    finally:
        if not is_there(path):
            kept_command.place_of(path / PROFILE).unlink(missing_ok=True)
        if is_new:
            with suppress(OSError):  # there is something in it
                path.rmdir()


def write(result: Result) -> None:
    """Writes the profile, the forms that follow from it and a front, each file whole or not.

    A result without a directory is not written.
    """
    if (folder := result.folder) is None:
        return
    profile.save(result.profile, folder / PROFILE)
    for number, member in enumerate(result.front, start=1):
        (folder / FRONT).mkdir(exist_ok=True)
        profile.save(member, folder / front_file(number))
    for form, name in _EXPORTS.items():
        if form != "header" or result.profile.allocator.name == "hz":
            files.write_whole(folder / name, export.render(result.profile, form))


def _fresh_name(task: Task) -> str:
    """A name for a study's directory: what is tuned for what, and when."""
    request = task.request
    words = [request.allocator.replace(",", "-"), request.name]
    if request.workload is not None:
        setting = request.workload.setting
        words += [*([setting] if setting else []), f"T{request.workload.threads}"]
    return "-".join([*words, time.strftime("%Y%m%d-%H%M%S")])
