"""What hztune does, one function each, as the command line calls them; they may change with it.

What stays is in `hztune` itself; `help(hztune)` tells what its calls raise and how long they take.
A module is imported when one of its functions is asked for.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hztune.allocator import names as allocator_names
    from hztune.allocator import states as allocators
    from hztune.api.functions import (
        differences,
        environment,
        export,
        formats,
        machine,
        parameters,
        paths,
        plan,
        request,
        spaces,
        tune,
    )
    from hztune.api.stable import verify
    from hztune.attach import (
        change_process,
        diagnose,
        process_statistics,
        process_text,
        trim_process,
    )
    from hztune.canary.groups import assigned, group_lines
    from hztune.canary.spec import load as canary
    from hztune.canary.told import verdict_page as canary_page
    from hztune.canary.told import verdict_picture as canary_picture
    from hztune.canary.vigil import watched as judge_canary
    from hztune.comparing.comparison import dumps as comparison_json
    from hztune.comparing.conduct import compare
    from hztune.comparing.contenders import parse as contenders
    from hztune.comparing.table import text as comparison_text
    from hztune.comparing.table import write as write_comparison
    from hztune.doctor import examine as doctor
    from hztune.export import find as find_format
    from hztune.export import profile_lines
    from hztune.govern.metrics import exposition as metrics_text
    from hztune.govern.metrics import server as metrics_server
    from hztune.govern.policy import load as policy
    from hztune.govern.policy import policy_of as policy_of_front
    from hztune.govern.policy import shipped as policies
    from hztune.govern.steer import governed_child
    from hztune.govern.steer import steered as govern
    from hztune.measure.program import described as program
    from hztune.measure.program import named as named_programs
    from hztune.profile import dumps as profile_json
    from hztune.profile import load as load_profile
    from hztune.recordings import changed_trace, recorder_command, trace_info, trace_text
    from hztune.report import write as report
    from hztune.report import write_storage as optuna_storage
    from hztune.result.summary import summary_json as summary
    from hztune.result.summary import summary_lines
    from hztune.store.kept_command import read as command_of
    from hztune.suggest import suggest, suggestion_json, suggestion_text
    from hztune.verifying.history import changes, due, history, profiles_in, surroundings
    from hztune.verifying.running import examine
    from hztune.workload import listing as workloads

_HOMES = {
    alias.asname or alias.name: (str(node.module), alias.name)
    for node in ast.walk(ast.parse(Path(__file__).read_text()))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hztune.")
    for alias in node.names
}
"""The imports above, which type checkers carry out at once: name -> module and name there."""

__all__ = [
    "allocator_names", "allocators", "assigned", "canary", "canary_page", "canary_picture",
    "change_process", "changed_trace", "changes", "command_of", "compare", "comparison_json",
    "comparison_text", "contenders", "diagnose", "differences", "doctor", "due", "environment",
    "examine", "export", "find_format", "formats", "govern", "governed_child", "group_lines",
    "history", "judge_canary", "load_profile", "machine", "metrics_server", "metrics_text",
    "named_programs", "optuna_storage", "parameters", "paths", "plan", "policies", "policy",
    "policy_of_front", "process_statistics", "process_text", "profile_json", "profile_lines",
    "profiles_in", "program", "recorder_command", "report", "request",
    "spaces", "suggest", "suggestion_json", "suggestion_text", "summary", "summary_lines",
    "surroundings", "trace_info", "trace_text", "trim_process", "tune", "verify", "workloads",
    "write_comparison",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"hztune.api has no {name!r}")
    module, own_name = _HOMES[name]
    return getattr(import_module(module), own_name)
