"""Measure experiments again, one after the other; each row is kept as soon as it is measured.

python experiments/run.py shards                     # Ctrl-C, then --resume, goes on
python experiments/run.py shards frozen --budget 3m  # sharing the time
python experiments/run.py all                        # every one
python experiments/run.py peers --with NAME=/path/to/lib.so        # a further contender

How a row that is a program is started stands in the run.py beside its experiment.
"""

from __future__ import annotations

import argparse
import sys

from lab import definition
from lab.run import further, require, run

from hztune import api
from hztune.arguments import parse_duration
from hztune.errors import HztuneError, StoppedByUser, UsageError
from hztune.progress import Plain


def main() -> None:
    """Measures what is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="below experiments/, or a folder")
    parser.add_argument("--with", dest="libraries", action="append", default=[], metavar="NAME=LIB")
    parser.add_argument("--budget", help="for all together; default: as the experiments say")
    parser.add_argument("--resume", action="store_true", help="only the rows that are missing")
    asked = parser.parse_args()
    extra = further(asked.libraries)
    found = [definition.load(folder) for folder in definition.find(asked.names)]
    reporter = Plain(sys.stderr)
    for experiment in [each for each in found if each.programs]:
        told = f"{experiment.name} has programs as rows; {experiment.folder / 'run.py'} measures it"
        if asked.names != ["all"]:
            raise UsageError(told)
        reporter.say(f"left out: {told}")
        found.remove(experiment)
    for experiment in found:
        require(experiment)
    whole_s = sum(each.file.budget_s for each in found)
    share = parse_duration(asked.budget, "--budget") / whole_s if asked.budget else 1.0
    for experiment in found:
        reporter.say(f"{experiment.name}: {experiment.file.question}")
        budget_s = experiment.file.budget_s * share
        ran = run(experiment, reporter, extra=extra, budget_s=budget_s, resume=asked.resume)
        if ran.record.rows:
            print(api.comparison_text(ran.record.standings, ran.record.answers))
        if ran.stopped:
            raise StoppedByUser(
                f"interrupted; {len(ran.record.rows)} of {ran.rows} rows are in {ran.path}: "
                "go on with --resume"
            )
        reporter.say(f"results: {ran.path}")


if __name__ == "__main__":
    try:
        main()
    except HztuneError as error:
        print(f"run.py: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
