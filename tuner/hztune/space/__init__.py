"""Search spaces: which configurations may be proposed, read from search_spaces/*.toml."""

from hztune.space.core import AnySpace, Choice, ConfigDict, Dimension, Indices, Preset, Rule, Space
from hztune.space.load import find, is_file, load, machine_facts

__all__ = [
    "AnySpace", "Choice", "ConfigDict", "Dimension", "Indices", "Preset", "Rule", "Space",
    "find", "is_file", "load", "machine_facts",
]  # fmt: skip
