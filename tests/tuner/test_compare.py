"""Comparisons: what takes part, how rows are measured and estimated, what is kept and printed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from lab.replay import Landscape, ModelNoise, ReplayExecutor, Truth

from hztune import api, profile
from hztune.blocks import CPU_TIME, Arm, Block, Outcome, Role
from hztune.cli import status_of
from hztune.compare import comparison, conduct, match, plot, table
from hztune.compare import contenders as field
from hztune.compare.comparison import Comparison
from hztune.compare.contenders import Contender
from hztune.compare.match import (
    LEAST_PAIRS,
    MOST_PAIRS,
    Effort,
    Measured,
    Unfinished,
    rounds_in,
    row,
)
from hztune.compare.preload import FileIdentity
from hztune.compare.standings import Standings, geometric_mean, standings
from hztune.errors import UsageError
from hztune.machine import Machine
from hztune.measure.identity import Fault
from hztune.measure.live_share import LiveShare
from hztune.profile import Profile
from hztune.progress import Quiet
from hztune.stats.intervals import Interval, fixed_interval
from hztune.stats.noise import pooled_mean
from hztune.workload import WorkloadSpec

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SPEED = {"a": 1.0, "b": 0.5, "c": 0.8}
SIDES = tuple(Contender(name, Arm(name)) for name in SPEED)
SILENT = ModelNoise(within=0.0, between=0.0, common=0.05)


def as_named(arm: Arm) -> Truth:
    """How the contenders really are; memory goes with speed."""
    speed = SPEED[arm.allocator]
    return Truth(math.log(speed), rss_kb=round(102400 * speed))


def failing(*names: str) -> Landscape:
    return lambda arm: Truth(status="crash") if arm.allocator in names else as_named(arm)


def spec_of(name: str = "larson", threads: int = 2) -> WorkloadSpec:
    return WorkloadSpec(name, "", (), threads)


def measured(
    landscape: Landscape = as_named, noise: ModelNoise = SILENT, pairs: int = 6
) -> Comparison:
    """A record with two rows."""
    rows = tuple(
        Measured(
            spec_of(threads=threads),
            row(ReplayExecutor(landscape, noise, seed=threads), SIDES, pairs, 60.0),
            "2026-01-31T12:00:00Z",
        )
        for threads in (2, 8)
    )
    return Comparison(SIDES, (("cpu", "Test CPU"),), (("hztune", "0.1.0"),), rows)


def standing_rows(landscape: Landscape = as_named) -> tuple[Standings, ...]:
    return measured(landscape).standings


# ---- estimates -----------------------------------------------------------------------------------


def test_ratios_are_to_the_first_contender() -> None:
    (found, _) = standing_rows()
    ratios = [each.speed.ratio[0] for each in found.all if each.speed]
    assert ratios == pytest.approx([1.0, 0.5, 0.8], rel=1e-5)
    assert [each.rss_mb for each in found.all] == pytest.approx([100.0, 50.0, 80.0], rel=1e-3)


def test_the_first_one_is_set_against_the_fastest_of_the_others() -> None:
    (found, _) = standing_rows()
    assert found.best == "c"
    assert found.lead is not None and found.lead.ratio[0] == pytest.approx(1.25, rel=1e-5)
    assert found.lead.low <= found.lead.estimate <= found.lead.high
    assert found.frugality == pytest.approx(100.0 / 65.0, rel=1e-3)


def test_a_contender_that_fails_keeps_its_place_and_its_reason() -> None:
    (found, _) = standing_rows(failing("c"))
    assert found.of("c").speed is None and len(found.of("c").failures) == 6
    assert found.best == "b"
    assert "crash" in table.plain([found]) and "crash" in table.markdown([found])


def test_no_ratio_is_claimed_where_the_control_fails() -> None:
    (found, _) = standing_rows(failing("a"))
    assert [each.speed for each in found.all] == [None, None, None]
    assert (found.best, found.lead) == ("", None)


def test_an_interval_over_noise_holds_the_truth() -> None:
    noisy = ModelNoise(within=0.05, between=0.05)
    found = measured(noise=noisy, pairs=30).standings[1].of("b").speed
    assert found is not None and found.low < math.log(0.5) < found.high
    assert found.half_width < 0.1


def test_the_mean_of_several_rows_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    truths = np.array([0.1, -0.2, 0.4])
    hits = 0
    for _ in range(400):
        draws = truths[:, None] + rng.normal(0.0, [[0.02], [0.1], [0.3]], (3, 6))
        mean = pooled_mean([fixed_interval(each) for each in draws])
        hits += mean.low <= truths.mean() <= mean.high
    assert hits >= 0.92 * 400


def test_the_mean_of_rows_without_intervals_is_none() -> None:
    assert geometric_mean([]) is None
    assert geometric_mean([Interval(0.1, -math.inf, math.inf, 1)]) is None


def test_rows_that_agree_to_the_last_digit_have_an_interval_without_width() -> None:
    mean = pooled_mean([Interval(0.2, 0.2, 0.2, 6), Interval(0.4, 0.4, 0.4, 6)])
    assert (mean.low, mean.estimate, mean.high) == pytest.approx((0.3, 0.3, 0.3))


# ---- measuring -----------------------------------------------------------------------------------


def test_a_row_has_the_pairs_that_were_asked_when_there_is_time() -> None:
    executor = ReplayExecutor(as_named, seed=1)
    blocks = row(executor, SIDES, pairs=6, budget_s=30.0)
    assert [block.number for block in blocks] == [0, 1, 2, 3, 4, 5]
    assert executor.accounting.wall_s <= 30.0


def test_a_row_has_the_least_number_of_pairs_even_without_time() -> None:
    assert len(row(ReplayExecutor(as_named, seed=1), SIDES, pairs=6, budget_s=0.1)) == LEAST_PAIRS


def test_more_time_gives_more_turns_and_not_more_pairs() -> None:
    short, long = (
        row(ReplayExecutor(as_named, seed=1), SIDES, pairs=6, budget_s=budget)
        for budget in (15.0, 30.0)
    )
    assert len(short) == len(long)
    assert len(long[0].control.turns) > len(short[0].control.turns)


def test_a_row_whose_control_never_runs_is_given_up() -> None:
    assert len(row(ReplayExecutor(failing("a"), seed=1), SIDES, pairs=6, budget_s=60.0)) == 2


def test_the_rounds_of_a_block_fit_into_its_time() -> None:
    executor = ReplayExecutor(as_named, seed=1)
    rounds = rounds_in(executor, arms=3, seconds=5.0)
    assert executor.cost(3, rounds) <= 5.0 < executor.cost(3, rounds + 2)


class LongRuns(ReplayExecutor):
    """Whole programs that run longer than is known before the first of them has ended."""

    def __init__(self) -> None:
        super().__init__(as_named, seed=1)
        self.asked: list[int] = []

    def cost(self, arms: int, rounds: int) -> float:
        """Returns what the runs so far let expect."""
        return arms * rounds * (12.0 if self.asked else 1.0)

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Notes how many rounds are asked for."""
        self.asked.append(rounds)
        return super().measure(arms, role=role, rounds=rounds, number=number)


