"""Traces: recorded by hz-record, read and changed by hz-trace; this room starts both.

`recording` says whether a program can be recorded, and how; `tool` runs hz-trace; `overview`
says what is in a trace.
"""
