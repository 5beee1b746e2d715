"""Live and held memory: asked in a run of its own when all is measured; what is not known is said.

The programs are real processes; what is printed and stored of their answers needs none.
"""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from lab.replay import ReplayExecutor, Truth

from hztune import api
from hztune.attach.outside import Process
from hztune.attach.questions import Statistics, statistics_of
from hztune.blocks import Arm
from hztune.compare import comparison, conduct, exchange, table
from hztune.compare import contenders as sides
from hztune.compare.comparison import Comparison
from hztune.compare.contenders import Contender
from hztune.compare.match import Effort, Measured
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.identity import AllocatorIdentity
from hztune.measure.live_share import LiveReading, LiveShare, _Asker, live_shares
from hztune.measure.program import Program, described
from hztune.profile import Profile
from hztune.progress import Quiet
from hztune.report.page import Page
from hztune.result import LiveMemory, Result, ending, read
from hztune.result.figures import Figures
from hztune.result.summary import summary_json
from hztune.study.bench import Workbench
from hztune.study.ledger import Ledger
from hztune.tune.afterwards import ask_arms

from .conftest import Compiler, row
from .test_summary import ACCOUNT

MIB_KB = 1024
NONE, HZ = Arm("none"), Arm("hz")

# Takes 20 MB, frees 99 blocks of 100, and goes on: each time until a file says that it was asked.
# With `fork` it does so in a child, and waits only until it was asked itself.
BURST = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { BLOCKS = 4000, BYTES = 5000, PATIENCE = 6000 };
static char *blocks[BLOCKS];
static void await(const char *folder, const char *what)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%d.%s", folder, (int)getpid(), what);
    for (int i = 0; i < PATIENCE && access(path, F_OK) != 0; i++) usleep(5000);
}
int main(int argc, char **argv)
{
    const pid_t child = argc > 2 ? fork() : 0;
    if (child > 0) {
        await(argv[1], "asked");
        return kill(child, SIGKILL);
    }
    for (int i = 0; i < BLOCKS; i++) blocks[i] = memset(malloc(BYTES), 1, BYTES);
    if (argc > 1) await(argv[1], "full");
    for (int i = 0; i < BLOCKS; i++)
        if (i % 100 != 0) free(blocks[i]);
    if (argc > 1) await(argv[1], "free");
    return 0;
}
"""
SERVER = f"""{sys.executable} -I -S -c "
import socket
server = socket.create_server(('127.0.0.1', {{port}}))
kept = []
while True:
    client = server.accept()[0]
    kept.append(bytes(3 << 20))
    client.close()
" """


