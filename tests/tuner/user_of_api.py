"""A script as users write it, which mypy reads with the package: each `ignore` must be needed."""

import subprocess
import time

import hztune


def seconds(environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(["./program"], env=environment, check=True)
    return time.perf_counter() - began


result: hztune.Result = hztune.tune(measure=seconds, allocator="jemalloc", budget="60s")
print(hztune.__version__, result.profile.claim.ratio, result.blocks["ratio"])
hztune.tune("larson", budgett="60s")  # type: ignore[call-arg]
hztune.tune("larson", trials="3")  # type: ignore[arg-type]
hztune.tune("larson", objective="p50")  # type: ignore[arg-type]
hztune.tune(measure=lambda: 1.0)  # type: ignore[arg-type, misc]
hztune.tune(measure=str)  # type: ignore[arg-type]
print(result.profile.claim.verdikt)  # type: ignore[attr-defined]
result.profile = result.profile  # type: ignore[misc]

server = hztune.program(server="redis-server --port {port}", load="load {port}", idle_s=1)
hztune.program(["ls"], warmups=3)  # type: ignore[call-arg]
hztune.program(["ls"], timeout="1m")  # type: ignore[arg-type]
hztune.tune(program=[server, server], cpus=1.5)
hztune.tune(program=["./server", 8080])  # type: ignore[arg-type]

found = hztune.compare(["none", "hz"], program=server, budget=60, no_worse="2%")
for row in found.standings:
    print(found.ruling, found.stopped, [each.speed and each.speed.ratio.low for each in row.all])
hztune.compare(["none", "hz"], program=server, pair=3)  # type: ignore[call-arg]
left, stopped = found  # type: ignore[misc]

tuned = hztune.load_profile("profiles/web.json")
print(hztune.verify(tuned, program=["./web"]).answer == "holds", hztune.environment(tuned)["PATH"])
hztune.verify(tuned, budgets=3)  # type: ignore[call-arg]
