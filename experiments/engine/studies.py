"""Do verdicts hold? Thousands of whole studies on recorded noise, with the truth known.

    python experiments/engine/studies.py experiments/engine/noise-*.json > results.json

Each study is told twice on the same noise, in virtual time: once where every configuration is as
fast as the default, and once where one parameter, drawn by the study's number, gains, and two
others do harm. It gains what this very study says of a finalist that it can prove, or `--gain`
times that (its calibration sees the default only, so both tellings share it). Counted are claims of
a gain that is none, whether the interval covers the truth, how much wider it is than one of a fixed
size, how often the gain is found, and parameters in profiles that add nothing.

No clock and no process takes part: the same command gives the same counts. Parts of the studies may
be told in several goes (--first, --count) and added up (--add). `--odd` tells them on made-up noise
instead of a recording, `--truth` of something else than one winner, see `odd.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import odd

from hztune.blocks import Arm, Block, Outcome, Turn
from hztune.params import Value
from hztune.progress import Reporter
from hztune.result import Decision
from hztune.space import Dimension, Space
from hztune.stats.intervals import fixed_interval
from hztune.study.bench import Budget, Workbench
from hztune.study.ledger import Ledger
from hztune.tuning.candidates import TuneTarget, candidates
from hztune.tuning.story import Story, Winner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.replay import NoiseSource, RecordedNoise, ReplayExecutor, Truth, VirtualClock

HARMS = (-0.1, -0.3)
"""What one level of each of two other parameters costs, log units."""

THREADS = 8
TURN_NS = 18_000_000
MOST_WIDTH = 1.5
WINNER = "winner"


COUNTED = {
    "studies": "each told twice",
    "false_claims": "a gain was claimed where all are equal",
    "misplaced": "of a configuration that has none, where others have one",
    "finalists": "finalists of equals that went into a proof",
    "found": "the gain was claimed where there is one",
    "useless": "parameters of profiles with a gain that add nothing",
    "carried": "parameters of profiles with a gain",
    "intervals": "intervals from fresh pairs, those of finalists that were refused among them",
    "covered": "those that hold the true ratio",
    "flattering": "those whose middle is above it",
    "emitted": "intervals that a profile would carry with a gain",
    "emitted_covered": "those that hold the true ratio",
    "wide": "intervals more than MOST_WIDTH times as wide as Student's from as many pairs",
    "widest": "the greatest such factor",
    "widths": "sum of these factors",
    "detectable": "sum of the stated least gains, log units",
}
Counts = Mapping[str, float]
"""What some studies on one recording came to, by the keys of COUNTED."""


def summed(parts: Iterable[Counts]) -> dict[str, float]:
    """What all parts came to."""
    every = [*parts]
    return {
        key: (max if key == "widest" else sum)([0, *(part.get(key, 0) for part in every)])
        for key in COUNTED
    }


# ---- one study -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Landscape:
    """What parameters add: one of them gains, two do harm, all others nothing.

    Attributes:
        effects: (parameter, value) -> log ratio that it adds.
    """

    effects: Mapping[tuple[str, Value], float]

    def __call__(self, arm: Arm) -> Truth:
        """How fast an arm is."""
        return Truth(sum(self.effects.get(one, 0.0) for one in arm.params))

    @property
    def has_gain(self) -> bool:
        """Whether anything is faster than the default."""
        return any(effect > 0.0 for effect in self.effects.values())


Known = Landscape | odd.Interplay
EQUAL = Landscape({})


def one_winner(seed: int, gain: float) -> Landscape:
    """A landscape in which one parameter gains from one of its values on.

    Args:
        seed: Decides which.
        gain: Log ratio.
    """
    rng = Random(f"winner {seed}")
    winner, *others = rng.sample(always_there(), 3)
    effects: dict[tuple[str, Value], float] = {}
    for value in _side(winner, rng):
        effects[winner.name, value] = gain
    for harm, dimension in zip(HARMS, others, strict=True):
        effects[dimension.name, _side(dimension, rng)[-1]] = harm
    return Landscape(effects)


def always_there() -> list[Dimension]:
    """The parameters that have several values in every configuration."""
    return [d for d in hz_space().dimensions if d.when is None and len(d.values) > 1]


def odd_truth(
    name: str, seed: int, gain: float, clock: VirtualClock, budget_s: float
) -> odd.Interplay:
    """The truth of that name, of two parameters that the study's number decides."""
    rng = Random(f"{name} {seed}")
    one, other = ([(d.name, v) for v in _side(d, rng)] for d in rng.sample(always_there(), 2))
    return odd.TRUTHS[name](one, other, gain, clock, 0.5 * budget_s)


