"""Several workers on one study: what a worker asks of the others, and the storage that they share.

`peers` is the question, with the answer of somebody who works alone; `database` a connection that
survives restarts of its server; `study` a study in it, `worker` one who takes part; `owners` says
which of them are alive. Only `database`, `study` and `worker` know SQLAlchemy.
"""

from hztune.shared.peers import Alone, EndedElsewhere, News, Peers

__all__ = ["Alone", "EndedElsewhere", "News", "Peers"]
