"""A policy: what a governor may set, what it makes less, what it protects, and when it lets go."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from hztune import files, profile, schema
from hztune.arguments import margin, memory_amount, percentage
from hztune.errors import UsageError, did_you_mean
from hztune.params import Value

SHIPPED = Path(__file__).parent / "policies"
LOAD_CONTEXTS = ("idle", "steady", "burst")  # the contexts of "load"
START = "start"  # the name of the arm that changes nothing

_MOST_BYTES = 1 << 16
_Seconds = Annotated[float, Meta(ge=1.0, le=86400.0)]  # shorter epochs have too few looks
_Above = Annotated[float, Meta(gt=0.0, le=1e6)]


class PolicyArm(schema.Schema, frozen=True):
    """Settings to choose between; `contexts` are those where it is used until another is proved."""

    name: schema.Word
    settings: dict[schema.Word, dict[schema.Word, schema.Setting]]  # by allocator
    contexts: tuple[schema.Word, ...] = ()
    trims: bool = False  # when it begins and each minute, as `hztune trim` does


class FigureSource(schema.Schema, frozen=True):
    """The figure to protect, from one of three sources; none: only cost is known."""

    command: str = ""  # prints a number
    log: str = ""  # a file to which the process adds lines
    regex: str = ""  # its group finds the number in the newest lines of `log`
    prometheus: schema.HttpUrl = ""  # base URL of a Prometheus
    query: str = ""  # of one number there
    counts_work: bool = False  # it counts requests since the start; else it is a rate or a latency
    lower_is_better: bool = False

    def __post_init__(self) -> None:
        sources = [bool(self.command), bool(self.log), bool(self.prometheus)]
        if sum(sources) > 1 or bool(self.log) != bool(self.regex):
            raise ValueError("Object has not one source: command, log and regex, or prometheus")
        if bool(self.prometheus) != bool(self.query):
            raise ValueError("Object has one of prometheus and query; they belong together")

    @property
    def is_given(self) -> bool:
        return bool(self.command or self.log or self.prometheus)


class Brakes(schema.Schema, frozen=True):
    """What ends a trial, or the governing."""

    most_loss: str = "2%"  # of the figure
    most_memory: str = ""  # resident; "": no limit
    most_pressure: Annotated[float, Meta(gt=0.0, le=100.0)] = 20.0  # % of time that tasks wait


class Policy(schema.Schema, frozen=True):
    doc: str
    arms: tuple[PolicyArm, ...]
    minimise: Literal["cost", "cpu"] = "cost"
    gib_per_cpu: _Above = 8.0  # GiB of memory that cost as much as one CPU
    limit: str = ""  # memory that is not to be passed: beyond it the last arm is used
    context: str = "load"  # or "module:Class" of the user's, as PYTHONPATH has it
    epoch_s: _Seconds = 10.0  # of one setting, before it is judged
    exploring: str = "10%"  # of the time, for trials of settings that are not the best known
    error: Annotated[float, Meta(ge=1e-6, le=0.2)] = 0.02  # of any false claim
    figure: FigureSource = FigureSource()
    brakes: Brakes = Brakes()

    @property
    def most_loss(self) -> float:
        return -math.log1p(-margin(self.brakes.most_loss, "brakes.most_loss"))

    @property
    def most_bytes(self) -> float:
        return _bytes_of(self.brakes.most_memory, "brakes.most_memory")

    @property
    def limit_bytes(self) -> float:
        return _bytes_of(self.limit, "limit")

    @property
    def explored(self) -> float:
        return percentage(self.exploring, "exploring")

    def cost(self, cpus: float, mib: float) -> float:
        """CPUs that the process takes, with its memory at the price of the policy."""
        return cpus + (mib / 1024.0 / self.gib_per_cpu) * (self.minimise == "cost")

    def settings_for(self, allocator: str) -> dict[str, Mapping[str, Value]]:
        """Each arm's settings of an allocator, the start's first; UsageError: it has none."""
        found = {each.name: each.settings[allocator] for each in self.arms
                 if allocator in each.settings}  # fmt: skip
        if not found:
            known = ", ".join(sorted({name for each in self.arms for name in each.settings}))
            raise UsageError(f"the process is on {allocator}; the policy has settings for {known}")
        return {START: {}, **found}


def shipped() -> dict[str, Path]:
    """The policies that come with hztune, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def load(name: str) -> Policy:
    """The policy of a name or a file; UsageError says what is wrong in it."""
    path = shipped().get(name, Path(name))
    if not path.suffix:
        hint, legal = did_you_mean(name, shipped()), ", ".join(shipped())
        raise UsageError(f"there is no policy {name!r}{hint}; legal is FILE.toml or {legal}")
    try:
        found = schema.judged(files.read_toml(path, _MOST_BYTES), Policy)
        names = [START, *(each.name for each in found.arms)]
        if len({*names}) < len(names):
            raise UsageError(f"arms: two have one name, or one is called {START}")
        named = {word for each in found.arms for word in each.contexts}
        if found.context == "load" and (unknown := sorted(named - {*LOAD_CONTEXTS})):
            raise UsageError(
                f"arms: no context is {unknown[0]!r}; legal is {', '.join(LOAD_CONTEXTS)}"
            )
        _ = found.most_loss, found.most_bytes, found.limit_bytes, found.explored
    except UsageError as error:
        raise UsageError(f"policy {path}: {error}") from None
    return found


def policy_of(folder: Path) -> str:
    """A policy, as TOML, whose arms are the proved members of a front, with what is live of them.

    UsageError: the folder holds no profiles, or they change nothing that a living process can.
    """
    members = [(path, profile.load(path)) for path in sorted(folder.glob("*.json"))]
    arms: dict[tuple[tuple[str, Value], ...], tuple[str, Path]] = {}
    for path, member in members:
        knobs = member.adapter.knobs(member.allocator.as_installed())
        is_live = {knob.name for knob in knobs if knob.is_live}
        live = tuple((name, value) for name, value in member.params.items() if name in is_live)
        if live:
            arms.setdefault(live, (member.adapter.family, path))
    if not arms:
        raise UsageError(
            f"{str(folder)!r} has {len(members)} profiles, and none changes what a living process "
            "can; legal is the folder `front` that --pareto wrote (`hztune params --live` lists it)"
        )
    lines = ["doc = " + json.dumps(f"What was proved in {folder.resolve().parent.name}"), ""]
    for settings, (allocator, path) in arms.items():
        told = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings)
        lines += ["[[arms]]", f'name = "member-{path.stem}"']
        lines += [f"settings.{allocator} = {{ {told} }}", ""]
    return "\n".join(lines)


def _bytes_of(text: str, field: str) -> float:
    if not text:
        return math.inf
    times, kib = memory_amount(text, field)
    if times:
        raise UsageError(f"{field} is {text}; legal is a size with its unit (512M, 2G)")
    return 1024.0 * kib
