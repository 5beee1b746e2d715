"""The profile: a proved configuration as data, with where, how and how well it was proved.

A profile may come from anywhere. It holds *parameters* and descriptions, never a command, a path or
a variable of another program: whatever reads one gets either a `Profile` of which every field was
judged, or one sentence that says what is wrong. The environment in it is for people to read; what
is applied is made anew from the parameters, and a stored one that differs is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field, to_builtins

from hztune import allocator, files, schema
from hztune.allocator import Adapter, Installed
from hztune.arguments import LIMIT
from hztune.blocks import Arm, Ratio
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.quota import MOST_MEMORY_KB, Quota
from hztune.rests import MemoryKind, RestPlan
from hztune.schema import (
    Created,
    Schema,
    Setting,
    Sha256,
    Sha256OrNone,
    Text,
    Times,
    VersionText,
    Whole,
    Word,
    WordOrNone,
    as_text,
)

SCHEMA = "hztune-profile/1"
PROFILE = "profile.json"  # in a results directory
MOST_BYTES = 64 * 1024  # a profile is a page of text; whatever is larger is something else

Verdict = Literal[
    "improved", "within_limit", "less_memory", "no_gain", "infeasible", "not_enough_data",
    "interrupted",
]  # fmt: skip
"""`within_limit`: it keeps a memory limit that the default breaks; `less_memory`: it takes less
memory than the default; both whatever its speed."""

CLAIMS: tuple[Verdict, ...] = ("improved", "within_limit", "less_memory")
"""Verdicts that promise something that can be measured again."""

TOLD_FROM = 1.05  # times of memory from which on it is told beside a gain
LIMIT_ROOM = 1.25  # a suggested memory limit is so many times the largest peak that was seen
TERM_DAYS = 90  # after which a profile should be measured again, if it does not say otherwise
MOST_TERM_DAYS = 36500
MOST_SEED = 2**63 - 1

Trouble = Literal["speed", "memory", "failure", "known", "trace", "unseen"]
"""`known`: not measured here. `trace`: it was proved on a trace, and not on the program; `unseen`:
by a function of the user's, whose processes nobody looked at."""
_MANY_TIMES = 0.5  # times of speed below which a loss is told as a factor

_Metric = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]{0,31}\Z")]
_Threads = Annotated[int, Meta(ge=0, le=65536)]
_Limit = Annotated[str, Meta(pattern=rf"\A({LIMIT.pattern})\Z")]


class AllocatorId(Schema, frozen=True):
    name: Word  # the adapter: hz, glibc, jemalloc, ...; `none` is the unchanged program
    version: VersionText  # as the library says it
    soname: WordOrNone  # file name of the library, never a path; "": nothing is preloaded
    sha256: Sha256OrNone  # of the library's file; "": there is none
    given: dict[Word, Setting] = field(default_factory=dict)  # by the program to one inside

    @classmethod
    def of(cls, found: Installed) -> AllocatorId:
        soname = Path(found.preload).name
        return cls(found.name, found.version, soname, found.sha256, dict(found.given))

    def as_installed(self) -> Installed:
        """What an adapter asks for, without looking at this machine."""
        given = tuple(self.given.items())
        return Installed(self.name, self.version, self.soname, Path(), self.sha256, "", given)


class WorkloadId(Schema, frozen=True):
    kind: Literal["bench", "program"]
    name: Word  # of the workload, or of the program's file
    setting: WordOrNone  # a named setting of the workload ("main"); "": its defaults
    params: dict[Word, Setting]  # what differs from that
    # of a program's words, to know the command again; the words may hold secrets
    words_sha256: Sha256OrNone = ""

    @property
    def text(self) -> str:
        """As `--workload` names it: "remote@main"."""
        return f"{self.name}@{self.setting}" if self.setting else self.name

    @property
    def label(self) -> str:
        return " ".join([self.text, *[f"{key}={value}" for key, value in self.params.items()]])


class MachineId(Schema, frozen=True):
    cpu: Text
    cores: Annotated[int, Meta(ge=1, le=65536)]  # that may be used
    quota: Annotated[float, Meta(ge=0, le=65536)] | None  # CPUs of its control group; None: all
    kernel: Text
    libc: Text  # name and version
    page_size: Annotated[int, Meta(ge=1, le=2**30)]
    thp: Text  # transparent huge pages: always, madvise or never

    @classmethod
    def of(cls, machine: Machine) -> MachineId:
        cpu, kernel, libc, thp = map(
            as_text, (machine.cpu, machine.kernel, machine.libc, machine.thp)
        )
        return cls(cpu, machine.cores, machine.quota, kernel, libc, machine.page_size, thp)


