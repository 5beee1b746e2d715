"""Traces: recorded by hz-record, read and changed by hz-trace; this room starts both.

`recording` says whether a program can be recorded, and how; `tool` runs hz-trace; `summary` says
what is in a trace, and what a check of it found; `sidecar` keeps that beside the trace.
"""
