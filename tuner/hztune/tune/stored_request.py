"""A request as it stands in a shared storage, and read back by each worker that joins.

It never carries a command: a worker runs what it has been installed with, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from hztune import files, space
from hztune.errors import UsageError
from hztune.profile import TERM_DAYS
from hztune.quota import Quota
from hztune.rests import RestPlan
from hztune.scratch import scratch_folder
from hztune.tune.request import TuneRequest
from hztune.workload import WorkloadSpec

_OWN = ("workload", "program", "more", "prove_on", "beside", "space", "out", "resume", "command")
"""Fields that are written in a form of their own, or that other workers must not see."""

_MOST_SPACE_BYTES = 256 * 1024

_SINCE_THEN = {
    "panel": False,
    "max_kept": "",
    "smallest_memory": False,
    "term_days": TERM_DAYS,
}
"""What the first stored requests had no word for, and how its studies go on."""


def written(request: TuneRequest) -> dict[str, Any]:
    """A request as JSON can hold it; a search space of the user's goes along with it.

    Raises:
        UsageError: It is for a program.
    """
    if request.program is not None or request.prove_on is not None:
        raise UsageError(
            "--storage is for built-in workloads: write access to a storage would be enough to run "
            "any program on the machine of every worker; tune a program of your own without it"
        )
    if request.smallest_memory:
        raise UsageError("--smallest-memory is for a study on one machine; leave --storage out")
    plain = {name: getattr(request, name) for name in _plain_names()}
    workloads = [_written_workload(spec) for spec in request.workloads]
    return {**plain, "workloads": workloads, "space": _written_space(request.space)}


@contextmanager
def read_back(stored: Mapping[str, Any]) -> Iterator[TuneRequest]:
    """The request; a search space that came with it is a file for as long as the block lasts.

    Raises:
        UsageError: Another version of hztune has written it, or a workload is not known here.
    """
    others = ("workloads", "space")
    plain = {name: value for name, value in stored.items() if name not in others}
    plain = {**_SINCE_THEN, **plain}
    if plain.keys() != set(_plain_names()):
        odd = ", ".join(sorted(plain.keys() ^ set(_plain_names())))
        raise UsageError(
            f"another version of hztune began this study (they differ in: {odd}); install that one"
        )
    values: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()
    }
    first, *beside = (_workload(each) for each in stored["workloads"])
    with scratch_folder() as folder:
        searched = _space(stored["space"], folder)
        yield TuneRequest(workload=first, beside=tuple(beside), space=searched, **values)


def _plain_names() -> list[str]:
    """The fields that are words and numbers."""
    return [field.name for field in fields(TuneRequest) if field.name not in _OWN]


def _written_workload(spec: WorkloadSpec) -> dict[str, Any]:
    """A workload as a command line would describe it."""
    name = f"{spec.name}@{spec.setting}" if spec.setting else spec.name
    params = [f"{key}={value}" for key, value in spec.params]
    rest = {"rest": [spec.rest.idle_s, spec.rest.rounds]} if spec.rest is not None else {}
    quota = {"quota": [spec.quota.cpus, spec.quota.memory_kb]} if spec.quota is not None else {}
    about = {"name": name, "params": params, "threads": spec.threads, "goal": spec.goal}
    return {**about, **rest, **quota}


def _workload(stored: Mapping[str, Any]) -> WorkloadSpec:
    """The workload, judged anew."""
    spec = WorkloadSpec.from_text(stored["name"], stored["params"], stored["threads"])
    if "rest" in stored:
        spec = spec.resting(RestPlan(*stored["rest"]))
    if "quota" in stored:
        spec = spec.within(Quota(*stored["quota"]))
    return spec.by(stored["goal"])


def _written_space(name: str) -> dict[str, str]:
    """A search space: its name, and its text unless hztune ships it."""
    if not space.is_file(name):
        return {"name": name}
    path = Path(name)
    text = files.read_small(path, _MOST_SPACE_BYTES).decode(errors="replace")
    return {"name": path.name, "text": text}


def _space(stored: Mapping[str, str], folder: Path) -> str:
    """Name or path of the search space."""
    if "text" not in stored:
        return stored["name"]
    path = folder / "space.toml"
    path.write_text(stored["text"], encoding="utf-8")
    return str(path)
