"""Traces as files: forms, parts, damage. What is wrong with a file is a sentence, and no more."""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.bench import traces

from .conftest import Recorder

SOON_S = 4

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
0 90000003000 touch 4 12
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
MTRACE = """\
= Start
@ ./a.out:[0x40] + 0x1000 0x20
@ ./a.out:[0x44] < 0x1000
@ ./a.out:[0x44] > 0x2000 0x40
! 0x0 0x99
- 0x2000
- 0x3000
+ 0x4000 0x8
= End
"""
# Pointers, marks and threads; then thread 0 (malloc, set a mark) and thread 1 (await it, realloc,
# memalign, free, free of what is not there).
WORKLOAD = bytes(
    [
        *(8, 5, 9, 2, 10, 2, 11, 11, 11, 18, 1),
        *(2, 1, 0x81, 0x00, 6, 1, 1),
        *(7, 1, 4, 2, 1, 10, 12, 3, 0x20, 7, 5, 2, 5, 4, 1),
    ]
)


@pytest.fixture
def text_trace(recorder: Recorder) -> Path:
    """A trace of TEXT."""
    (recorder.folder / "in.txt").write_text(TEXT)
    done = recorder.trace("convert", "in.txt", "--output", "in.trace")
    assert done.returncode == 0, done.stderr
    return recorder.folder / "in.trace"


def converted(recorder: Recorder, content: str | bytes) -> list[list[str]]:
    """What a foreign file becomes, as lines of our own text."""
    data = content.encode() if isinstance(content, str) else content
    (recorder.folder / "foreign").write_bytes(data)
    done = recorder.trace("convert", "foreign", "--output", "made.trace")
    assert done.returncode == 0, done.stderr
    return recorder.lines("made.trace")


# ---- forms ---------------------------------------------------------------------------------------


def test_a_trace_has_all_that_its_text_says(recorder: Recorder, text_trace: Path) -> None:
    recorder.trace("convert", text_trace, "--output", "out.txt", "--to", "text")
    wanted = [line.split() for line in TEXT.splitlines()[1:]]
    seen = [line.split() for line in (recorder.folder / "out.txt").read_text().splitlines()[1:]]
    assert [[*words[:1], *words[2:]] for words in seen] == [
        [*words[:1], *words[2:]] for words in wanted
    ]
    for got, asked in zip(seen, wanted, strict=True):
        assert abs(int(got[1]) - int(asked[1])) <= int(asked[1]) / 2048


def test_what_is_in_a_trace_is_counted(recorder: Recorder, text_trace: Path) -> None:
    told = recorder.info(text_trace)
    assert (told["calls"], told["threads"]) == (9, 2)
    assert (told["ends"], told["ends_by_others"], told["handed"]) == (3, 2, 3)
    assert (told["peak_bytes"], told["peak_blocks"]) == (5004096, 3)
    assert told["operations"]["realloc"] == 2
    assert told["has_time"] and told["has_touch"] and not told["is_part"]


def test_androids_text_is_read(recorder: Recorder) -> None:
    assert converted(recorder, ANDROID) == [
        ["malloc", "1", "40"], ["calloc", "2", "300"], ["spawn", "1"],
        ["memalign", "3", "128", "64"], ["realloc", "1", "80"], ["malloc", "4", "9"],
        ["free", "2"], ["free", "1"],
    ]  # fmt: skip


def test_androids_times_are_read(recorder: Recorder) -> None:
    timed = "1: malloc 0x10 8 100 200\n1: free 0x10 300 400\n"
    converted(recorder, timed)
    told = recorder.info("made.trace")
    assert told["has_time"] and told["duration_ns"] == 100


def test_mtraces_text_is_read(recorder: Recorder) -> None:
    assert converted(recorder, MTRACE) == [
        ["malloc", "1", "32"], ["realloc", "1", "64"], ["free", "1"], ["malloc", "2", "8"],
    ]  # fmt: skip


def test_a_workload_of_trace_run_is_read_with_its_waiting(recorder: Recorder) -> None:
    lines = converted(recorder, WORKLOAD)
    assert [words for words in lines if words[0] != "spawn"] == [
        ["malloc", "1", "128"], ["realloc", "1", "10"], ["memalign", "2", "7", "32"],
        ["free", "1"],
    ]  # fmt: skip
    assert recorder.info("made.trace")["handed"] == 1


