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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from hztune import allocator, caution, files, strictjson
from hztune.allocator import Adapter, Installed
from hztune.allocator.base import ALPHABET
from hztune.arguments import LIMIT
from hztune.blocks import Arm
from hztune.caution import Caution
from hztune.errors import HztuneError, UsageError
from hztune.machine import Machine
from hztune.params import Value
from hztune.quota import LEAST_CPUS, LEAST_MEMORY_KB, MOST_CPUS, MOST_MEMORY_KB, Quota
from hztune.rests import MEMORIES, MOST_IDLE_S, MOST_RESTS, MemoryKind, RestPlan
from hztune.strictjson import CREATED, SETTING, SHA256_OR_NONE, TEXT, VERSION, Fields, ascii_text

SCHEMA = "hztune-profile/1"
PROFILE = "profile.json"
"""Its name in a results directory."""
MOST_BYTES = 64 * 1024
"""A profile is a page of text; whatever is larger is something else."""

Verdict = Literal[
    "improved",
    "within_limit",
    "less_memory",
    "no_gain",
    "infeasible",
    "not_enough_data",
    "interrupted",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""`within_limit`: it keeps a memory limit that the default breaks, whatever its speed.
`less_memory`: it takes less memory than the default, whatever its speed."""

CLAIMS: tuple[Verdict, ...] = ("improved", "within_limit", "less_memory")
"""Verdicts that promise something that can be measured again."""

TOLD_FROM = 1.05
"""Ratio of memory from which on it is told beside a gain."""

LIMIT_ROOM = 1.25
"""A suggested memory limit is so many times the largest peak that was seen."""

TERM_DAYS = 90
"""Days after which a profile should be measured again, if it does not say otherwise."""
MOST_TERM_DAYS = 36500

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MEASURED_CLAIMS = ("improved", "less_memory")
_METRIC = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MOST_THREADS = 65536
MOST_SEED = 2**63 - 1
_KEYS = {
    "claim": "result",
    "cautions": "warnings",
}  # in the file, where a field is called otherwise


@dataclass(frozen=True, slots=True)
class AllocatorId:
    """Which library the parameters are for."""

    name: str
    """The adapter: hz, glibc, jemalloc, ...; `none` is the unchanged program."""
    version: str
    soname: str
    """File name of the library, never a path; empty when nothing is preloaded."""
    sha256: str
    """Of the library's file; empty when there is none."""
    given: tuple[tuple[str, Value], ...] = ()
    """What the program gives to one that is inside; no key of the file where that is nothing."""

    @classmethod
    def of(cls, found: Installed) -> AllocatorId:
        """The identity of an installed allocator."""
        soname = Path(found.preload).name
        return cls(found.name, found.version, soname, found.sha256, found.given)

    def as_installed(self) -> Installed:
        """What an adapter asks for, without looking at this machine."""
        return Installed(self.name, self.version, self.soname, Path(), self.sha256, "", self.given)


@dataclass(frozen=True, slots=True)
class WorkloadId:
    """What was measured."""

    kind: Literal["bench", "program"]
    """A workload of hz-bench, or a program of the user's (whose words are not recorded)."""
    name: str
    setting: str
    """A named setting of the workload ("main"); empty: its defaults."""
    params: tuple[tuple[str, Value], ...]
    words_sha256: str = ""
    """Of a program's words, to know the command again; the words may hold secrets."""

    @property
    def text(self) -> str:
        """As `--workload` names it: "remote@main"."""
        return f"{self.name}@{self.setting}" if self.setting else self.name

    @property
    def label(self) -> str:
        """The same with its parameters: "remote@main remote=90"."""
        return " ".join([self.text, *[f"{key}={value}" for key, value in self.params]])


@dataclass(frozen=True, slots=True)
class MachineId:
    """Where it was measured."""

    cpu: str
    cores: int
    quota: float | None
    """CPUs that the control group may use; None: no limit."""
    kernel: str
    libc: str
    page_size: int
    """Bytes."""
    thp: str
    """Mode of transparent huge pages: always, madvise or never."""

    @classmethod
    def of(cls, machine: Machine) -> MachineId:
        """The identity in a machine's record, its texts reduced to what a profile may hold."""
        return cls(
            cpu=ascii_text(machine.cpu),
            cores=machine.cores,
            quota=machine.quota,
            kernel=ascii_text(machine.kernel),
            libc=ascii_text(machine.libc),
            page_size=machine.page_size,
            thp=ascii_text(machine.thp),
        )


@dataclass(frozen=True, slots=True)
class Objective:
    """What was sought, under which limits."""

    metric: str
    """What was made better: ops_per_s, wall_s, ..."""
    limits: tuple[tuple[str, str], ...]
    """By name: max_rss -> "1.10x" (of the control) or "512M"."""
    control: str = ""
    """What the ratio is to: the defaults of this allocator (`none`: the unchanged program); empty:
    those of the profile's own."""
    rest: RestPlan | None = None
    """Its rounds of load and rest; None, and no key of the file, where no memory at rest was read.
    By what a program says that it rests is not in it."""
    quota: Quota | None = None
    """The container in which it was proved; None, and no key of the file, where there was none."""


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    """What a configuration was seen to take, on the pairs of its claim."""

    ratio: float
    """Memory, tuned against default; below 1 is less."""
    ci_low: float
    ci_high: float
    """Ends of the 95 % confidence interval of `ratio`."""
    of: MemoryKind = "rss"
    """Which memory; of the claim of a front, no key of the file where it is the peak."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The verdict, and what was proved on pairs that no selection had seen.

    In the file it is called "result".
    """

    metric: str
    ratio: float | None
    """Tuned against default; above 1 is better, whatever the metric. None: not measured."""
    ci_low: float | None
    ci_high: float | None
    """Ends of the 95 % confidence interval of `ratio`."""
    pairs: int
    """Fresh pairs of processes behind it."""
    verdict: Verdict
    memory: MemoryClaim | None = None
    """Of a member of a front; None, and no key of the file, in every other profile."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a profile for several workloads does for one of them, on the same fresh pairs."""

    workload: WorkloadId
    ratio: float | None
    """As in Claim; None: not measured."""
    ci_low: float | None
    ci_high: float | None
    """Ends of its own 95 % interval."""


@dataclass(frozen=True, slots=True)
class SearchInfo:
    """How the candidate was found."""

    sampler: str
    seed: int
    budget_s: float
    trials: int
    space_sha256: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A configuration, and everything that is claimed about it."""

    allocator: AllocatorId
    params: tuple[tuple[str, Value], ...]
    """What differs from the allocator's defaults, or all of it; in the table's order."""
    workload: WorkloadId
    """The workload, or the first of several."""
    threads: int
    """0: the program decides."""
    machine: MachineId
    objective: Objective
    claim: Claim
    search: SearchInfo
    versions: tuple[tuple[str, str], ...]
    created: str
    """UTC, "2026-01-31T12:00:00Z"."""
    shares: tuple[Share, ...] = ()
    """Each of several workloads, whose geometric mean the claim is of; empty for one alone."""
    cautions: tuple[Caution, ...] = ()
    """What it may do elsewhere: "warnings" in the file, which has that key where there is one."""
    found_on: WorkloadId | None = None
    """The trace on which it was sought, where its claim is of the program itself; no key of the
    file in every other profile."""
    term_days: int = TERM_DAYS
    """Days after which it should be measured again; no key of the file where that is TERM_DAYS."""
    memory: tuple[MemoryClaim, ...] = ()
    """Its price: what it takes of each memory that was seen; no key of the file without any."""
    suggested_limit_kb: int = 0
    """Memory limit under which to deploy it, KiB; 0, and no key of the file: none is known."""

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
        """The configuration as it is measured."""
        return Arm(self.allocator.name, self.params)

    @property
    def config(self) -> dict[str, Value]:
        """The parameters as a mapping."""
        return dict(self.params)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that carry the parameters, made anew; LD_PRELOAD is not among them.

        Raises:
            UsageError: the allocator would not run with these parameters.
        """
        found = self.allocator.as_installed()
        return self.adapter.environment(self.config, found, preload=False)

    @property
    def adapter(self) -> Adapter:
        """The adapter of its allocator."""
        return allocator.get(self.allocator.name)


def ratio_text(of: Claim | MemoryClaim | Share) -> str:
    """A ratio with its interval, where it was measured: "1.051x [1.031, 1.072]"."""
    return f"{of.ratio:.3f}x [{of.ci_low:.3f}, {of.ci_high:.3f}]"


def hash_of_words(words: Sequence[str]) -> str:
    """What a profile keeps of a program's command instead of its words."""
    return hashlib.sha256(json.dumps(list(words)).encode()).hexdigest()


def load(path: Path) -> Profile:
    """The profile in the file `path`.

    Raises:
        UsageError: it is no profile, or not a legal one; the text says where.
    """
    if os.path.isdir(path):
        raise UsageError(
            f"cannot read {str(path)!r}: it is a directory; "
            "give the profile.json of a results directory"
        )
    content = files.read_small(path, MOST_BYTES)
    try:
        return parse(content)
    except UsageError as error:
        raise UsageError(f"{str(path)!r} is not a valid profile: {error}") from None


def save(profile: Profile, path: Path) -> None:
    """Writes `profile` so that `path` is always a whole profile.

    Raises:
        HztuneError: the profile is not one that `load` would take, or the file system refused.
    """
    text = dumps(profile)
    try:
        if parse(text.encode()) != profile:
            raise HztuneError("this profile would not read back as it was written")
    except UsageError as error:
        raise HztuneError(f"this profile is not valid: {error}") from None
    files.write_whole(path, text)


def dumps(profile: Profile) -> str:
    """The profile as JSON text, one line per value."""
    held = {_KEYS.get(name, name): value for name, value in asdict(profile).items()}
    held["params"] = profile.config
    held["allocator"]["given"] = dict(profile.allocator.given)
    for workload in (held["workload"], *(share["workload"] for share in held["shares"])):
        workload["params"] = dict(workload["params"])
    held["objective"]["limits"] = dict(profile.objective.limits)
    held["versions"] = dict(profile.versions)
    for one in held["warnings"]:
        one["params"] = dict(one["params"])
    if profile.found_on is not None:
        held["found_on"]["params"] = dict(profile.found_on.params)
    if (rest := profile.objective.rest) is not None:
        held["objective"]["rest"] = {"idle_s": rest.idle_s, "rounds": rest.rounds}
    _leave_out_what_is_usual(profile, held)
    body = {"schema": SCHEMA, **held, "env": profile.environment}
    return json.dumps(body, indent=2, allow_nan=False) + "\n"


def _leave_out_what_is_usual(profile: Profile, held: dict[str, Any]) -> None:
    """Takes out the keys that only some profiles have."""
    if not profile.allocator.given:
        del held["allocator"]["given"]
    for name in ("found_on", "warnings", "memory", "suggested_limit_kb"):
        if not held[name]:
            del held[name]
    if profile.term_days == TERM_DAYS:
        del held["term_days"]
    if profile.claim.memory is None:  # only the members of a front have that key
        del held["result"]["memory"]
    elif profile.claim.memory.of == "rss":
        del held["result"]["memory"]["of"]
    for name in ("rest", "quota"):
        if held["objective"][name] is None:
            del held["objective"][name]


def parse(content: bytes) -> Profile:
    """The profile in `content`.

    Raises:
        UsageError: in one sentence, what is wrong where.
    """
    if len(content) > MOST_BYTES:
        raise UsageError(f"it is above {MOST_BYTES} bytes")
    top = Fields(strictjson.parse(content))
    top.word("schema", (SCHEMA,))
    identity = _allocator(top.child("allocator"))
    profile = Profile(
        allocator=identity,
        params=top.child("params").values(),
        workload=_workload(top.child("workload")),
        threads=top.whole("threads", 0, _MOST_THREADS),
        machine=_machine(top.child("machine")),
        objective=_objective(top.child("objective")),
        claim=_claim(top.child("result")),
        search=_search(top.child("search")),
        versions=top.child("versions").texts(),
        created=top.text("created", CREATED),
        shares=tuple(_share(fields) for fields in top.children("shares")),
        cautions=tuple(
            caution.read(fields)
            for fields in (top.children("warnings") if top.has("warnings") else ())
        ),
        found_on=_workload(top.child("found_on")) if top.has("found_on") else None,
        term_days=top.whole("term_days", 1, MOST_TERM_DAYS) if top.has("term_days") else TERM_DAYS,
        memory=tuple(map(_memory, top.children("memory"))) if top.has("memory") else (),
        suggested_limit_kb=top.whole("suggested_limit_kb", 1, MOST_MEMORY_KB)
        if top.has("suggested_limit_kb")
        else 0,
    )
    stored = dict(top.child("env").texts(ALPHABET))
    top.close()
    _judge(profile, stored)
    return profile


def _judge(profile: Profile, stored: dict[str, str]) -> None:
    """The relations between fields: parameters, environment and verdict must tell one story."""
    made = profile.environment
    if stored != made:
        name = min(set(stored.items()) ^ set(made.items()))[0]
        raise UsageError(
            f"env.{name} is not what the parameters give; env is made from params alone"
        )
    _judge_claim(profile.claim)
    for seen in profile.memory:
        _judge_memory(seen)
    if any(not set(one.params) <= set(profile.params) for one in profile.cautions):
        raise UsageError("a warning is of a parameter that is not in params")
    if profile.shares and (
        len(profile.shares) == 1 or profile.shares[0].workload != profile.workload
    ):
        raise UsageError("shares are of several workloads, of which `workload` is the first")
    if profile.claim.verdict == "no_gain" and not _is_default(profile):
        raise UsageError("result.verdict is no_gain, which carries the default parameters only")


def _judge_claim(claim: Claim) -> None:
    """The relations inside it: an interval holds its ratio, a promise has its interval."""
    measured = (claim.ci_low, claim.ratio, claim.ci_high)
    if None in measured and (measured != (None,) * 3 or claim.verdict in _MEASURED_CLAIMS):
        raise UsageError("result lacks its ratio or an end of its interval")
    if None not in measured and list(measured) != sorted(cast("tuple[float, ...]", measured)):
        raise UsageError("result.ratio lies outside result.ci_low and result.ci_high")
    if claim.verdict == "improved" and not (claim.ci_low or 0) > 1:
        raise UsageError("result.verdict is improved, but the interval does not exclude 1")
    memory = claim.memory
    if memory is not None:
        _judge_memory(memory)
    if claim.verdict == "less_memory" and (memory is None or memory.ci_high >= 1):
        raise UsageError("result.verdict is less_memory, but no interval of memory is below 1")


def _judge_memory(memory: MemoryClaim) -> None:
    if not memory.ci_low <= memory.ratio <= memory.ci_high:
        raise UsageError("memory.ratio lies outside its ci_low and ci_high")


def _is_default(profile: Profile) -> bool:
    knobs = profile.adapter.knobs(profile.allocator.as_installed())
    defaults = {knob.name: knob.default for knob in knobs}
    return all(defaults.get(name, value) == value for name, value in profile.params)


def _allocator(fields: Fields) -> AllocatorId:
    name = fields.text("name", allocator.pattern())
    identity = AllocatorId(
        name=name,
        version=fields.text("version", VERSION),
        soname=fields.text("soname", _soname_of(name)),
        sha256=fields.text("sha256", SHA256_OR_NONE),
        given=fields.child("given").values() if fields.has("given") else (),
    )
    fields.close()
    allocator.get(name).check(dict(identity.given), identity.as_installed())
    return identity


def _soname_of(name: str) -> re.Pattern[str]:
    """Only a library of that very allocator, without a path: this text ends up in LD_PRELOAD."""
    stems = "|".join(re.escape(stem) for stem in allocator.get(name).library_stems())
    return re.compile(rf"({stems})\.so(\.[0-9]{{1,4}}){{0,3}}" if stems else "")


def _workload(fields: Fields) -> WorkloadId:
    workload = WorkloadId(
        kind=cast("Literal['bench', 'program']", fields.word("kind", ("bench", "program"))),
        name=fields.text("name"),
        setting=fields.text("setting", SETTING),
        params=fields.child("params").values(),
        words_sha256=fields.text("words_sha256", SHA256_OR_NONE),
    )
    fields.close()
    return workload


def _share(fields: Fields) -> Share:
    share = Share(
        workload=_workload(fields.child("workload")),
        ratio=fields.number_or_none("ratio", 0, 1e9),
        ci_low=fields.number_or_none("ci_low", 0, 1e9),
        ci_high=fields.number_or_none("ci_high", 0, 1e9),
    )
    fields.close()
    return share


def _machine(fields: Fields) -> MachineId:
    machine = MachineId(
        cpu=fields.text("cpu", TEXT),
        cores=fields.whole("cores", 1, _MOST_THREADS),
        quota=fields.number_or_none("quota", 0, _MOST_THREADS),
        kernel=fields.text("kernel", TEXT),
        libc=fields.text("libc", TEXT),
        page_size=fields.whole("page_size", 1, 2**30),
        thp=fields.text("thp", TEXT),
    )
    fields.close()
    return machine


def _objective(fields: Fields) -> Objective:
    metric = fields.text("metric", _METRIC)
    limits = fields.child("limits").texts(LIMIT)
    control = fields.text("control", re.compile(f"|{allocator.pattern().pattern}"))
    rest = _rest(fields.child("rest")) if fields.has("rest") else None
    quota = _quota(fields.child("quota")) if fields.has("quota") else None
    fields.close()
    return Objective(metric, limits, control, rest, quota)


def _quota(fields: Fields) -> Quota:
    cpus = fields.number_or_none("cpus", LEAST_CPUS, MOST_CPUS)
    memory_kb = fields.number_or_none("memory_kb", LEAST_MEMORY_KB, MOST_MEMORY_KB)
    fields.close()
    return Quota(cpus, None if memory_kb is None else int(memory_kb))


def _rest(fields: Fields) -> RestPlan:
    rest = RestPlan(fields.number("idle_s", 0, MOST_IDLE_S), fields.whole("rounds", 1, MOST_RESTS))
    fields.close()
    return rest


def _claim(fields: Fields) -> Claim:
    claim = Claim(
        metric=fields.text("metric", _METRIC),
        ratio=fields.number_or_none("ratio", 0, 1e9),
        ci_low=fields.number_or_none("ci_low", 0, 1e9),
        ci_high=fields.number_or_none("ci_high", 0, 1e9),
        pairs=fields.whole("pairs", 0, 10**9),
        verdict=cast("Verdict", fields.word("verdict", VERDICTS)),
        memory=_memory(fields.child("memory")) if fields.has("memory") else None,
    )
    fields.close()
    return claim


def _memory(fields: Fields) -> MemoryClaim:
    ratio, low, high = [fields.number(key, 0, 1e9) for key in ("ratio", "ci_low", "ci_high")]
    of = fields.word("of", tuple(MEMORIES)) if fields.has("of") else "rss"
    fields.close()
    return MemoryClaim(ratio, low, high, cast("MemoryKind", of))


def _search(fields: Fields) -> SearchInfo:
    search = SearchInfo(
        sampler=fields.text("sampler"),
        seed=fields.whole("seed", 0, MOST_SEED),
        budget_s=fields.number("budget_s", 0, 1e9),
        trials=fields.whole("trials", 0, 10**9),
        space_sha256=fields.text("space_sha256", _SHA256),
    )
    fields.close()
    return search
