"""Each finding of the audit of commit 9719644 has a test that fails without its mend, or a reason.

A: security; S: suspected; B: hz; C: own programs and packaging; D: servers.

A1   tuner/test_others.py         a library of an inspected process is not loaded
A1   tuner/test_others.py         the loader of an inspected process is not executed
A2   tuner/test_drift.py          a command that others may have put there is not run
A3   bench/test_bench_trace.py    a trace that changes under its replay changes nothing
A4   core/test_control.py         a user whose rights a daemon has for a moment cannot ask it
A5   core/test_control.py         another user neither finds the key nor is in the way
A6   tuner/test_processes.py      a name that may be anothers by now is not asked
A7   tuner/test_profile.py        saving over a symbolic link does not touch what it points to
A8   tuner/test_others.py         a line that is printed steers no terminal
A9   tuner/test_others.py         what took the name of a mapped file is not opened
A10  core/test_control.py         a set user id program starts no agent
A11  tuner/test_measure_servers.py  what others put where temporary directories are stops nothing
A12  tuner/test_process.py        what a host program has of its own is left to it
A13  trace/test_trace.py          want a block's number below
A14  core/test_builds.py          a process that loads any of the libraries may keep its shadow
S    core/test_control.py         a request without the key is refused
S    core/rest_inside.c           a free that was held up wakes it
S    trace/test_record.py         no pool of another user is filled
S    trace/test_trace.py          chosen addresses take no longer than others
S    -  a slot of a magazine is read after its top, which is written after it (hz_plain_put)
B1   core/test_builds.py          every function that hz calls may allocate
B2   core/purging.c               where the system refuses, it is asked ever more seldom
B3   core/realloc_large.c         after mlockall what a block has left stays locked
B4   core/fork_inside.c           locks that another thread held are free
B5   core/test_control.py         what a thread that a request started says is on the programs
B6   core/test_control.py         the thread has a table of its own before it opens anything
B7   core/rest_inside.c           after what it returned it looks four times in vain
B8   core/realloc_large.c         after mlockall what a block has left stays locked
C1   tuner/test_commands.py       a file that stdin is redirected from is read
C2   tuner/test_install.py        the installed command needs nothing else
C3   tuner/test_machine.py        no budget pays for the time in which another process has
C3   tuner/test_machine.py        a long wait for the machine is told while it lasts
C4   tuner/test_gate.py           what was measured before a block was ended is told
C5   tuner/test_compare.py        what is shown beside a ratio is what the ratio says
C6   tuner/test_report.py         a study is repeated by its own command or by none
C7   tuner/test_search.py         what an allocator refused once is asked of it no more
C8   tuner/test_install.py        py.typed
C9   tuner/test_params.py         tests of another table than the installed one stop
C10  tuner/test_report.py         one noise is told
C10  tuner/test_summary.py        waiting and failures
C11  tuner/test_space.py         what keeps memory is only tried when asked for
C12  tuner/test_allocator.py      a path with a colon is no library
C12  tuner/test_export.py         what sets nothing is json alone
C12  tuner/test_commands.py       bash completes
C12  tuner/test_suggest.py        memory that it maps for itself
C12  -  compare has no lines of held and live memory any more; a word with | in it is data
C13  tuner/test_install.py        one wheel serves every python and glibc
C13  tuner/test_documents.py      every link leads somewhere
D1   tuner/test_tune.py           what returns memory is tried first where the default breaks
D2   tuner/test_processes.py      the agent knows what gives malloc to a program at a fixed
D3   tuner/test_export.py         a file says what it gains and undoes
D4   tuner/test_tune.py           the unchanged program in another word is not searched
D4   tuner/test_tune.py           what the unchanged program is already is not searched
D5   tuner/test_suggest.py        of a server only what its load does is counted
D6   -  the command with that budget is gone; a study searches every allocator unless told
D7   tuner/test_tune.py           a budget is searched with or refused at the start
D8   tuner/test_processes.py      the doctor explains all of the memory and says what was asked
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FOUND = re.findall(r"^([ABCDS]\d*) +(?:- |(\S+\.(?:py|c))) +(.+)$", __doc__ or "", re.M)


def test_every_finding_stands_in_the_table():
    wanted = {f"{of}{n + 1}" for of, most in zip("ABCD", (14, 8, 13, 8), strict=True)
              for n in range(most)}  # fmt: skip
    assert {row for row, _, _ in FOUND} == {*wanted, "S"}


@pytest.mark.parametrize(("file", "words"), [each[1:] for each in FOUND if each[1]])
def test_a_finding_has_its_test(file, words):
    text = (TESTS / file).read_text()
    assert words in text or f"def test_{words.replace(' ', '_')}" in text
