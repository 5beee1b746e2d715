"""Traces as files: forms, parts, damage. What is wrong with a file is a sentence, and no more."""

from __future__ import annotations

import os

import pytest
from traces import aosp

TEXT = """\
# thread ns operation block size alignment
0 0 malloc 1 24
0 1000 spawn 1
0 1500 new_aligned 2 100 64
1 2000 calloc 3 4096
1 2500 free 1
0 3000 realloc 2 5000000
0 90000000000 free 3
1 90000001000 realloc 2 8
1 90000002000 delete 2
0 90000003000 memalign 4 12 32
0 90000004000 join 1
"""
ANDROID = """\
186: malloc 0x7100 40
186: calloc 0x7200 3 100
7: memalign 0x7300 64 128
7: realloc 0x7400 0x7100 80
7: realloc 0x7500 0x0 9
7: free 0x7200
7: free 0x0
186: free 0x7400
7: thread_done 0x0
"""


@pytest.fixture
def text_trace(recorder):
    """A trace of TEXT."""
    (recorder.folder / "in.txt").write_text(TEXT)
    recorder.trace("convert", "in.txt", "--output", "in.trace")
    return recorder.folder / "in.trace"


def converted(recorder, text):
    """What a text becomes when it was a trace."""
    (recorder.folder / "given").write_text(text)
    recorder.trace("convert", "given", "--output", "made.trace")
    return recorder.lines("made.trace")


# ---- forms ---------------------------------------------------------------------------------------


def test_a_trace_has_all_that_its_text_says(recorder, text_trace):
    recorder.trace("convert", text_trace, "--output", "out.txt", "--to", "text")
    wanted = [line.split() for line in TEXT.splitlines()[1:]]
    seen = [line.split() for line in (recorder.folder / "out.txt").read_text().splitlines()[1:]]
    assert [[*words[:1], *words[2:]] for words in seen] == [
        [*words[:1], *words[2:]] for words in wanted
    ]
    for got, asked in zip(seen, wanted, strict=True):
        assert abs(int(got[1]) - int(asked[1])) <= int(asked[1]) / 2048


def test_what_is_in_a_trace_is_counted(recorder, text_trace):
    told = recorder.info(text_trace)
    assert (told["calls"], told["threads"]) == (9, 2)
    assert (told["ends"], told["ends_by_others"], told["handed"]) == (3, 2, 3)
    assert (told["peak_bytes"], told["peak_blocks"]) == (5004096, 3)
    assert told["operations"]["realloc"] == 2
    assert told["has_time"] and not told["is_part"]


def test_androids_text_becomes_plain_text(recorder):
    assert converted(recorder, "\n".join(["#", *aosp.plain(ANDROID.splitlines())])) == [
        ["malloc", "1", "40"], ["calloc", "2", "300"], ["spawn", "1"],
        ["memalign", "3", "128", "64"], ["realloc", "1", "80"], ["malloc", "4", "9"],
        ["free", "2"], ["free", "1"],
    ]  # fmt: skip
    timed = ["1: malloc 0x10 8 100 200", "1: free 0x10 300 400"]
    assert list(aosp.plain(timed)) == ["1 200 malloc 1 8", "1 300 free 1"]


def test_a_realloc_to_nothing_that_gave_a_block_is_a_free_and_a_malloc(recorder):
    assert converted(recorder, "0 0 malloc 1 8\n0 0 realloc 1 0\n0 0 free 1\n") == [
        ["malloc", "1", "8"], ["free", "1"], ["malloc", "2", "0"], ["free", "2"],
    ]  # fmt: skip


def test_a_spawn_of_the_first_thread_is_left_out(recorder):
    assert converted(recorder, "0 0 malloc 1 8\n1 0 spawn 0\n1 5 free 1\n") == [
        ["malloc", "1", "8"], ["spawn", "1"], ["free", "1"],
    ]  # fmt: skip


def test_no_rounded_time_lets_a_free_stand_before_its_malloc(recorder):
    """Of these times the malloc's is rounded up and its free's down."""
    text = "0 0 malloc 1 8\n0 1000 spawn 1\n1 6000 malloc 2 8\n"
    (recorder.folder / "in.txt").write_text(f"{text}0 10000000 malloc 3 8\n1 10001000 free 3\n")
    recorder.trace("convert", "in.txt", "--output", "in.trace")
    lines = recorder.lines("in.trace")
    recorder.trace("convert", "lines.txt", "--output", "again.trace")
    assert recorder.lines("again.trace") == lines
    recorder.trace("cut", "in.trace", "--output", "part.trace", "--to", "0.010002")
    assert recorder.lines("part.trace") == lines[:3]


def test_what_a_recording_of_another_form_lacks_is_said_and_kept(recorder):
    (recorder.folder / "a.txt").write_text("0 0 malloc 1 8\n0 1 malloc 1 8\n0 2 free 7\n")
    done = recorder.trace("convert", "a.txt", "--output", "a.trace")
    assert done.stderr.splitlines() == [
        "hz-trace: 1 calls about blocks from before the recording are left out",
        "hz-trace: 1 frees were not seen",
    ]
    assert recorder.info("a.trace")["notes"] == {"unknown": 1, "overlapping": 1}


