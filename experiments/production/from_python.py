"""A study and its verification, and a comparison of what a server keeps at rest, from Python."""

import hztune

program = hztune.program(["./phases", "3"])
result = hztune.tune(program=program, allocator="glibc", max_rss="0.75x", budget="60s", out="found")
claim = result.profile.claim
print(claim.verdict, (claim.ratio, claim.ci_low, claim.ci_high), dict(result.profile.params))

checked = hztune.verify("found/profile.json", program=program, budget="15s")
print(checked.answer, checked.interval and checked.interval.ratio)

redis = hztune.program(
    server="redis-server --port {port} --save '' --dir {dir}",
    load="sh fill-and-delete.sh {port}",
    rounds=3,
    idle_s=1,
)
sides = ["none", "jemalloc:dirty_decay_ms=500"]
compared = hztune.compare(sides, program=redis, pairs=4, budget="60s")
for one in compared.standings[0].all:
    print(one.name, one.speed, one.kept, one.keeps)
