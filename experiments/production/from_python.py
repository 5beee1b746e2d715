"""A study and its verification, and a comparison of what a server keeps at rest, from Python."""

from hztune import api

program = api.program(("./phases", "3"))
result = api.tune(
    api.request(program=program, allocator="glibc", max_rss="0.75x", budget="60s", out="found")
)
claim = result.profile.claim
print(claim.verdict, (claim.ratio, claim.ci_low, claim.ci_high), dict(result.profile.params))

tuned = api.load_profile("found/profile.json")
checked = api.verify(tuned, programs=[program], budget_s=15)
print(checked.answer, checked.interval and checked.interval.ratio)
print([entry.answer for entry in api.history(tuned)])

redis = api.program(
    server="redis-server --port {port} --save '' --dir {dir}",
    load="sh fill-and-delete.sh {port}",
    rounds=3,
    idle_s=1,
)
sides = api.contenders(["none", "jemalloc:dirty_decay_ms=500"])
compared = api.compare(sides, [redis], pairs=4, budget_s=60)
for one in compared.standings[0].all:
    print(one.name, one.speed, one.kept, one.keeps)