def test_what_a_recording_of_another_form_lacks_is_said_and_kept(recorder: Recorder) -> None:
    (recorder.folder / "a.txt").write_text("0 0 malloc 1 8\n0 1 malloc 1 8\n0 2 free 7\n")
    done = recorder.trace("convert", "a.txt", "--output", "a.trace")
    assert done.stderr.splitlines() == [
        "hz-trace: 1 calls about blocks from before the recording are left out",
        "hz-trace: 1 frees were not seen",
    ]
    assert recorder.info("a.trace")["notes"] == {"unknown": 1, "overlapping": 1}


@pytest.mark.parametrize("form", ["aosp", "mtrace", "text"])
def test_what_is_written_in_another_form_is_read_again(
    form: str, recorder: Recorder, text_trace: Path
) -> None:
    before = recorder.info(text_trace)
    recorder.trace("convert", text_trace, "--output", "other", "--to", form)
    done = recorder.trace("convert", "other", "--output", "again.trace")
    assert done.returncode == 0, done.stderr
    after = recorder.info("again.trace")
    kept = ["calls", "ends", "peak_bytes", "peak_blocks"]
    kept += [] if form == "mtrace" else ["threads", "ends_by_others", "has_time"]
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is no trace"),
        (b"\x7fELF....", "is no trace"),
        (b"hello\n", "is no trace"),
        (b"0 0 malloc 1\n", "line 1: want a size in bytes"),
        (b"0 0 malloc 1 8 7\n", "line 1: want a power of two as alignment"),
        (b"0 5 malloc 1 8\n0 4 free 1\n", "line 2: want times that do not go back"),
        (b"0 0 mallok 1 8\n", "line 1: want an operation such as malloc"),
        (b"99999999 0 malloc 1 8\n", "line 1: want a thread's number below a million"),
        (b"12: malloc 0x1000\n", "line 1: want a size in bytes"),
        (b"12: frob 0x1000\n", "line 1: want malloc, calloc"),
        (b"= Start\n@ x ? 0x10\n", "line 2: want +, -, < or >"),
        (bytes([8, 5, 10, 1, 11, 99, 1]), "a thread that starts behind the end"),
        (bytes([8, 5, 9, 1, 10, 1, 11, 9, 1, 7, 1, 1]), "waits for a mark"),
        (bytes([8, 0x81]), "the file ends in the middle of a number"),
        (b"HZTRACE\n", "it is too short"),
        (b"HZRECORD", "the file ends in its header"),
    ],
)
def test_a_file_that_is_no_recording_gets_its_sentence(
    content: bytes, reason: str, recorder: Recorder
) -> None:
    (recorder.folder / "bad").write_bytes(content)
    done = recorder.trace("convert", "bad", "--output", "made.trace")
    assert done.returncode in (1, 2)
    assert reason in done.stderr and done.stderr.count("\n") == 1
    assert sorted(path.name for path in recorder.folder.iterdir()) == ["bad"]


HOLES = 1 << 24


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"", "is no trace"),
        (b"0 0 malloc 1 8\n" * 1000, "want a line of at most 64 KiB"),
        (b"7: malloc 0x10 8\n" * 1000, "want a line of at most 64 KiB"),
        (b"\x08", "more than a million empty operations"),
        (b"HZRECORD", "a log of version 0"),
        (b"HZTRACE\n", "a trace of version 0"),
    ],
)
def test_what_ends_in_holes_gets_its_sentence(head: bytes, reason: str, recorder: Recorder) -> None:
    (recorder.folder / "vast").write_bytes(head)
    os.truncate(recorder.folder / "vast", HOLES)
    done = recorder.trace("convert", "vast", "--output", "made.trace")
    assert done.returncode == 2
    assert reason in done.stderr and done.stderr.count("\n") == 1


def test_what_is_larger_than_the_memory_is_refused(recorder: Recorder) -> None:
    (recorder.folder / "vast").touch()
    os.truncate(recorder.folder / "vast", 1 << 40)
    done = recorder.trace("info", "vast")
    assert done.returncode == 2 and "larger than the memory of this machine" in done.stderr


