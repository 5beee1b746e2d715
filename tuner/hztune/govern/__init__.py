"""The governor: the allocator of a living process follows its load.

`observe` reads the process, `context` says what its load is, `learner` knows what a setting is
worth there and what to try, `governor` decides from one look to the next, and `steer` does it, with
a lease that the process itself ends if the governor is gone. `metrics` shows it to Prometheus.
"""
