"""What is worth measuring of a program: a look at it, and three measurements.

`look` runs the program twice for a few seconds, as it is and recorded: what was seen is a `Sight`.
`ideas` names each measurement that could be made: when it is worth making, why, and its command.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hztune import allocator
from hztune.arguments import within
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import OPEN, Program
from hztune.progress import Reporter
from hztune.recordings import at_most
from hztune.suggest.ideas import Suggestion, best_of, ideas
from hztune.suggest.look import Sight, looked_at
from hztune.templates import rendered

_LEAST_LOOK_S, _MOST_LOOK_S = 0.2, 60.0


@dataclass(frozen=True, slots=True)
class Suggested:
    """What is worth measuring of a program: at most three measurements, the best one first."""

    program: str
    sight: Sight
    measurements: tuple[Suggestion, ...]


def suggest(
    program: Program,
    *,
    seconds: float = 5.0,
    reporter: Reporter | None = None,
) -> Suggested:
    """Looks at a program, and names at most three measurements that are worth making.

    It is run twice, once with its calls recorded. Nothing is compared, and nothing is claimed.

    Args:
        program: A program or a server, from `program`.
        seconds: For each of the two runs; then the program is ended.
        reporter: Is told what begins; None: nothing is shown.

    Raises:
        UsageError: Something is not legal; nothing was run.
        HztuneError: The program fails by itself.
    """
    within("--for", seconds, _LEAST_LOOK_S, _MOST_LOOK_S)
    if program.argv[0] == OPEN:
        raise UsageError(f"{OPEN} stands for the contenders of `hztune compare`; give a program")
    sight = looked_at(program, seconds, reporter or Reporter())
    others = [
        each.name for each in allocator.available() if each.preload and each.name != sight.allocator
    ]
    machine = Machine.here()
    asked = program.quota.memory_kb if program.quota else None
    limits = [kb for kb in (asked, machine.memory_limit_kb) if kb]
    least = min([*limits, machine.memory_gib << 20])
    found = best_of(ideas(program, sight, others, least, is_limited=least in limits))
    return Suggested(program.label, sight, found)


def suggestion_json(found: Suggested) -> dict[str, Any]:
    """What `suggest` found, as `hztune suggest --json` prints it."""
    return {"schema": 1, **asdict(found)}


def suggestion_text(found: Suggested) -> list[str]:
    """What `suggest` found, for people, a line each."""
    return rendered(Path(__file__).with_name("suggestion.txt"), found=found, at_most=at_most)