def test_a_trace_with_a_hole_in_it_is_damaged(recorder: Recorder, text_trace: Path) -> None:
    whole = text_trace.read_bytes()
    header = list(struct.unpack_from(traces.HEADER, whole))
    offset = header[4]
    header[3:5] = HOLES + len(whole) - offset, HOLES
    packed = struct.pack(traces.HEADER, *header[:-1], 0)
    vast = recorder.folder / "vast.trace"
    with vast.open("wb") as file:
        file.write(packed[:-8] + struct.pack("<Q", traces.checksum(packed)))
        file.write(whole[len(packed) : offset])
        file.seek(HOLES)
        file.write(whole[offset:])
    told = recorder.info(vast)
    assert told["damage"] == "is damaged: its chunks are not all that it holds"
    assert told["calls"] == recorder.info(text_trace)["calls"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "it is not a regular file"),
        (os.mkdir, "it is a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "it is not a regular file"),
        (lambda path: path.touch(), "is no"),
    ],
)
def test_what_is_no_file_is_not_waited_for(
    make: Callable[[Path], None], reason: str, recorder: Recorder
) -> None:
    make(recorder.folder / "in")
    for verb in ("info", "cut", "anonymize", "convert"):
        output = () if verb == "info" else ("--output", "out")
        done = recorder.trace(verb, "in", *output)
        assert done.returncode == 2
        assert reason in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in recorder.folder.iterdir()] == ["in"]


@pytest.mark.parametrize("verb", ["cut", "anonymize", "convert"])
def test_what_is_read_is_not_overwritten(verb: str, recorder: Recorder, text_trace: Path) -> None:
    before = text_trace.read_bytes()
    (recorder.folder / "link").symlink_to(text_trace)
    for output in (text_trace, "link", "./in.trace"):
        done = recorder.trace(verb, text_trace, "--output", output)
        assert done.returncode == 2 and "it is the file that is read" in done.stderr
    assert text_trace.read_bytes() == before


@pytest.mark.parametrize("operation", ["malloc", "touch", "free"])
def test_a_number_that_no_address_can_have_is_refused(recorder: Recorder, operation: str) -> None:
    (recorder.folder / "far").write_text(f"0 0 {operation} {2**64 - 1} 8\n")
    done = recorder.trace("convert", "far", "--output", "x")
    assert done.returncode == 2 and "line 1: want a block's number below" in done.stderr


def test_chosen_addresses_take_no_longer_than_others(recorder: Recorder) -> None:
    """These met in one slot while the factor that spreads them was known (hours, not seconds)."""
    known = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    lines = (f"1: malloc {known * (i << 44 | i) % 2**64:#x} 8\n" for i in range(1, 400_000))
    (recorder.folder / "chosen").write_text("".join(lines))
    assert recorder.trace("convert", "chosen", "--output", "x").returncode == 0


def test_chosen_pairs_of_threads_take_no_longer_than_others(recorder: Recorder) -> None:
    """These met in one part of the table of pairs: 42 s, instead of 0.3."""
    known, begins, top = 0x9E3779B97F4A7C15, 1 << 63, (1 << 19) // 6
    pairs = (
        (giver, taker)
        for giver in range(1100)
        for taker in range(1100)
        if giver != taker and ((giver << 32 | taker) + begins) * known >> 20 & (1 << 19) - 1 <= top
    )
    lines = [f"{thread}: malloc {(1 << 40) + thread * 16:#x} 8\n" for thread in range(1100)]
    for number, (giver, taker) in enumerate(itertools.islice(pairs, 150_000), 1):
        lines.append(f"{giver}: malloc {number * 16:#x} 8\n{taker}: free {number * 16:#x}\n")
    (recorder.folder / "chosen").write_text("".join(lines))
    words = (recorder.build / "trace" / "hz-trace", "convert", "chosen", "--output", "x")
    assert recorder.run("timeout", SOON_S, *words).returncode == 0


