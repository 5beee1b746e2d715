"""What is worth measuring of a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hztune.progress import Quiet

if TYPE_CHECKING:
    from hztune.measure.program import Program
    from hztune.progress import Reporter
    from hztune.suggest.suggested import Suggested


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
    from hztune.suggest import suggested

    return suggested.suggest(program, seconds, Path(profiles), reporter or Quiet())


def suggestion_text(found: Suggested) -> list[str]:
    """What `suggest` found, for people, a line each."""
    from hztune.suggest import suggested_text

    return suggested_text.suggested_lines(found)


def suggestion_json(found: Suggested) -> dict[str, Any]:
    """What `suggest` found, as `hztune suggest --json` prints it."""
    from hztune.suggest import suggested_text

    return suggested_text.suggested_json(found)