def _side(dimension: Dimension, rng: Random) -> list[Value]:
    """The values on one side of the default, the nearest first; of words a single one."""
    default = dimension.values.index(dimension.param.default)
    if not dimension.is_ordered:
        return [rng.choice([v for v in dimension.values if v != dimension.param.default])]
    sides = [[*dimension.values[default + 1 :]], [*reversed(dimension.values[:default])]]
    return rng.choice([side for side in sides if side])


@cache
def hz_space() -> Space:
    """Where hztune looks for a better hz."""
    return candidates(["hz"], "", TuneTarget(THREADS)).space


def told(
    noise: NoiseSource,
    landscape: Known,
    seed: int,
    budget_s: float,
    *,
    off_by: str = "quiet",
    clock: VirtualClock | None = None,
    space: Space | None = None,
) -> tuple[Story, Decision]:
    """Tells a study from its beginning to its verdict.

    Args:
        noise: What measurements differ by.
        landscape: The truth.
        seed: The study's number.
        budget_s: Its budget, seconds.
        off_by: What processes are off by beside the noise, see `odd.ODD`.
        clock: None: one of its own.
        space: Where it looks; None: where hztune does.
    """
    clock, space = clock or VirtualClock(), space or hz_space()
    seen = odd.shown(landscape, off_by, seed, clock, budget_s)
    executor = ReplayExecutor(seen, noise, seed=seed, clock=clock)
    bench = Workbench(executor, Ledger(), Budget(clock, budget_s), Reporter())
    whole = Winner(bench, space, seed)
    return whole, whole.run()


def judged(whole: Story, decision: Decision, landscape: Known) -> Counts:
    """What one telling came to."""
    truth, held = landscape(decision.arm).log_ratio, decision.interval
    claimed = decision.verdict == "improved"
    known = [(proof.interval, proof.arm) for proof in decision.proofs if proof.interval]
    truths = [landscape(arm).log_ratio for _, arm in known]
    records = whole.bench.ledger.fresh_by_arm
    widths = [
        interval.half_width / fixed_interval(records[arm.key].log_ratios).half_width
        for interval, arm in known
        if math.isfinite(interval.half_width)
    ]
    return {
        "false_claims": claimed and not landscape.has_gain,
        "misplaced": claimed and landscape.has_gain and truth <= 0.0,
        "finalists": 0 if landscape.has_gain else len(whole.proofs),
        "found": claimed and truth > 0.0,
        "useless": _useless(decision.arm, landscape) if claimed else 0,
        "carried": len(decision.arm.params) if claimed else 0,
        "intervals": len(known),
        "covered": sum(i.low <= t <= i.high for (i, _), t in zip(known, truths, strict=True)),
        "flattering": sum(i.estimate > t for (i, _), t in zip(known, truths, strict=True)),
        "emitted": claimed,
        "emitted_covered": claimed and held is not None and held.low <= truth <= held.high,
        "wide": sum(width > MOST_WIDTH for width in widths),
        "widest": max(widths, default=0.0),
        "widths": sum(widths),
    }


def _useless(arm: Arm, landscape: Known) -> int:
    """Parameters of a configuration that may go, one after the other, without making it slower."""
    left = arm
    for name in arm.config:
        shorter = Arm.of(arm.allocator, {n: v for n, v in left.params if n != name})
        if landscape(shorter).log_ratio >= landscape(left).log_ratio - 1e-9:
            left = shorter
    return len(arm.params) - len(left.params)


def told_twice(
    name: str,
    noise: NoiseSource,
    seed: int,
    budget_s: float,
    gain: float = 1.0,
    truth: str = WINNER,
) -> Counts:
    """One study where nothing helps, and the same one where something does.

    Args:
        name: Of the recording, or of the odd noise.
        noise: What measurements differ by.
        seed: The study's number.
        budget_s: Its budget, seconds.
        gain: What the faster configurations gain, in least gains that a proof can show; at 0 the
            second telling is left out.
        truth: What the second telling is of: WINNER, or one of `odd.TRUTHS`.
    """
    off_by = name if name in odd.ODD else "quiet"
    whole, decision = told(noise, EQUAL, seed, budget_s, off_by=off_by)
    assert whole.calibration is not None  # a study is never stopped here
    least = whole.calibration.detectable
    counts = [{"studies": 1, "detectable": least}, judged(whole, decision, EQUAL)]
    if gain == 0.0:
        return summed(counts)
    clock = VirtualClock()
    better: Known = one_winner(seed, gain * least)
    if truth != WINNER:
        better = odd_truth(truth, seed, gain * least, clock, budget_s)
    again = told(noise, better, seed, budget_s, off_by=off_by, clock=clock)
    return summed([*counts, judged(*again, better)])


# ---- many studies --------------------------------------------------------------------------------