HOLES = 1 << 24
BAD = [
    (b"", 0, "is no trace"),
    (b"", HOLES, "is no trace"),
    (b"\x7fELF....", 0, "is no trace"),
    (b"hello\n", 0, "is no trace"),
    (b"0 0 malloc 1\n", 0, "line 1: want a size in bytes"),
    (b"0 0 malloc 1 8 7\n", 0, "line 1: want a power of two as alignment"),
    (b"0 5 malloc 1 8\n0 4 free 1\n", 0, "line 2: want times that do not go back"),
    (b"0 0 mallok 1 8\n", 0, "line 1: want an operation such as malloc"),
    (b"99999999 0 malloc 1 8\n", 0, "line 1: want a thread's number below a million"),
    *((b"0 0 %s %d 8\n" % (what, 2**64 - 1), 0, "line 1: want a block's number below")
      for what in (b"malloc", b"free")),
    (b"0 0 malloc 1 8\n" * 1000, HOLES, "want a line of at most 64 KiB"),
    (b"HZTRACE\n", 0, "it is too short"),
    (b"HZTRACE\n", HOLES, "a trace of version 0"),
    (b"HZRECORD", 0, "the file ends in its header"),
    (b"HZRECORD", HOLES, "a log of version 0"),
    (b"", 1 << 40, "larger than the memory of this machine"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "length", "reason"), BAD)
def test_a_file_that_is_no_recording_gets_its_sentence(head, length, reason, recorder):
    (recorder.folder / "bad").write_bytes(head)
    if length:
        os.truncate(recorder.folder / "bad", length)
    done = recorder.trace("convert", "bad", "--output", "made.trace", status=2)
    assert reason in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in recorder.folder.iterdir()] == ["bad"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "it is not a regular file"),
        (os.mkdir, "it is a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
        (lambda path: path.touch(), "is no"),
    ],
)
def test_what_is_no_file_is_not_waited_for(make, reason, recorder):
    make(recorder.folder / "in")
    for verb in ("info", "cut", "anonymize", "convert"):
        output = () if verb == "info" else ("--output", "out")
        done = recorder.trace(verb, "in", *output, status=2)
        assert reason in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in recorder.folder.iterdir()] == ["in"]


@pytest.mark.parametrize("verb", ["cut", "anonymize", "convert"])
def test_what_is_read_is_not_overwritten(verb, recorder, text_trace):
    before = text_trace.read_bytes()
    (recorder.folder / "link").symlink_to(text_trace)
    for output in (text_trace, "link", "./in.trace"):
        done = recorder.trace(verb, text_trace, "--output", output, status=2)
        assert "it is the file that is read" in done.stderr
    assert text_trace.read_bytes() == before


def test_chosen_addresses_take_no_longer_than_others(recorder):
    """These met in one slot while the factor that spreads them was known (hours, not seconds)."""
    known = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    blocks = (known * (i << 44 | i) % 2**60 - 1 for i in range(1, 400_000))
    lines = (f"1 0 malloc {max(block, 0)} 8\n" for block in blocks)
    (recorder.folder / "chosen").write_text("".join(lines))
    recorder.trace("convert", "chosen", "--output", "x")


# ---- parts ---------------------------------------------------------------------------------------


def test_a_part_begins_and_ends_with_what_lives_then(recorder, text_trace):
    recorder.trace("cut", text_trace, "--output", "part.trace", "--from", "50")
    lines = [words for words in recorder.lines("part.trace") if words[0] not in ("spawn", "join")]
    assert lines == [
        ["calloc", "1", "4096"], ["malloc", "2", "5000000"], ["free", "1"], ["realloc", "2", "8"],
        ["delete", "2"], ["memalign", "3", "12", "32"],
    ]  # fmt: skip
    assert recorder.info("part.trace")["is_part"]
    recorder.trace("cut", text_trace, "--output", "part.trace", "--to", "0.0000021")
    assert [words[0] for words in recorder.lines("part.trace")] == [
        "malloc", "spawn", "new_aligned", "calloc",
    ]  # fmt: skip


def test_an_anonymous_trace_names_nothing_and_frees_the_same(recorder):
    program = recorder.program("program")
    recorder.mode("all")
    recorder.trace("anonymize", "all.trace", "--output", "a.trace", "--round-sizes", "16")
    data = (recorder.folder / "a.trace").read_bytes()
    assert program.name.encode() in (recorder.folder / "all.trace").read_bytes()
    assert program.name.encode() not in data and b"program" not in data
    before, after = recorder.lines("all.trace"), recorder.lines("a.trace")
    assert [words[:2] for words in after] == [words[:2] for words in before]
    assert all(int(words[2]) % 16 == 0 for words in after if len(words) > 2)
