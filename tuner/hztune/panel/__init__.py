"""The panel: what a winner does to programs that it was not tuned for.

`workloads` names the other workloads and makes what measures them; `judging` says of pairs whether
harm is shown; `examination` finds the step that does it, and is the whole of it.
"""

from hztune.panel.examination import Examination, Panel
from hztune.panel.judging import Harm, Seen
from hztune.panel.workloads import PanelExecutor, PanelWorkload, make

__all__ = [
    "Examination",
    "Harm",
    "Panel",
    "PanelExecutor",
    "PanelWorkload",
    "Seen",
    "make",
]