class Objective(Schema, frozen=True):
    metric: _Metric  # what was made better: ops_per_s, wall_s, ...
    limits: dict[Word, _Limit]  # max_rss -> "1.10x" (of the control) or "512M"
    # what the ratio is to: the defaults of this allocator; "": those of the profile's own
    control: WordOrNone = ""
    rest: RestPlan | None = None  # rounds of load and rest; None: no memory at rest was read
    quota: Quota | None = None  # the container in which it was proved

    def __post_init__(self) -> None:
        if self.rest is not None and self.rest.says:
            raise ValueError("rest holds what a program says; legal are idle_s and rounds")


class MemoryClaim(Schema, frozen=True, omit_defaults=False):
    """Memory, tuned / default, on the pairs of the claim: below 1 is less; with a 95 % interval."""

    ratio: Times
    ci_low: Times
    ci_high: Times
    of: MemoryKind = "rss"

    def __post_init__(self) -> None:
        if not self.ci_low <= self.ratio <= self.ci_high:
            raise ValueError("the ratio lies outside its ci_low and ci_high")


class Claim(Schema, frozen=True):
    """The verdict, and what was proved on pairs that no selection had seen.

    The ratio is tuned to default, above 1 is better whatever the metric, with its 95 % interval;
    None, all three: not measured.
    """

    metric: _Metric
    ratio: Times | None
    ci_low: Times | None
    ci_high: Times | None
    pairs: Whole  # fresh pairs of processes behind it
    verdict: Verdict
    memory: MemoryClaim | None = None  # of a member of a front; None of every other profile


class Share(Schema, frozen=True):
    """What a profile for several workloads does for one of them: a ratio as in Claim."""

    workload: WorkloadId
    ratio: Times | None
    ci_low: Times | None
    ci_high: Times | None


class Caution(Schema, frozen=True):
    """What a profile may do to programs that it was not tuned for."""

    what: Trouble
    on: Text  # the kind of programs ("programs with large blocks"); or the whole sentence
    workload: Text = ""  # of the panel, on which it was seen; "" for a known risk
    params: dict[Word, Setting] = field(default_factory=dict)  # that do it; empty: not found
    ratio: Times | None = None  # speed or peak memory, tuned / default, with its 95 % interval
    ci_low: Times | None = None
    ci_high: Times | None = None

    def __post_init__(self) -> None:
        measured = [each for each in (self.ci_low, self.ratio, self.ci_high) if each is not None]
        if len(measured) != 3 * (self.what in ("speed", "memory")):
            raise ValueError("a warning lacks its ratio, or has one that is not of its kind")
        if measured != sorted(measured) or self.ratio == 0:
            raise ValueError("the ratio of a warning lies outside its interval, or is 0")
        if self.what == "known" and not self.params:
            raise ValueError("a known risk is one of parameters, and names none")

    @property
    def text(self) -> str:
        """In words: "on programs with large blocks: 33 times slower (max_dirty_bytes=0)"."""
        cause = " ".join(f"{name}={value}" for name, value in self.params.items())
        if self.what == "known":
            return f"known risk of {cause}: {self.on}"
        if self.what in ("trace", "unseen"):
            return self.on
        effect = "a process failed"
        if self.what == "memory" and self.ratio:
            effect = f"{self.ratio:.1f} times the memory"
        elif self.ratio and self.ratio < _MANY_TIMES:
            effect = f"{1.0 / self.ratio:.0f} times slower"
        elif self.ratio:
            effect = f"{100.0 * (1.0 - self.ratio):.0f} % slower"
        return f"on {self.on}: {effect}" + (f" ({cause})" if cause else "")


class SearchInfo(Schema, frozen=True):
    sampler: Word
    seed: Annotated[int, Meta(ge=0, le=MOST_SEED)]
    budget_s: Times
    trials: Whole
    space_sha256: Sha256


class Profile(Schema, frozen=True):
    """A configuration, and everything that is claimed about it."""

    allocator: AllocatorId  # whose configuration it is
    params: dict[Word, Setting]  # what differs from the defaults, or all; in the table's order
    workload: WorkloadId  # or the first of several
    threads: _Threads  # of the workload; 0: the program decides
    machine: MachineId
    objective: Objective
    claim: Claim = field(name="result")
    search: SearchInfo
    versions: dict[Word, Text]  # of what measured it, by name
    created: Created
    # each of several workloads, whose geometric mean the claim is of; empty for one
    shares: tuple[Share, ...] = ()
    cautions: tuple[Caution, ...] = field(default=(), name="warnings")  # what it may do elsewhere
    found_on: WorkloadId | None = None  # the trace, where its claim is of the program itself
    term_days: Annotated[int, Meta(ge=1, le=MOST_TERM_DAYS)] = TERM_DAYS
    memory: tuple[MemoryClaim, ...] = ()  # its price: what it takes of each memory that was seen
    # memory limit under which to deploy it, KiB; 0: none is known
    suggested_limit_kb: Annotated[int, Meta(ge=0, le=MOST_MEMORY_KB)] = 0

    @property
    def workloads(self) -> tuple[WorkloadId, ...]:
        """Everything that it is for."""
        return tuple(share.workload for share in self.shares) or (self.workload,)

    @property
    def makes_a_claim(self) -> bool:
        """Whether it promises anything that can be measured again."""
        return self.claim.verdict in CLAIMS

    @property
    def arm(self) -> Arm:
        return Arm.of(self.allocator.name, self.params)

    @property
    def adapter(self) -> Adapter:
        return allocator.get(self.allocator.name)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the parameters, made anew, without LD_PRELOAD; UsageError: not legal."""
        found = self.allocator.as_installed()
        return self.adapter.environment(self.params, found, preload=False)


def ratio_text(of: Claim | MemoryClaim | Share) -> str:
    assert of.ratio is not None and of.ci_low is not None and of.ci_high is not None
    return Ratio(of.ratio, of.ci_low, of.ci_high).text


def hash_of_words(words: Sequence[str]) -> str:
    """What a profile keeps of a program's command instead of its words."""
    return hashlib.sha256(json.dumps(list(words)).encode()).hexdigest()


