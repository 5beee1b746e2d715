"""Measurements as they are kept: rows, the log of a study, and the storage that workers share."""

from hztune.store.peers import Alone, EndedElsewhere, News, Peers
from hztune.store.rows import SCHEMA, Evidence, Nowhere, Plan, Rows, Sink
from hztune.store.samples import Recording, SampleStore, blocks, blocks_of, differences, recording

__all__ = [
    "SCHEMA",
    "Alone",
    "EndedElsewhere",
    "Evidence",
    "News",
    "Nowhere",
    "Peers",
    "Plan",
    "Recording",
    "Rows",
    "SampleStore",
    "Sink",
    "blocks",
    "blocks_of",
    "differences",
    "recording",
]
