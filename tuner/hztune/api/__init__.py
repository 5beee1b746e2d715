"""What hztune does, one function each: the command line calls these, and so may your Python.

    from hztune import api

    result = api.tune(api.request("larson", threads=32, budget="60s"))
    print(result.profile.claim.ratio, result.profile.params)
    api.report(result.folder)

A study, a comparison and a verification measure: they take seconds to hours and start processes.
Every error is an `HztuneError` whose text is one sentence: a `UsageError` where something that was
asked for does not exist or is not legal. Modules are imported when a function needs them.
"""

from hztune.api.comparisons import (
    compare,
    comparison_json,
    comparison_text,
    contenders,
    draw,
    failing,
    named_programs,
    rows,
    ruling,
    write_comparison,
)
from hztune.api.listings import (
    allocator_names,
    allocators,
    doctor,
    find_format,
    formats,
    machine,
    parameters,
    paths,
    spaces,
    workloads,
)
from hztune.api.processes import (
    change_process,
    diagnose,
    process_statistics,
    trim_process,
)
from hztune.api.profiles import (
    changes,
    command_of,
    differences,
    due,
    environment,
    examine,
    export,
    history,
    load_profile,
    profile_json,
    profile_lines,
    profiles_in,
    unreadable_history,
    verify,
)
from hztune.api.studies import (
    optuna_storage,
    plan,
    program,
    report,
    request,
    sample_columns,
    samples,
    summary,
    summary_lines,
    tune,
)
from hztune.api.suggestions import suggest, suggestion_json, suggestion_text
from hztune.api.traces import (
    anonymize_trace,
    convert_trace,
    cut_trace,
    recorder_command,
    trace_info,
    trace_text,
)

__all__ = [
    "allocator_names",
    "allocators",
    "anonymize_trace",
    "change_process",
    "changes",
    "command_of",
    "compare",
    "comparison_json",
    "comparison_text",
    "contenders",
    "convert_trace",
    "cut_trace",
    "diagnose",
    "differences",
    "doctor",
    "draw",
    "due",
    "environment",
    "examine",
    "export",
    "failing",
    "find_format",
    "formats",
    "history",
    "load_profile",
    "machine",
    "named_programs",
    "optuna_storage",
    "parameters",
    "paths",
    "plan",
    "process_statistics",
    "profile_json",
    "profile_lines",
    "profiles_in",
    "program",
    "recorder_command",
    "report",
    "request",
    "rows",
    "ruling",
    "sample_columns",
    "samples",
    "spaces",
    "suggest",
    "suggestion_json",
    "suggestion_text",
    "summary",
    "summary_lines",
    "trace_info",
    "trace_text",
    "trim_process",
    "tune",
    "unreadable_history",
    "verify",
    "workloads",
    "write_comparison",
]
