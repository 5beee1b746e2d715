"""What hztune does, one function each: the command line calls these, and so may your Python.

    from hztune import api

    result = api.tune(api.request("larson", threads=32, budget="60s"))
    print(result.profile.claim.ratio, result.profile.config)
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
from hztune.api.profiles import (
    changes,
    differences,
    draw_history,
    due,
    environment,
    examine,
    export,
    history,
    load_profile,
    profile_json,
    profile_lines,
    profiles_in,
    verify,
    write_timer,
)
from hztune.api.studies import (
    forget,
    join,
    optuna_storage,
    place,
    plan,
    program,
    report,
    request,
    samples,
    summary,
    summary_lines,
    tune,
    tune_shared,
)
from hztune.api.traces import (
    anonymize_trace,
    check_trace,
    convert_trace,
    cut_trace,
    recorder_command,
    trace_check_text,
    trace_info,
    trace_text,
)

__all__ = [
    "allocator_names",
    "allocators",
    "anonymize_trace",
    "changes",
    "check_trace",
    "compare",
    "comparison_json",
    "comparison_text",
    "contenders",
    "convert_trace",
    "cut_trace",
    "differences",
    "doctor",
    "draw",
    "draw_history",
    "due",
    "environment",
    "examine",
    "export",
    "find_format",
    "forget",
    "formats",
    "history",
    "join",
    "load_profile",
    "machine",
    "named_programs",
    "optuna_storage",
    "parameters",
    "paths",
    "place",
    "plan",
    "profile_json",
    "profile_lines",
    "profiles_in",
    "program",
    "recorder_command",
    "report",
    "request",
    "rows",
    "ruling",
    "samples",
    "spaces",
    "summary",
    "summary_lines",
    "trace_check_text",
    "trace_info",
    "trace_text",
    "tune",
    "tune_shared",
    "verify",
    "workloads",
    "write_comparison",
    "write_timer",
]