def test_threads_that_wait_for_what_is_missing_take_no_longer_than_others(
    recorder: Recorder,
) -> None:
    """Each of their operations took a look at all threads: 7 s, instead of 0.1."""
    threads = [traces.Thread() for _ in range(10_000)]
    for cell in range(40 * len(threads)):
        threads[cell // 40].add("free", cell, cell=True)
    path = traces.write(recorder.folder / "whole", threads, cells=40 * len(threads))
    os.truncate(path, path.stat().st_size - 8)
    words = (recorder.build / "trace" / "hz-trace", "cut", path, "--output", "x")
    said = recorder.run("timeout", SOON_S, *words).stderr
    assert said.endswith("nothing stands before that\n")


def test_a_workload_whose_threads_share_their_operations_is_refused(recorder: Recorder) -> None:
    head = [8, 5, 10, 99, *(11, 80) * 30, 1]
    calls = [2, 1, 16, 5, 1] * 10
    (recorder.folder / "bad").write_bytes(bytes([*head, *[0] * (80 - len(head)), *calls, 1]))
    done = recorder.trace("convert", "bad", "--output", "made.trace")
    assert done.returncode == 2 and "an operation that several threads have" in done.stderr


def test_threads_may_have_any_numbers(recorder: Recorder) -> None:
    text = "".join(f"{number} 0 malloc {number} 8\n" for number in (999_999, 5, 700_000))
    assert [words for words in converted(recorder, text) if words[0] != "spawn"] == [
        ["malloc", "1", "8"], ["malloc", "2", "8"], ["malloc", "3", "8"],
    ]  # fmt: skip
    assert recorder.info("made.trace")["threads"] == 3


# ---- parts ---------------------------------------------------------------------------------------


def test_a_part_begins_with_the_blocks_that_live_then(recorder: Recorder, text_trace: Path) -> None:
    done = recorder.trace("cut", text_trace, "--output", "part.trace", "--from", "50")
    assert done.returncode == 0, done.stderr
    lines = [words for words in recorder.lines("part.trace") if words[0] not in ("spawn", "join")]
    assert lines == [
        ["calloc", "1", "4096"], ["malloc", "2", "5000000"], ["free", "1"], ["realloc", "2", "8"],
        ["delete", "2"], ["memalign", "3", "12", "32"], ["touch", "3", "12"],
    ]  # fmt: skip
    assert recorder.info("part.trace")["is_part"]


def test_a_part_ends_with_the_blocks_that_live_then(recorder: Recorder, text_trace: Path) -> None:
    recorder.trace("cut", text_trace, "--output", "part.trace", "--to", "0.0000021")
    assert [words[0] for words in recorder.lines("part.trace")] == [
        "malloc", "spawn", "new_aligned", "calloc",
    ]  # fmt: skip


def test_an_anonymous_trace_names_nothing_and_frees_the_same(recorder: Recorder) -> None:
    program = recorder.program("program")
    recorder.record("named.trace", "--", program, "all")
    recorder.trace("anonymize", "named.trace", "--output", "a.trace", "--round-sizes", "16")
    data = (recorder.folder / "a.trace").read_bytes()
    assert program.name.encode() in (recorder.folder / "named.trace").read_bytes()
    assert program.name.encode() not in data and b"program" not in data
    before, after = recorder.lines("named.trace"), recorder.lines("a.trace")
    assert [words[:2] for words in after] == [words[:2] for words in before]
    assert all(int(words[2]) % 16 == 0 for words in after if len(words) > 2)


# ---- damage --------------------------------------------------------------------------------------


@pytest.fixture
def many(recorder: Recorder) -> bytes:
    """A trace of several chunks and threads."""
    recorder.record("many.trace", "--", recorder.program("stress"), 3, 100_000, 5)
    return (recorder.folder / "many.trace").read_bytes()


def test_what_stands_before_the_damage_can_be_kept(recorder: Recorder, many: bytes) -> None:
    whole = recorder.info("many.trace")
    assert whole["damage"] is None
    at = 2 * len(many) // 3
    (recorder.folder / "hurt.trace").write_bytes(many[:at] + bytes([many[at] ^ 1]) + many[at + 1 :])
    hurt = recorder.info("hurt.trace")
    assert "is damaged" in hurt["damage"]
    refused = recorder.trace("convert", "hurt.trace", "--output", "x", "--to", "text")
    assert refused.returncode == 1 and "hztune trace cut" in refused.stderr
    done = recorder.trace("cut", "hurt.trace", "--output", "kept.trace")
    assert done.returncode == 0 and "what stands before that is kept" in done.stderr
    kept = recorder.info("kept.trace")
    assert kept["damage"] is None and kept["is_part"]
    assert 0.3 * whole["calls"] < kept["calls"] < whole["calls"]


def test_where_nothing_stands_before_the_damage_nothing_is_kept(
    recorder: Recorder, text_trace: Path
) -> None:
    whole = bytearray(text_trace.read_bytes())
    whole[len(whole) // 4] ^= 1
    text_trace.write_bytes(whole)
    done = recorder.trace("cut", text_trace, "--output", "kept.trace")
    assert done.returncode == 1 and "nothing stands before that" in done.stderr
    assert not (recorder.folder / "kept.trace").exists()


def test_no_cut_and_no_flipped_bit_is_taken_for_a_whole_trace(
    recorder: Recorder, many: bytes
) -> None:
    seed = 11
    dice = random.Random(seed)
    hurt = recorder.folder / "hurt.trace"
    for _ in range(30):
        at = dice.randrange(8, len(many))
        flipped = many[:at] + bytes([many[at] ^ 1 << dice.randrange(8)]) + many[at + 1 :]
        hurt.write_bytes(dice.choice((many[:at], flipped)))
        done = recorder.trace("info", hurt)
        assert done.returncode in (0, 1, 2), f"seed {seed}, byte {at}: {done.stderr}"
        assert '"damage":null' not in done.stdout, f"seed {seed}, byte {at}"
        done = recorder.trace("cut", hurt, "--output", "kept.trace")
        assert done.returncode in (0, 1, 2), f"seed {seed}, byte {at}: {done.stderr}"


CHUNKS = ("doubled", "left out", "exchanged", "of another thread", "of a thread without end")


@pytest.mark.parametrize("change", CHUNKS)
def test_a_chunk_is_believed_only_where_it_belongs(
    change: str, recorder: Recorder, many: bytes
) -> None:
    """Each has a right checksum; what is kept stands before the first that is out of place."""
    chunks = list(chunks_of(many))
    first = next(i for i, chunk in enumerate(chunks) if chunk_field(chunk, 2) == 1)
    if change == "doubled":
        chunks.insert(first, chunks[first])
    elif change == "left out":
        del chunks[first]
    elif change == "exchanged":
        later = next(i for i, chunk in enumerate(chunks) if chunk_field(chunk, 2) == 2)
        chunks[first], chunks[later] = chunks[later], chunks[first]
    else:
        number = 0 if change == "of another thread" else (1 << 22) - 1
        fields = list(struct.unpack_from(traces.CHUNK, chunks[first]))
        fields[1] = number
        body = struct.pack(traces.CHUNK, *fields[:-1], 0) + chunks[first][32:]
        total = struct.pack("<Q", traces.checksum(body))
        chunks[first] = body[:24] + total + body[32:]
    (recorder.folder / "hurt.trace").write_bytes(many[:96] + b"".join(chunks))
    whole, hurt = recorder.info("many.trace"), recorder.info("hurt.trace")
    assert hurt["threads"] <= whole["threads"] and 0 < hurt["calls"] < whole["calls"]
    done = recorder.trace("cut", "hurt.trace", "--output", "kept.trace")
    assert done.returncode == 0, done.stderr
    assert recorder.info("kept.trace")["damage"] is None


def chunk_field(chunk: bytes, index: int) -> int:
    """A field of the struct before a chunk's words: 1 its thread, 2 its number."""
    return int(struct.unpack_from(traces.CHUNK, chunk)[index])


def chunks_of(data: bytes) -> Iterator[bytes]:
    """The chunks of a trace as they stand in it."""
    at = 96
    while data[at : at + 4] == b"zhck":
        end = at + 32 + 8 * chunk_field(data[at : at + 32], 3)
        yield data[at:end]
        at = end


def test_a_trace_of_another_version_is_refused(recorder: Recorder, many: bytes) -> None:
    (recorder.folder / "new.trace").write_bytes(many[:8] + b"\x09" + many[9:])
    done = recorder.trace("info", "new.trace")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a trace of version 9; this hztune reads version 1" in done.stderr
