"""What cannot be asked is refused in one sentence with the way out, before anything is measured."""

import shlex

import pytest
from tests.bench import traces

from hztune import profile
from hztune.measure import program

from .conftest import put

# A command line, and a part of what is said of it.
REFUSED = r"""
params --jsn | --jsn
export profile.json | --format
show | PROFILE
run profile.json | PROGRAM
run profile.json -- no-such-program | no-such-program
dragons | 'dragons' is no command of hztune
larson | it is a workload: hztune --workload larson
tune larson | hztune --workload larson
--threads 2 larson | hztune --workload larson
larsen | did you mean hztune --workload larson?
/bin/sh | it is a program: hztune -- /bin/sh
BUILT | it is a program: hztune -- ./BUILT
-- 'cat x | sort' | so write: sh -c 'cat x
ODD.toml | not executable: hztune -- INTERPRETER ODD.toml
tune | --workload is missing
tune -w remote --threads 0 | threads
tune -w remote --threads 2 --budget 1s | --budget is 1.0; legal is a number from 20 to 604800
tune -w remote --threads 2 --trials 0 | --trials is 0
tune -w remote --threads 2 --max-loss 2% | is for several workloads or commands
tune -w remote --threads 2 --seed -1 | --seed
tune -w remote --threads 2 --resume --out absent | absent
doctor --pid me | 'me' is no whole number
compare none glibc --rests=x --idle-s=60 --budget=20s -- true | takes 480 s in 4 runs of each
verify --all . --cpus 1 | write it into the .args
verify --all . profile.json | leave these out
verify --all '' | --all is empty; give it a value
verify '' | PROFILE is empty; give it a value
verify --due profile.json | --all DIR, with which
verify | give a PROFILE, or --all DIR
tune -w remote --threads 2 --out there | there
tune -w remote --threads 2 --out there --resume | there
verify --all there | there is no profile in
verify --all there/none | cannot read the folder
compare none glibc | there is nothing to measure
compare none glibc -- | no program after --
compare none glibc sort | put -- before it
compare none glibc -- no-such-program | no program 'no-such-
compare none glibc -- /sbin/ldconfig | static program
compare none -- true | two contenders
compare none glibc -w larson -- true | exclude each other
compare none glibc --command a=true -- true | exclude each
compare none glibc --threads 2 -- true | --threads and --param
compare none hz -w larson --threads 2 -p remote=90 | no parameter of larson 'remote'
tune -w larson -- | no program after --
tune -w larson --by turns | --by is for a program
tune -w larson --metric-regex (x) | --metric-regex is for a program
tune --server '' | --server is empty
tune --no-worse 2% -- true | No such option
compare none glibc --server 'true {port}' --load ' ' | --load is empty
compare none glibc --server 'absent {port}' --load 'true {port}' | no program 'absent'
compare none glibc --server 'true {port}' | --server needs --load
compare none glibc --load true -- true | need --server
compare none glibc --metric-regex '(x)' --metric-cmd y -- true | exclude each other
compare none glibc --lower-is-better -- true | needs --metric-regex
compare none glibc --csv absent/x.csv -- true | --csv 'absent/x.csv': there is no folder 'absent'
compare none glibc --csv there -- true | not a regular file
compare none glibc -- 'sleep 1' | write its words apart
compare none glibc -- A=1 true | env A=1 PROGRAM
compare none glibc --command 'a=true | true' | has '|', and no shell
compare none glibc --server 'true {port} &' --load 'true {port}' | has '&', and no shell reads it
compare 'true > x' B=true -- {} | the contender 'true > x' has '>', and no shell reads it
compare none glibc --command a= | --command a= is empty
compare none glibc --command "a='x" | cannot be read
compare none glibc --command a=true --command a=false | gives the name 'a' twice
compare none glibc -- {} | no program 'none'; where the program
compare A=true A=false -- {} | two contenders are called 'A'
compare true false --command a={} --command b=true | must begin every --command or none
compare none glibc none --no-worse 2% -- true | there are 3; give the base
compare none glibc --junit x.xml -- true | --no-worse 2%
compare none glibc --json --markdown -- true | exclude each other
compare none glibc --no-worse 2% --pairs 2 -- true | --pairs is 2; legal is a number from 4 to 100
compare none glibc --out there -- true | choose another
compare none glibc --resume --out absent -- true | no comparison to resume in 'absent'
compare none glibc --resume -- true | give it with --out DIR
tune -- {} | stands for the contenders
tune --command a=true --workload larson | not for a program of your own
tune --command a=true --server x --load y --ready-port 1 | exclude each other
compare default hz:shard=4 -- true | shards
compare default hz:shards=3 -- true | shards
compare default hz:shards -- true | KEY=VALUE
compare default absent.json -- true | absent.json
compare default own=/absent/lib.so -- true | no such file
compare default 'a b=/lib.so' -- true | the name of a contender 'a b': legal
tune --allocator any --space hz -- true | --space is for one
tune -w larson --threads 2 --allocator none | no parameters
tune -- /sbin/ldconfig | static program
tune -- no-such | no program 'no-such'
tune --objective p99 -- true | --metric-regex
tune --allocator rpmalloc,hz -- true | rpmalloc is not
tune --objective kept -- true | --rests REGEX
tune -w larson,remote --threads 2 --objective kept | commands and --objective kept
tune -w larson --threads 2 --objective kept --pareto throughput,kept | exclude each other
tune -w larson --threads 2 --objective kept --max-kept 0.7 | --max-kept '0.7'
tune -w larson --threads 2 --objective kept --idle-s -1 | --idle-s is -1
tune -w trace:ls.trace --objective kept | not measured of a trace
tune -w larson --threads 2 --pareto rss | --pareto 'rss': legal is throughput,rss
tune -w larson --threads 2 --prove-on -- true | --prove-on is for one trace
tune -w trace:ls.trace --pareto throughput,rss --prove-on -- true | --prove-on and --pareto exclude
tune -w trace:ls.trace --max-rss 1.1x --prove-on -- true | --prove-on and --max-rss exclude
tune -w trace:ls.trace --prove-on -- /nowhere/program | there is no program
tune -w larson --threads 2 --objective p50 | p50
tune -w larson --threads 2 --seed 9223372036854775808 | --seed
tune -w larson --threads 2 --term 0 | --term is 0; legal is a number from 1 to 36500
tune --timeout nan -- true | --timeout
tune --server 's {port}' --load 'l 7777' | --load 'l 7777' has not
tune --server 's 7777' --load 'l {port}' --ready true | --server has not
tune --server 's {port}' --load 'l {port}' --ready-port 7777 | --ready-port says 7777
tune --server 's {dir}' --load 'l {dir}' | nothing says when the server answers
tune --server 'redis-server --port 1' --load true | --ready COMMAND or --ready-port N
tune --server redis-server --ready-port 1 | --load
tune --server "'redis" --load 'l {port}' --ready x | cannot be read
tune --server 'true -p 1' --load true --ready true --by turns | a port of its own for each copy
tune --metric-regex '(' -- true | --metric-regex
tune --rounds 2 -- true | --rests REGEX
tune --idle-s 2 -- true | --rests REGEX
tune --rests ^x --by turns --rounds 2 -- true | by runs
tune --rests '(' --rounds 2 -- true | no regular expression
tune --rests ^x --rounds 0 -- true | legal is a number from 1
tune --server 's {port}' --load 'l {port}' --rests ^x --rounds 2 | rests when its --load
tune --input /absent -- true | --input '/absent' cannot be read: No such file
tune --input /dev/zero -- true | is not a regular file
tune --input ODD.toml --rests ^x -- true | told on stdin to go on
tune --server 's {port}' --load 'l {port}' --input ODD.toml | is for a program
tune --cpus 1 --by turns -- true | exclude each other
tune --cpus 0 -- true | --cpus is 0
tune --cpus 4000 -- true | --cpus is 4000, and hztune may use
tune --memory 512 -- true | --memory '512': legal is a size with its unit
tune --memory 1.5x -- true | legal is a size
tune --memory 10K -- true | from 1M to
tune --memory 99999999999G -- true | legal is a size from 1M to
tune --on tcp://host:1 --panel -w larson --threads 2 | and --on exclude each other
tune --on tcp://host:1 --metric-cmd x -- true | --metric-cmd and --on exclude each other
tune --server s --load l --ready-port 1 -- true | one of them
suggest | there is nothing to look at: hztune suggest -- ./program
suggest ls | 'ls' is no command of hztune
suggest -- /no/x | there is no program '/no/x'
suggest --for 2h -- ls | --for is 7200.0; legal is a number from 0.2
suggest --command a=ls --command b=ls | give one program
suggest -- {} x | stands for the contenders
record -o x -- /sbin/ldconfig | it cannot be recorded
record -o x | want either a program after -- or --pid N
record -o x --pid 1 -- ls | want either a program
record -o ./true -- ./true | the program that is recorded
trace | Missing command (see `hztune trace --help`)
trace info cut.trace | cut.trace is cut: it should have
trace convert ls.trace -o x --to foo | --to foo: want trace
trace cut ls.trace -o x --from 2 --to 1 | later than --from
trace cut ls.trace -o x --from 100 | --from 100: ls.trace lasts 0 s
trace anonymize ls.trace -o x --round-sizes 3 | a power of two
"""


@pytest.fixture
def folder(make_profile, tmp_path):
    """A profile, a program, a wrong space, the samples of others, and traces."""
    profile.save(make_profile(), tmp_path / "profile.json")
    (tmp_path / "BUILT").touch(mode=0o755)
    odd = 'schema = 1\nallocator = "hz"\n[parameters.magazin_cap]\n'
    put(tmp_path, {"there/samples.jsonl": "the work of somebody else\n", "ODD.toml": odd})
    path = traces.write(tmp_path / "ls.trace", [traces.churn(400)], flags=traces.HAS_TIME)
    (tmp_path / "cut.trace").write_bytes(path.read_bytes()[:-100])
    (tmp_path / "true").symlink_to("/bin/true")
    return tmp_path


def sizes(folder):
    return {path: path.lstat().st_size for path in folder.rglob("*")}


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_what_cannot_be_asked_gets_one_sentence(line, folder, hztune_here, monkeypatch):
    monkeypatch.setattr(program, "can_have_networks", lambda: False)
    words, said = line.rsplit(" | ", 1)
    before = sizes(folder)
    done = hztune_here(*shlex.split(words))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("hztune: ") and said in done.stderr
    assert sizes(folder) == before
