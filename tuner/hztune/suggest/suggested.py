"""From a program to what is suggested: a look, the ideas, and what is known already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hztune import allocator
from hztune.allocator import Installed
from hztune.arguments import within
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.program import OPEN, Program
from hztune.progress import Quiet, Reporter
from hztune.suggest.earlier import Earlier, earlier
from hztune.suggest.ideas import Case, Suggestion, suggestions
from hztune.suggest.look import looked_at
from hztune.suggest.sight import Sight

LEAST_LOOK_S, MOST_LOOK_S = 0.2, 60.0


@dataclass(frozen=True, slots=True)
class Suggested:
    """What is worth measuring of a program.

    Attributes:
        program: What it is called.
        sight: What was seen of it.
        measurements: At most three, the one most worth making first.
        earlier: What was found before on this machine.
    """

    program: str
    sight: Sight
    measurements: tuple[Suggestion, ...]
    earlier: tuple[Earlier, ...]


def suggest(
    program: Program,
    *,
    seconds: float = 5.0,
    profiles: str | Path = "hztune-results",
    reporter: Reporter | None = None,
) -> Suggested:
    """Looks at a program, and names at most three measurements that are worth making.

    It is run twice, once with its calls recorded. Nothing is compared, and nothing is claimed.

    Args:
        program: A program or a server, from `program`.
        seconds: For each of the two runs; then the program is ended.
        profiles: A folder with earlier profiles; one that is missing holds none.
        reporter: Is told what begins; None: nothing is shown.

    Raises:
        UsageError: Something is not legal; nothing was run.
        HztuneError: The program fails by itself.
    """
    within("--for", seconds, LEAST_LOOK_S, MOST_LOOK_S)
    if program.argv[0] == OPEN:
        raise UsageError(f"{OPEN} stands for the contenders of `hztune compare`; give a program")
    known = earlier(program, Path(profiles))
    sight = looked_at(program, seconds, reporter or Quiet())
    case = Case(program, sight, _installed(sight), *_limit(program))
    return Suggested(program.label, sight, suggestions(case), known)


def _installed(sight: Sight) -> tuple[str, ...]:
    """The allocators here that can be preloaded, but for what the program runs on unchanged."""
    found = [each for each in allocator.states().values() if isinstance(each, Installed)]
    return tuple(each.name for each in found if each.preload and each.name != sight.allocator)


def _limit(program: Program) -> tuple[int, bool]:
    """Memory that the program may use here, KiB, and whether it is a container's."""
    machine = Machine.here()
    asked = program.quota.memory_kb if program.quota else None
    limits = [kb for kb in (asked, machine.memory_limit_kb) if kb]
    total = machine.memory_gib << 20
    least = min([*limits, total] if total else limits, default=0)
    return least, least in limits