def load(path: str | Path) -> Profile:
    """The profile in a file; UsageError: it is none, or no legal one; the text says where."""
    if os.path.isdir(path):
        raise UsageError(
            f"cannot read {str(path)!r}: it is a directory; "
            "give the profile.json of a results directory"
        )
    content = files.read_small(Path(path), MOST_BYTES)
    try:
        return parse(content)
    except UsageError as error:
        raise UsageError(f"{str(path)!r} is not a valid profile: {error}") from None


def save(profile: Profile, path: Path) -> None:
    """Writes a profile, whole or not at all; HztuneError: it is not legal, or the disk is full."""
    text = dumps(profile)
    try:
        if parse(text.encode()) != profile:
            raise HztuneError("this profile would not read back as it was written")
    except UsageError as error:
        raise HztuneError(f"this profile is not valid: {error}") from None
    files.write_whole(path, text)


def dumps(profile: Profile) -> str:
    """The profile as JSON text, one line per value."""
    held = {"schema": SCHEMA, **to_builtins(profile), "env": profile.environment}
    return json.dumps(held, indent=2, allow_nan=False) + "\n"


def parse(content: bytes) -> Profile:
    """The profile in `content`; UsageError: in one sentence, what is wrong where."""
    if len(content) > MOST_BYTES:
        raise UsageError(f"it is above {MOST_BYTES} bytes")
    held = schema.judged(schema.parse(content), dict[str, object])
    if (found := held.pop("schema", "missing")) != SCHEMA:
        raise UsageError(f"schema is {ascii(found)[:40]}; legal is {SCHEMA!r}")
    stored = held.pop("env", "missing")
    profile = schema.judged(held, Profile)
    _judge(profile)
    _judge_claim(profile.claim)
    if stored != profile.environment:
        raise UsageError("env is not what the parameters give; it is made from params alone")
    return profile


def _judge(profile: Profile) -> None:
    """The relations between fields: library, parameters and verdict must tell one story."""
    adapter, identity, claim = profile.adapter, profile.allocator, profile.claim
    names = () if adapter.is_inside else adapter.table.libraries
    stems = "|".join(re.escape(soname.partition(".so")[0]) for soname, _ in names)
    if not re.fullmatch(rf"({stems})\.so(\.[0-9]{{1,4}}){{0,3}}" if stems else "", identity.soname):
        raise UsageError(f"allocator.soname is no library of {identity.name}")
    adapter.check(identity.given, identity.as_installed())
    if profile.objective.control:
        allocator.get(profile.objective.control)
    if any(not one.params.items() <= profile.params.items() for one in profile.cautions):
        raise UsageError("a warning is of a parameter that is not in params")
    first = profile.shares[0].workload if len(profile.shares) > 1 else None
    if profile.shares and first != profile.workload:
        raise UsageError("shares are of several workloads, of which `workload` is the first")
    defaults = {knob.name: knob.default for knob in adapter.knobs(identity.as_installed())}
    if claim.verdict == "no_gain" and not profile.params.items() <= defaults.items():
        raise UsageError("result.verdict is no_gain, which carries the default parameters only")


def _judge_claim(claim: Claim) -> None:
    known = [each for each in (claim.ci_low, claim.ratio, claim.ci_high) if each is not None]
    if len(known) < 3 and (known or claim.verdict in ("improved", "less_memory")):
        raise UsageError("result lacks its ratio or an end of its interval")
    if known != sorted(known):
        raise UsageError("result.ratio lies outside result.ci_low and result.ci_high")
    if claim.verdict == "improved" and known[0] <= 1:
        raise UsageError("result.verdict is improved, but the interval does not exclude 1")
    if claim.verdict == "less_memory" and (claim.memory is None or claim.memory.ci_high >= 1):
        raise UsageError("result.verdict is less_memory, but no interval of memory is below 1")
