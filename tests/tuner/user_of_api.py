"""A script as users write it, which mypy reads with the package: each `ignore` must be needed."""

from hztune import __version__, api

server = api.program(server="redis-server --port {port}", load="load {port}", idle_s=1)
api.program(("ls",), warmups=3)  # type: ignore[call-arg]
api.program(("ls",), timeout="1m")  # type: ignore[arg-type]
api.named_programs(["a=./a"], metric="x")  # type: ignore[call-arg]

asked = api.request("larson", threads=2, budget="60s", seed=2, out="found")
api.request("larson", budgett="60s")  # type: ignore[call-arg]
api.request("larson", trials="3")  # type: ignore[arg-type]
api.request("larson", objective="p50")  # type: ignore[arg-type]

found = api.compare(api.contenders(["none", "hz"]), [server], budget_s=60)
for row in found.standings:
    print(__version__, found.stopped, [each.speed and each.speed.ratio.low for each in row.all])
left, stopped = found  # type: ignore[misc]
