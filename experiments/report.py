"""Print question, finding, figures and date of experiments; of all where none is named.

    python experiments/report.py
    python experiments/report.py shards --rows        # every arm on every row
    python experiments/report.py --markdown --rows    # for a document
    python experiments/report.py peers --plot experiments/peers/peers.svg

Every estimate is made anew from the samples in results.json; one that differs is an error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab import chart, definition, findings

from hztune import files
from hztune.errors import HztuneError, UsageError


def main() -> None:
    """Prints what is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="below experiments/, or a folder")
    parser.add_argument("--rows", action="store_true", help="every row, too")
    parser.add_argument("--markdown", action="store_true", help="tables for a document")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the one that is named")
    asked = parser.parse_args()
    if asked.plot is not None and len(asked.names) != 1:
        raise UsageError("--plot draws one experiment; name it")
    folders = definition.find(asked.names or ["all"])
    found = [findings.examine(definition.load(folder)) for folder in folders]
    if asked.markdown:
        print(findings.markdown_of(found, rows=asked.rows))
    else:
        print("\n\n".join("\n".join(each.lines(rows=asked.rows)) for each in found))
    wrong = [each.name for each in found if each.problems]
    if wrong:
        raise HztuneError(
            f"{len(wrong)} of {len(found)} experiments are not what they claim: {', '.join(wrong)}"
        )
    if asked.plot is not None:
        if not found[0].standings:
            raise UsageError(f"{found[0].name} is not measured yet, so there is nothing to draw")
        files.write_whole(asked.plot, chart.draw(found[0].standings))


if __name__ == "__main__":
    try:
        main()
    except HztuneError as error:
        print(f"report.py: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
