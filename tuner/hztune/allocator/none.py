"""The unchanged program: today's state, from which every gain is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hztune.allocator.base import Adapter, Config, Environment, Installed
from hztune.params import Param, Value


class Unchanged(Adapter):
    """No allocator, no variable: the program as its user starts it today."""

    name = "none"

    def installed(self) -> Installed:
        """Returns an entry without a library: any program runs unchanged."""
        return Installed(self.name, "", "", Path(), "", "")

    def knobs(self, installed: Installed) -> tuple[Param, ...]:
        """Returns nothing: what is left unchanged has no knobs."""
        return ()

    def variables(self) -> tuple[str, ...]:
        """Returns nothing: the user's own variables are part of today's state."""
        return ()

    def settings(self, config: Config, installed: Installed) -> Environment:
        """Returns nothing to set."""
        return {}

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """Returns nothing: there is no setting to read."""
        return {}

    def requested(self, environment: Mapping[str, str], installed: Installed) -> dict[str, Value]:
        """Returns nothing: there is no setting to ask for."""
        return {}
