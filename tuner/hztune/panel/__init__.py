"""The panel: what a winner does to programs that it was not tuned for.

`workloads` names the other workloads and makes what measures them; `judging` says of pairs whether
harm is shown; `blame` finds the parameters that do it; `examination` is the whole of it.
"""

from hztune.panel.examination import Examination, LeftOut, Panel
from hztune.panel.judging import Harm, Seen
from hztune.panel.workloads import PanelExecutor, PanelWorkload, make

__all__ = [
    "Examination",
    "Harm",
    "LeftOut",
    "Panel",
    "PanelExecutor",
    "PanelWorkload",
    "Seen",
    "make",
]