def test_a_program_of_unknown_duration_is_run_once_at_first() -> None:
    executor = LongRuns()
    row(executor, SIDES, pairs=4, budget_s=4 * 12 * 2 * len(SIDES))
    assert executor.asked[0] == 1 < max(executor.asked)


@pytest.mark.parametrize(("pairs", "budget_s"), [(0, 60), (3, 60), (101, 60), (6, 0.5), (6, 1e9)])
def test_a_plan_that_cannot_be_kept_is_refused(pairs: int, budget_s: float) -> None:
    with pytest.raises(UsageError, match="legal is"):
        Effort(pairs, budget_s)


class Interrupted(ReplayExecutor):
    """An executor during which the user presses Ctrl-C."""

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Is interrupted."""
        signal.raise_signal(signal.SIGINT)
        return super().measure(arms, role=role, rounds=rounds, number=number)


class Deaf(Interrupted):
    """An executor during which Python swallows the interrupt, as in a `__del__`."""

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Is interrupted and goes on."""
        with contextlib.suppress(KeyboardInterrupt):
            super().measure(arms, role=role, rounds=rounds, number=number)
        return ReplayExecutor.measure(self, arms, role=role, rounds=rounds, number=number)


@pytest.mark.parametrize("kind", [Interrupted, Deaf])
def test_what_was_measured_before_an_interruption_is_kept(kind: type[ReplayExecutor]) -> None:
    specs = [spec_of(threads=threads) for threads in (1, 2, 4)]
    kept: list[int] = []
    found, stopped = conduct.carry_out(
        comparison.started(SIDES, Machine.here()),
        specs,
        Effort(6, 60.0),
        lambda spec: (kind if spec.threads == 4 else ReplayExecutor)(as_named, seed=1),
        Quiet(),
        lambda so_far: kept.append(len(so_far.rows)),
    )
    assert stopped
    assert [each.spec.threads for each in found.rows] == [1, 2]
    assert kept == [1, 2]


