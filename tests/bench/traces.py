"""Traces of known content, written as core/trace/trace_format.h lays them down."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

KINDS = {
    "malloc": 1, "calloc": 2, "aligned_alloc": 3, "memalign": 4, "posix_memalign": 5, "valloc": 6,
    "pvalloc": 7, "new": 8, "new_nothrow": 9, "new_aligned": 10, "new_aligned_nothrow": 11,
    "realloc": 15, "free": 16, "free_sized": 17, "free_aligned_sized": 18, "delete": 19,
    "delete_sized": 20, "delete_aligned": 21, "delete_sized_aligned": 22, "fetch": 24, "hand": 25,
    "spawn": 26, "join": 27,
}  # fmt: skip
FIRST_THAT_CALLS_NOTHING = KINDS["fetch"]

HEADER = "<8sIIQQIIIIQQQQQQ"
CHUNK = "<IIIIQQ"
THREAD = "<QQQQIIII16s"
PLACE = "<QII"

HAS_TIME = 1

CHUNK_WORDS = 8192
_MASK = (1 << 64) - 1


def checksum(data: bytes, start: int = 1) -> int:
    """The checksum of whole words."""
    for (word,) in struct.iter_unpack("<Q", data):
        product = (start ^ word) * 0x9E3779B97F4A7C15
        start = (product & _MASK) ^ (product >> 64) ^ 0xD1B54A32D192ED03
    return start


@dataclass
class Thread:
    """One thread's operations, in order; each method appends one."""

    spawned: bool = False
    words: list[tuple[int, ...]] = field(default_factory=list)
    calls: int = 0
    slots: int = 0
    cells: int = 0
    handed: int = 0

    def add(
        self, kind: str, operand: int = 0, size: int = 0, *, cell: bool = False, align: int = 0,
        delta_ns: int = 0,
    ) -> Thread:  # fmt: skip
        number = KINDS[kind]
        exponent = 0
        while delta_ns >> exponent >= 1 << 11:
            exponent += 1
        digits = delta_ns >> exponent
        wide = bool(align or size >> 20 or operand >> 22)
        low = number | cell << 5 | wide << 6 | exponent << 7 | digits << 11
        low |= (operand & 0x3FFFFF) << 22 | (size & 0xFFFFF) << 44
        more = size >> 20 | operand >> 22 << 28 | align << 38
        self.words.append((low, more) if wide else (low,))
        self.calls += number < FIRST_THAT_CALLS_NOTHING
        if not cell and number < KINDS["spawn"]:
            self.slots = max(self.slots, operand + 1)
        if cell or kind in ("fetch", "hand"):
            place = operand if cell else size
            self.cells = max(self.cells, place // 8 * 8 + 8)
            self.handed += kind in ("fetch", "free")
        return self

    def chunks(self) -> list[list[int]]:
        """The words in chunks; an operation is whole."""
        found: list[list[int]] = []
        for operation in self.words:
            if not found or len(found[-1]) + len(operation) > CHUNK_WORDS:
                found.append([])
            found[-1] += operation
        return found


def write(
    path: Path,
    threads: Sequence[Thread],
    /,
    notes: str = '{"ending":"complete"}',
    **header: int,
) -> Path:
    """Writes a trace and returns its path; `header`: fields that are to be other than they are."""
    body, places, directory = b"", b"", b""
    count = 0
    for number, thread in enumerate(threads):
        chunks = thread.chunks()
        for index, words in enumerate(chunks):
            data = struct.pack(f"<{len(words)}Q", *words)
            about = (0x6B63687A, number, index, len(words), 0)
            total = checksum(data, checksum(struct.pack(CHUNK, *about, 0)))
            places += struct.pack(PLACE, 96 + len(body), number, len(words))
            body += struct.pack(CHUNK, *about, total) + data
        directory += struct.pack(
            THREAD, 0, 0, sum(map(len, chunks)), thread.calls, thread.slots, len(chunks), count,
            thread.spawned, f"thread {number}".encode(),
        )  # fmt: skip
        count += len(chunks)
    text = notes.encode(errors="surrogateescape")
    directory += places + text + bytes(-len(text) % 8)
    directory += struct.pack("<Q", checksum(directory))
    offset = 96 + len(body)
    fields = {
        "magic": b"HZTRACE\n",
        "version": 1,
        "flags": 0,
        "file_bytes": offset + len(directory),
        "directory_offset": offset,
        "threads": len(threads),
        "chunks": count,
        "cells": max(thread.cells for thread in threads),
        "notes_bytes": len(text),
        "calls": sum(thread.calls for thread in threads),
        "handed": sum(thread.handed for thread in threads),
        "duration": 0,
        "peak_bytes": 0,
        "peak_blocks": 0,
    }
    values = (fields | header).values()
    total = checksum(struct.pack(HEADER, *values, 0))
    path.write_bytes(struct.pack(HEADER, *values, total) + body + directory)
    return path


# ---- some traces ---------------------------------------------------------------------------------


def churn(operations: int, live: int = 100, size: int = 64) -> Thread:
    """A thread that fills `live` slots and then replaces one after the other; all are freed."""
    thread = Thread()
    for slot in range(live):
        thread.add("malloc", slot, size)
    for number in range((operations - 2 * live) // 2):
        slot = number * 7919 % live
        thread.add("free", slot, size).add("malloc", slot, size)
    for slot in range(live):
        thread.add("free", slot, size)
    return thread


def conveyor(blocks: int, cells: int = 8, size: int = 48) -> list[Thread]:
    """One thread allocates, another one that it starts and joins frees; at most `cells` between."""
    giver, taker = Thread().add("spawn", 1), Thread(spawned=True)
    for number in range(blocks):
        giver.add("malloc", number % cells, size, cell=True)
        taker.add("free", number % cells, size, cell=True)
    giver.add("join", 1)
    return [giver, taker]
