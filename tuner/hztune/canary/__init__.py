"""The canary: do the units of a fleet that got a change fare better than those that did not?

`groups` draws which get it, `spec` says what is judged, `sources` fetch the rows, `timetable` cuts
them into blocks of time, `effects` finds an effect with an interval that holds at all times,
`verdict` decides, `vigil` watches until it is decided, and `told` says it on a page.
"""