class InterruptedLate(ReplayExecutor):
    """An executor during whose sixth block the user presses Ctrl-C."""

    def measure(self, arms: Sequence[Arm], *, role: Role, rounds: int, number: int) -> Block:
        """Is interrupted once."""
        if number == 5:
            signal.raise_signal(signal.SIGINT)
        return super().measure(arms, role=role, rounds=rounds, number=number)


def test_a_row_that_is_interrupted_with_pairs_enough_counts() -> None:
    found, stopped = conduct.carry_out(
        comparison.started(SIDES, Machine.here()),
        [spec_of(threads=1), spec_of(threads=2)],
        Effort(20, 60.0),
        lambda spec: InterruptedLate(as_named, seed=1),
        Quiet(),
    )
    assert stopped
    assert [len(each.blocks) for each in found.rows] == [5]


def test_of_an_interrupted_comparison_the_rows_to_go_on_with_are_told_and_what_is_kept() -> None:
    specs = [spec_of(threads=threads) for threads in (1, 2, 4)]
    asked, cut = measured().rows
    rows = (replace(asked, spec=specs[0], live=(LiveShare(),)), replace(cut, spec=specs[1]))
    kept = [replace(block, number=2 * MOST_PAIRS + block.number) for block in cut.blocks]
    left = conduct.unfinished_rows(specs, rows, None, [*asked.blocks, *kept])
    assert left == (Unfinished("larson T=2", 6), Unfinished("larson T=4", 0))


# ---- the record ----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A record in a file."""
    path = tmp_path / "record.json"
    path.write_text(comparison.dumps(measured(failing("b"), ModelNoise())))
    return path


def test_a_record_reads_back_as_it_was_written(saved: Path) -> None:
    found, wrong = comparison.load(saved)
    assert wrong == []
    assert comparison.dumps(found) == saved.read_text()
    assert found.standings == measured(failing("b"), ModelNoise()).standings


def changed(path: Path, change: Callable[[dict[str, object]], None]) -> Path:
    """The record with its first row changed."""
    document = json.loads(path.read_text())
    change(document["rows"][0])
    path.write_text(json.dumps(document))
    return path


def test_an_estimate_that_its_samples_do_not_give_is_named(saved: Path) -> None:
    def lie(first: dict[str, object]) -> None:
        first["standings"]["contenders"]["c"]["speed"]["ratio"] *= 1.1  # type: ignore[index]

    wrong = comparison.load(changed(saved, lie))[1]
    assert len(wrong) == 1 and wrong[0].startswith("larson T=2: contenders.c.speed.ratio is ")


def test_a_sample_that_does_not_give_the_estimates_is_found(saved: Path) -> None:
    def forge(first: dict[str, object]) -> None:
        first["blocks"][0][2]["turns"][0][1] *= 2  # type: ignore[index]

    assert comparison.load(changed(saved, forge))[1]