@pytest.fixture
def burst(compiled: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The command of the program; it is told by files when it has answered, and in which state."""

    def answered(process: Process) -> Statistics:
        found = statistics_of(process)
        live_kb = (found.main.live_bytes or 0) // 1024 if found.main else 0
        states = ["asked", *(["full"] if live_kb > 18 * MIB_KB else [])]
        if live_kb < 2 * MIB_KB and (tmp_path / f"{process.pid}.full").exists():
            states.append("free")
        for state in states:
            (tmp_path / f"{process.pid}.{state}").touch()
        return found

    monkeypatch.setattr("hztune.measure.live_share.statistics_of", answered)
    return str(compiled("burst", BURST, "-O0")), str(tmp_path)


def asked(program: Program, *arms: Arm, seconds: float = 60.0) -> tuple[LiveShare, ...]:
    usual_s = 0.5 if program.service is None else 0.0
    return live_shares(program, arms, AllocatorIdentity(), seed=1, seconds=seconds, usual_s=usual_s)


# ---- real processes ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def built(core_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent and hz are those of the tests."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))


def test_what_is_live_of_what_is_held_is_asked_while_a_program_runs(
    burst: tuple[str, ...],
) -> None:
    both = asked(described(burst), NONE, HZ)
    for found, name in zip(both, ("glibc", "hz"), strict=True):
        assert (found.allocator, found.why) == (name, "")
        assert found.most is not None and found.last is not None
        assert found.most.held_kb >= 18 * MIB_KB
        assert (found.most.live_kb or 0) >= 18 * MIB_KB
        assert (found.last.live_kb or 0) < 2 * MIB_KB
        assert found.last.ratio is not None
    assert both[0].last is not None and both[0].last.held_kb > 10 * MIB_KB


@pytest.mark.slow
def test_the_load_of_a_server_that_goes_on_is_told_to_end() -> None:
    connect = 'import socket; socket.create_connection(("127.0.0.1", {port}))'
    ask = f"{sys.executable} -I -S -c '{connect}'"
    program = described(server=SERVER, load=f"for n in 1 2 3; do {ask}; done; exec sleep 500")
    (found,) = asked(program, NONE, seconds=3.0)
    assert found.most is not None and found.most.held_kb > 3 * MIB_KB


def test_a_run_for_which_there_is_no_time_is_not_made(tmp_path: Path) -> None:
    program = described(("/usr/bin/touch", str(tmp_path / "ran")))
    for found in asked(program, NONE, HZ, seconds=0.8):
        assert found == LiveShare(why="one more run takes 0.5 s, and there were 0.4 s for it")
    assert not (tmp_path / "ran").exists()


def test_why_nothing_is_known_is_said(compiled: Compiler, burst: tuple[str, ...]) -> None:
    static = compiled("static", BURST, "-static")
    child = described((*burst, "fork"))
    cleared = described(("/usr/bin/env", "-u", "LD_PRELOAD", burst[0]))
    for program in (described((str(static),)), cleared):
        (found,) = asked(program, NONE)
        assert found.most is None
        assert "it is static, was started without LD_PRELOAD, or was over at once" in found.why
    (parent,) = asked(child, NONE)
    assert parent.most is not None and parent.most.held_kb < 10 * MIB_KB  # its child is not asked


def test_what_cannot_run_says_why() -> None:
    (found,) = asked(described(("/bin/true",)), Arm.of("hz", {"shards": 10**9}))
    assert found.most is None and "shards" in found.why
    (failed,) = asked(described(("/bin/true",), prepare="exit 3"), NONE)
    assert "--prepare" in failed.why


def test_what_is_over_before_it_is_asked_is_said_to_be_without_its_number() -> None:
    asker = _Asker(NONE, AllocatorIdentity())
    with subprocess.Popen(["/bin/true"]) as child:
        child.wait()
    asker._ask(child.pid)
    assert asker.share() == LiveShare(why="it was over before it could be asked")


def test_one_reason_why_nothing_is_known_is_said_once() -> None:
    silent = replace(compared().rows[0], live=(SHARES[2],) * 3)
    plain = table.plain(replace(compared(), rows=(silent,)).standings, counters=True)
    assert "  held and live memory are not known: no process of it took requests" in plain


READING = LiveReading(4096, 1024)
WORDS = {
    "at most 2.0 MiB held; 1.0 MiB held at the last reading; not known: it does not count": (
        LiveShare("mimalloc", LiveReading(2048), LiveReading(1024), "it does not count")
    ),
    "at most 4.0 MiB held for 1.0 MiB live (4.00x), the same at the last reading": (
        LiveShare("hz", READING, LiveReading(4097, 1024))
    ),
}


@pytest.mark.parametrize("words", WORDS)
def test_what_is_held_at_most_and_at_last_is_said_once(words: str) -> None:
    assert WORDS[words].words == words


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a comparison measure nothing real; what it asks afterwards is."""
    executors = lambda *asked, **there: lambda spec: ReplayExecutor(lambda arm: Truth(), seed=1)  # noqa: E731
    monkeypatch.setattr("hztune.compare.conduct.executors", executors)


@pytest.mark.usefixtures("replayed")
def test_a_comparison_asks_each_contender_of_a_program(burst: tuple[str, ...]) -> None:
    found = api.compare(
        api.contenders(["none", "hz"]), [api.program(burst)], pairs=4, budget_s=600.0
    )
    assert [each.live.allocator for each in found.standings[0].all if each.live] == ["glibc", "hz"]


@pytest.mark.usefixtures("replayed")
def test_a_gate_asks_nothing(burst: tuple[str, ...]) -> None:
    both = api.contenders(["none", "hz"])
    found = api.compare(both, [api.program(burst)], pairs=4, no_worse="50%")
    assert [each.live for each in found.rows] == [()]


def test_a_study_asks_the_default_and_what_it_found(
    burst: tuple[str, ...], make_bench: Callable[..., Workbench]
) -> None:
    made = api.request(program=api.program(burst), allocator="hz", budget="1h")
    bench = make_bench(lambda arm: Truth())
    found = ask_arms(made, bench, [NONE, HZ], (), on_program=False)
    assert [(each.arm, each.target, each.share.allocator) for each in found] == [
        (NONE, "", "glibc"),
        (HZ, "", "hz"),
    ]


def test_a_study_of_a_workload_asks_hz_bench(make_bench: Callable[..., Workbench]) -> None:
    made = api.request("larson", threads=1, budget="1h")
    found = ask_arms(made, make_bench(lambda arm: Truth()), [HZ], (), on_program=False)
    assert [each.share.allocator for each in found] == ["hz"]
    assert found[0].share.most is not None


# ---- what is kept and printed --------------------------------------------------------------------

SHARES = (
    LiveShare("glibc", LiveReading(20480, 10240), LiveReading(16384, 1024)),
    LiveShare("mimalloc", LiveReading(20480), LiveReading(10240), "mimalloc does not count"),
    LiveShare(why="no process of it took requests"),
)
SIDES = tuple(Contender(name, Arm(name)) for name in ("none", "mimalloc", "hz"))


def compared() -> Comparison:
    (spec,) = api.rows("larson", "2")
    blocks = row(ReplayExecutor(lambda arm: Truth(), seed=1), SIDES, 4)
    measured = Measured(spec, blocks, "2026-01-31T12:00:00Z", live=SHARES)
    return Comparison(SIDES, (("cpu", "Test CPU"),), (("hztune", "0.1.0"),), (measured,))


def test_a_record_holds_what_was_answered(tmp_path: Path) -> None:
    made = compared()
    (tmp_path / "record.json").write_text(comparison.dumps(made))
    found, wrong = comparison.load(tmp_path / "record.json")
    assert found.rows[0].live == SHARES
    assert wrong == []
    without = replace(made, rows=(replace(made.rows[0], live=()),))
    assert '"live"' not in comparison.dumps(without)


@pytest.mark.parametrize("bad", [[], {}, {"held_kb": "1"}, {"held_kb": 1, "live_kb": 2.5}])
def test_an_answer_that_is_none_is_refused(tmp_path: Path, bad: object) -> None:
    stored = json.loads(comparison.dumps(compared()))
    stored["rows"][0]["live"][0]["most"] = bad
    (tmp_path / "record.json").write_text(json.dumps(stored))
    with pytest.raises(UsageError, match="no valid record"):
        comparison.load(tmp_path / "record.json")


def test_a_comparison_prints_what_was_answered_where_it_is_asked_for_counters() -> None:
    assert "live" not in table.plain(compared().standings)
    plain = table.plain(compared().standings, counters=True)
    assert "  held and live memory, in one more run of each:\n" in plain
    assert (
        "none      at most 20.0 MiB held for 10.0 MiB live (2.00x); "
        "16.0 MiB held for 1.0 MiB live (16.00x) at the last reading\n"
    ) in plain
    assert "hz        not known: no process of it took requests" in plain


def test_a_table_of_figures_has_what_was_answered() -> None:
    rows = [*csv.DictReader(io.StringIO(exchange.csv_text(compared())))]
    one = [rows[0][name] for name in exchange.COLUMNS[-7:]]
    assert one == ["20.000", "10.000", "2.0000", "16.000", "1.000", "16.0000", ""]
    two = [rows[1][name] for name in exchange.COLUMNS[-7:]]
    assert two == ["20.000", "", "", "10.000", "", "", "mimalloc does not count"]


def test_a_row_is_kept_before_it_is_asked_and_when_that_is_stopped() -> None:
    (spec,) = api.rows("larson", "2")
    kept: list[int] = []

    def ask(row: Measured) -> tuple[LiveShare, ...]:
        assert kept == [1]
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it goes on")

    found, stopped = conduct.carry_out(
        comparison.started(SIDES, Machine.here()),
        [spec],
        Effort(4, 60.0),
        lambda spec: ReplayExecutor(lambda arm: Truth(), seed=1),
        Quiet(),
        lambda so_far: kept.append(len(so_far.rows)),
        ask=ask,
    )
    assert stopped
    assert [len(each.blocks) for each in found.rows] == [4]


def test_a_result_tells_and_keeps_what_was_answered(make_profile: Callable[..., Profile]) -> None:
    asked_of = (
        LiveMemory(NONE, "", SHARES[0]),
        LiveMemory(Arm.of("hz", {"thp": "on"}), "app", SHARES[2]),
    )
    made = Result(make_profile(), replace(ACCOUNT, live=asked_of))
    assert read(json.loads(json.dumps(ending(made))), None).account.live == asked_of
    assert summary_json(made)["live"][0]["share"]["most"] == {"held_kb": 20480, "live_kb": 10240}
    assert "live" not in summary_json(Result(make_profile(), ACCOUNT))


def test_a_report_shows_the_default_beside_the_tuned(make_profile: Callable[..., Profile]) -> None:
    asked_of = (LiveMemory(NONE, "", SHARES[0]), LiveMemory(HZ, "", SHARES[2]))
    made = Result(make_profile(), replace(ACCOUNT, live=asked_of))
    page = Page(Figures(made, made.profile, None, Ledger()))  # type: ignore[arg-type]
    default, tuned = page.live
    assert (default[3], default[6], tuned[3]) == ("2.00x", "16.00x", "-")
    assert any("no process of it took requests" in line for line in page.live_unknown)


@pytest.mark.usefixtures("replayed")
def test_contenders_that_are_commands_are_asked_as_they_run(burst: tuple[str, ...]) -> None:
    both = sides.commands([" ".join(burst), f"OTHER={' '.join(burst)}"])
    found = api.compare(both, [api.program(("{}",))], pairs=4, budget_s=600.0)
    assert [each.live.allocator for each in found.standings[0].all if each.live] == ["glibc"] * 2