@cache
def recorded(path: Path) -> RecordedNoise:
    """The noise of a recording: A/A blocks of rounds x arms log rates.

    Raises:
        SystemExit: There is none in the file.
    """
    noise = json.loads(path.read_text())["noise"]
    if not noise:
        raise SystemExit(f"{path} holds no recorded noise")
    return RecordedNoise(as_block(pair, rounds) for pair, rounds in enumerate(noise))


def as_block(number: int, rounds: Sequence[Sequence[float]]) -> Block:
    """Recorded log rates as the A/A block that they were."""
    outcomes = tuple(
        Outcome(
            Arm("hz"),
            "ok",
            "",
            1e6,
            tuple(
                Turn(number, arm, 0, TURN_NS, math.exp(logs[arm]) * 1e6 * TURN_NS * 1e-9)
                for number, logs in enumerate(rounds)
            ),
        )
        for arm in range(len(rounds[0]))
    )
    return Block(number, "aa", outcomes)


def study_number(
    number: int, sources: Sequence[Path | str], budget_s: float, gain: float, truth: str
) -> tuple[str, Counts]:
    """One study, with the name of its noise; recordings and odd noises take turns."""
    source = sources[number % len(sources)]
    name = source if isinstance(source, str) else source.stem
    noise = odd.QUIET if isinstance(source, str) else recorded(source)
    return name, told_twice(name, noise, number, budget_s, gain, truth)


def added(parts: Iterable[tuple[str, Counts]]) -> dict[str, Counts]:
    """Parts by recording or name of noise, in order of name."""
    found: dict[str, list[Counts]] = {}
    for name, part in parts:
        found.setdefault(name, []).append(part)
    return {name: summed(found[name]) for name in sorted(found)}


# ---- what is said --------------------------------------------------------------------------------


def wilson(hits: float, of: float) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, J. Am. Stat. Assoc. 22, 1927)."""
    if of == 0:
        return 0.0, 1.0
    z, share = 1.959964, hits / of
    centre = share + z * z / (2 * of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    scale = 1 + z * z / of
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def share(hits: float, of: float) -> str:
    """A share with its interval, for the table."""
    if of == 0:
        return "none"
    low, high = wilson(hits, of)
    return f"{hits / of:.2%} [{low:.2%}, {high:.2%}]"


HEADS = (
    "noise", "studies", "least gain", "false claims", "covered", "covered where claimed",
    "width", "widest", "found", "useless parameters",
)  # fmt: skip


def row(name: str, counts: Counts) -> list[str]:
    """A line of the table."""
    studies, intervals = (max(1, counts[key]) for key in ("studies", "intervals"))
    return [
        name,
        f"{counts['studies']:g}",
        f"{math.expm1(counts['detectable'] / studies):.1%}",
        share(counts["false_claims"], counts["studies"]),
        share(counts["covered"], counts["intervals"]),
        share(counts["emitted_covered"], counts["emitted"]),
        f"{counts['widths'] / intervals:.2f}x",
        f"{counts['widest']:.2f}x",
        share(counts["found"], counts["studies"]),
        share(counts["useless"], counts["carried"]),
    ]


def table(found: Mapping[str, Counts]) -> str:
    """Every recording, and all together."""
    rows = [row(*each) for each in {**found, "all": summed(found.values())}.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in (HEADS, ["---"] * len(HEADS), *rows))


def main() -> None:
    """Tells the studies that were asked for; a table for people, JSON for programs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="recordings, or parts to add up")
    parser.add_argument("--odd", choices=[*odd.ODD], help="made-up noise, without recordings")
    parser.add_argument(
        "--truth", choices=[WINNER, *odd.TRUTHS], default=WINNER, help="of the second telling"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first study")
    parser.add_argument("--count", type=int, default=2000, help="studies, each told twice")
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of a study")
    parser.add_argument(
        "--gain", type=float, default=1.0, help="in least gains of a proof; 0: equals only"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--add", action="store_true", help="the files are earlier results")
    options = parser.parse_args()
    if options.add:
        parts: list[dict[str, Any]] = [json.loads(path.read_text()) for path in options.files]
        found = added((each.pop("noise"), each) for part in parts for each in part["counts"])
        budget_s = parts[0]["budget_s"]
    else:
        numbers = range(options.first, options.first + options.count)
        sources = [options.odd] if options.odd else options.files
        if not sources:
            parser.error("name recordings, or --odd NAME")
        asked = {"budget_s": options.budget, "gain": options.gain, "truth": options.truth}
        one = partial(study_number, sources=sources, **asked)
        with ProcessPoolExecutor(options.jobs) as pool:
            found = added(pool.map(one, numbers, chunksize=4))
        budget_s = options.budget
    print(table(found), file=sys.stderr)
    counts = [{"noise": name, **each} for name, each in found.items()]
    json.dump({"schema": 1, "budget_s": budget_s, "counts": counts}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