BROKEN: dict[str, Callable[[dict[str, object]], None]] = {
    "a turn without operations": lambda r: r["blocks"][0][0]["turns"][0].pop(),  # type: ignore[index]
    "a block without a contender": lambda r: r["blocks"][0].pop(),  # type: ignore[index]
    "a row without samples": lambda r: r.update(blocks=[]),
    "an unknown status": lambda r: r["blocks"][0][0].update(status="fine"),  # type: ignore[index]
    "samples of another row": lambda r: r.update(row="larson T=3"),
    "something more": lambda r: r.update(more=1),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_record_is_refused(
    change: Callable[[dict[str, object]], None], saved: Path
) -> None:
    with pytest.raises(UsageError, match="no valid record"):
        comparison.load(changed(saved, change))


def test_a_record_never_says_where_a_library_was(tmp_path: Path) -> None:
    library = tmp_path / "liballoc.so"
    library.write_bytes(b"\x7fELF")
    side = field.from_file("own", library)
    block = ReplayExecutor(lambda arm: Truth(), seed=1).measure(
        [side.arm], role="explore", rounds=2, number=0
    )
    failed = Block(0, "explore", (*block.outcomes, _wrong(side.arm, library)))
    sides = (side, field.from_file("own2", library))
    rows = (Measured(spec_of(), (failed,), "2026-01-31T12:00:00Z"),)
    text = comparison.dumps(Comparison(sides, (), (), rows))
    assert str(tmp_path) not in text
    assert "malloc comes from liballoc.so" in text and side.sha256 in text


def _wrong(arm: Arm, library: Path) -> Outcome:
    return Outcome(arm, "wrong_allocator", f"malloc comes from {library}, not {library}x")


# ---- what takes part -----------------------------------------------------------------------------


def test_words_of_a_command_line_become_contenders(
    make_profile: Callable[..., Profile], tmp_path: Path
) -> None:
    tuned = tmp_path / "study" / "profile.json"
    tuned.parent.mkdir()
    profile.save(make_profile(), tuned)
    found = field.parse(["default", "glibc", "hz:shards=4,thp=on", str(tuned), "default"])
    assert [each.name for each in found] == [
        "default", "glibc", "hz:shards=4,thp=on", "study", "default#2",
    ]  # fmt: skip
    assert found[0].arm == Arm("hz") and found[1].arm == Arm("glibc")
    assert found[2].arm.config == {"shards": 4, "thp": "on"}
    assert found[3].arm == Arm.of("hz", make_profile().params)


REFUSED = {
    "an unknown allocator": ("jemaloc", "did you mean jemalloc"),
    "an unknown parameter": ("hz:shard=4", "shards"),
    "a parameter out of range": ("hz:shards=3", "shards"),
    "a parameter without value": ("hz:shards", "KEY=VALUE"),
    "a profile that is not there": ("absent.json", "absent.json"),
    "a library that is not there": ("own=/absent/lib.so", "no such file"),
    "a library whose name has a space": ("a b=/lib.so", "^the name of a contender 'a b': legal"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_take_part_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        field.parse(["default", text])


def test_a_library_in_a_file_is_proved_by_the_file(tmp_path: Path) -> None:
    library = tmp_path / "liballoc.so"
    library.write_bytes(b"")
    side = field.from_file("own", library)
    proof = FileIdentity([side])
    assert proof.prepare(side.arm) == {"LD_PRELOAD": str(library)}
    assert proof.judge(side.arm, str(library), "") is None
    wrong = proof.judge(side.arm, "/usr/lib/libc.so.6", "")
    assert isinstance(wrong, Fault) and wrong.status == "wrong_allocator"


def test_a_parameter_goes_to_the_workloads_that_have_it() -> None:
    specs = conduct.specs_of("larson,remote@main", "2,8", ["remote=90"])
    assert [spec.label for spec in specs] == [
        "larson T=2", "larson T=8", "remote@main remote=90 T=2", "remote@main remote=90 T=8",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("larson", "2", ["remote=90"]), "no parameter of larson 'remote'"),
        (("larson,", "2"), "no workload ''"),
        (("larson", "2,many"), "legal is whole numbers"),
        (("larson", "2,,8"), "legal is whole numbers"),
    ],
)
def test_rows_that_do_not_exist_are_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        conduct.specs_of(*words)  # type: ignore[arg-type]


# ---- what is printed -----------------------------------------------------------------------------


def test_a_markdown_table_has_a_cell_for_every_column() -> None:
    lines = table.markdown(standing_rows()).splitlines()
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert lines[2].startswith("| larson T=2 | 1.0") and lines[2].endswith("(c) | 1.54 |")
    assert "a / best of the others 1.250" in lines[-1]


def test_what_is_shown_beside_a_ratio_is_what_the_ratio_says() -> None:
    rates = ((1.0, 1.0), (4.0, 8.0), (1.0, 2.0))
    blocks = [
        Block(n, "explore", (
            Outcome(Arm("none"), "ok", ops_per_s=one, facts={CPU_TIME: 90_000}),
            Outcome(Arm("hz"), "ok", ops_per_s=other, facts={CPU_TIME: 60_000}),
        ))
        for n, (one, other) in enumerate(rates)
    ]  # fmt: skip
    row = standings("app", ["none", "hz"], blocks, amount="seconds")
    speed = row.all[1].speed
    assert speed is not None and math.exp(speed.estimate) == pytest.approx(2 ** (2 / 3), rel=1e-5)
    plain = table.plain([row])
    assert "1.000 s" in plain and "629.96 ms" in plain, "the median of hz alone is 500 ms"
    assert plain.endswith("CPU 60.00 ms (0.67 [0.67, 0.67])")
    assert "others" not in plain


def test_the_plot_is_an_image_with_a_dot_for_every_ratio() -> None:
    rows = standing_rows()
    tree = ElementTree.fromstring(plot.draw(rows))
    dots = tree.findall("{http://www.w3.org/2000/svg}circle")
    in_legend = len(SIDES) - 1
    assert len(dots) == len(rows) * (len(SIDES) - 1) + in_legend


# ---- the command ---------------------------------------------------------------------------------

BAD = {
    "one contender only": (["default"], "two contenders"),
    "two forms at once": (["default", "glibc", "--json", "--markdown"], "exclude each other"),
    "a budget that is no time": (
        ["default", "glibc", "--budget", "soon"],
        "legal is a number with s",
    ),
    "too few pairs": (["default", "glibc", "--pairs", "1"], "legal is"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_sentence_and_status_2(words: list[str], said: str, hztune: Run) -> None:
    done = hztune("compare", "--workload", "lifo", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("failures", "status", "said"),
    [
        ((0, 0, 2), 0, ""),
        ((0, 3, 6), 6, "not enough data: larson T=2: b failed in 3 of 6 pairs (failed: exit 1); "
                       "larson T=2: c failed in each of 6 pairs (failed: exit 1); start each by"),
        ((5, 5, 0), 6, "not enough data: larson T=2: a failed in 5 of 6 pairs (failed: exit 1); "),
        ((6, 0, 0), 1, "nothing could be compared: a never ran (failed: exit 1)"),
    ],
    ids=["seldom", "half and always", "both often", "the first always"],
)  # fmt: skip
def test_a_comparison_of_which_too_many_runs_failed_is_no_success(
    failures: tuple[int, ...],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    record = measured()
    blocks = tuple(
        replace(block, outcomes=tuple(
            Outcome(outcome.arm, "failed", "exit 1") if block.number < most else outcome
            for outcome, most in zip(block.outcomes, failures, strict=True)
        ))
        for block in record.rows[0].blocks
    )  # fmt: skip
    record = replace(record, rows=(replace(record.rows[0], blocks=blocks),))
    monkeypatch.setattr("hztune.api.compare", lambda *args, **more: record)
    words = ["compare", "none", "none", "--out", str(tmp_path / "kept"), "--", "true"]
    assert status_of(words) == status
    assert said in capsys.readouterr().err


def test_real_allocators_are_compared_and_proved(
    hztune: Run, core_build: Path, tmp_path: Path
) -> None:
    own = tmp_path / "libown.so"
    own.write_bytes((core_build / "libhz.so").read_bytes())
    words = ["--workload", "lifo", "--threads", "1", "--budget", "1s", "--pairs", "4", "--json"]
    done = hztune("compare", "default", "glibc", f"own={own}", *words)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "record.json"
    path.write_text(done.stdout)
    found, wrong = comparison.load(path)
    assert wrong == []
    (standing,) = found.standings
    assert [each.failures for each in standing.all] == [(), (), ()]
    assert "refills" in standing.of("default").counters
    assert set(standing.of("glibc").counters) == {"ops", "minor_faults"}
    assert all(each.speed and each.rss_mb > 0 for each in standing.all)


def test_what_fails_in_half_of_the_pairs_is_named_with_its_count() -> None:
    found = measured(failing("b"))
    told = [(one.spec.label, b) for one in found.rows for b in match.failing(SIDES, one)]
    assert [(label, b.name, len(b.failures), b.pairs) for label, b in told] == [
        ("larson T=2", "b", 6, 6),
        ("larson T=8", "b", 6, 6),
    ]
    assert api.failing(found) == [f"{label}: {b.words}" for label, b in told]


def test_ctrl_c_prints_the_rows_so_far(core_build: Path, tmp_path: Path) -> None:
    words = ["default", "glibc", "--workload", "lifo,fifo", "--threads", "1", "--budget", "6s"]
    with subprocess.Popen(
        [sys.executable, "-m", "hztune", "compare", *words],
        env={**os.environ, "HZTUNE_CORE": str(core_build)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if line.startswith("[2/2]"):
                child.send_signal(signal.SIGINT)
                break
        stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "lifo T=1" in stdout and "fifo" not in stdout
    assert "interrupted with 1 of 2 rows finished" in stderr
