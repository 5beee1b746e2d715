"""What cannot be asked is refused in one sentence with the way out, before anything is measured."""

from __future__ import annotations

import os

import pytest
from tests.bench import traces

from hztune.api import request as requested
from hztune.errors import UsageError
from hztune.measure import program
from hztune.measure.program import described
from hztune.tuning.request import understand

SERVER = {"server": "s {port}", "load": "l {port}"}
FIXED = {"server": "redis-server --port 1", "load": "true"}

OF_PROGRAMS = {
    "a load that cannot find the server": (
        {"server": "s {port}", "load": "l 7777"}, "--load 'l 7777' has not",
    ),
    "a server that cannot know the port": (
        {"server": "s 7777", "load": "l {port}", "ready": "true"}, "--server has not",
    ),
    "another port": ({**SERVER, "ready_port": 7777}, "--ready-port says 7777"),
    "nothing that says when it answers": (
        {"server": "s {dir}", "load": "l {dir}"}, "nothing says when the server answers",
    ),
    "neither a port nor a command": (FIXED, "--ready COMMAND or --ready-port N"),
    "a server without load": ({"server": "redis-server", "ready_port": 1}, "--load"),
    "a load without a server": ({"load": "true"}, "need --server"),
    "half a quotation": ({**SERVER, "server": "'redis", "ready": "x"}, "cannot be read"),
    "turns of a fixed port": (
        {**FIXED, "ready": "true", "by": "turns"}, "needs a port of its own for each copy",
    ),
    "two metrics": ({"metric_regex": "(1)", "metric_cmd": "cat"}, "exclude"),
    "a metric without a group": ({"metric_regex": "1"}, "--metric-regex.* with a group"),
    "a metric that is no expression": ({"metric_regex": "("}, "--metric-regex"),
    "rounds that nothing tells apart": ({"rounds": 2}, "--rests REGEX"),
    "a time of rest without a rest": ({"idle_s": 2.0}, "--rests REGEX"),
    "turns of what rests": ({"rests": "^x", "by": "turns", "rounds": 2}, "by runs"),
    "a rest that is no expression": ({"rests": "(", "rounds": 2}, "no regular expression"),
    "no round": ({"rests": "^x", "rounds": 0}, "legal is a number from 1"),
    "a rest before a server's load": (
        {**SERVER, "rests": "^x", "rounds": 2}, "rests when its --load",
    ),
    "an input that is not there": (
        {"input": "/absent"}, "--input '/absent' cannot be read: No such file",
    ),
    "a directory as input": ({"input": "/"}, "is not a regular file"),
    "a device as input": ({"input": "/dev/zero"}, "is not a regular file"),
    "an input of what rests": ({"input": __file__, "rests": "^x"}, "told on stdin to go on"),
    "an input of a server": ({**SERVER, "input": __file__}, "is for a program"),
    "turns in a container": ({"cpus": 1.0, "by": "turns"}, "exclude each other"),
    "no CPU": ({"cpus": 0.0}, "--cpus is 0"),
    "more CPUs than there are": ({"cpus": 4000.0}, "--cpus is 4000, and hztune may use"),
    "memory without a unit": (
        {"memory": "512"}, "^--memory '512': legal is a size with its unit",
    ),
    "negative memory": ({"memory": "-5M"}, "legal is a size with its unit"),
    "memory as a multiple": ({"memory": "1.5x"}, "legal is a size"),
    "too much memory": ({"memory": "99999999999G"}, "legal is a size from 1M to"),
    "too little memory": ({"memory": "10K"}, "from 1M to"),
}  # fmt: skip


@pytest.mark.parametrize("what", OF_PROGRAMS)
def test_a_program_cannot_be_measured_with(what, monkeypatch):
    monkeypatch.setattr(program, "can_have_networks", lambda: False)
    options, said = OF_PROGRAMS[what]
    with pytest.raises(UsageError, match=said):
        described(() if "server" in options else ("true",), **options)


TRUE = described(("true",))
BENCH = {"workload": "larson", "threads": 2}
KEPT = {**BENCH, "objective": "kept"}
TRACE = {"workload": "trace", "prove_on": TRUE}
OF_STUDIES = {
    "a static program": ({"program": described(("/sbin/ldconfig",))}, "static program"),
    "no such program": ({"program": described(("no-such",))}, "no program 'no-such'"),
    "a goal that only workloads have": ({"program": TRUE, "objective": "p99"}, "--metric-regex"),
    "a space of one for all allocators": ({"program": TRUE, "space": "hz"}, "--space is for one"),
    "an allocator that is missing": (
        {"program": TRUE, "allocator": "rpmalloc,hz"}, "rpmalloc is not",
    ),
    "kept memory of a program that does not say when it rests": (
        {"program": TRUE, "objective": "kept"}, "--rests REGEX",
    ),
    "kept memory of several": ({**KEPT, "workload": "larson,remote"}, "of one workload"),
    "kept memory twice": ({**KEPT, "pareto": "throughput,kept"}, "exclude each other"),
    "a limit that is none": ({**KEPT, "max_kept": "0.7"}, "--max-kept '0.7'"),
    "a negative rest": ({**KEPT, "idle_s": -1.0}, "--idle-s is -1"),
    "kept memory of a trace": (
        {"workload": "trace", "objective": "kept"}, "not measured of a trace",
    ),
    **{
        f"a front of {pareto}": (
            {**BENCH, "pareto": pareto}, f"--pareto '{pareto}': legal is throughput,rss",
        )
        for pareto in ("rss", "speed,rss", "throughput", "rss,throughput", "p99,rss")
    },
    "a proof of a workload": ({**BENCH, "prove_on": TRUE}, "--prove-on is for one trace"),
    "a proof of a front": ({**TRACE, "pareto": "throughput,rss"}, "leave --pareto out"),
    "a proof of a limit": ({**TRACE, "max_rss": "1.1x"}, "leave --max-rss out"),
    "a proof on no program": (
        {**TRACE, "prove_on": described(("/nowhere/program",))}, "there is no program",
    ),
    "a proof on any program": ({**TRACE, "prove_on": described(("{}",))}, "the program itself"),
}  # fmt: skip


@pytest.mark.parametrize("what", OF_STUDIES)
def test_a_study_cannot_be_asked_for_with(what, tmp_path):
    options, said = OF_STUDIES[what]
    if options.get("workload") == "trace":
        path = traces.write(tmp_path / "app.hzt", [traces.churn(400)])
        options = {**options, "workload": f"trace:{path}"}
    with pytest.raises(UsageError, match=said):
        understand(requested(**options))


TYPED = {
    "a server and a program": ("--server s --load l --ready-port 1 -- true", "one of them"),
    "nothing to look at": ("suggest", "there is nothing to look at: hztune suggest -- ./program"),
    "words without dashes": ("suggest ls", "'ls' is no command of hztune"),
    "no program to look at": ("suggest -- /no/x", "there is no program '/no/x'"),
    "no time to look": ("suggest --for soon -- ls", "'soon': legal is a number with s, m or h"),
    "too long a look": ("suggest --for 2h -- ls", "--for is 7200.0; legal is a number from 0.2"),
    "no folder of profiles": ("suggest --profiles /no -- ls", "--profiles '/no' is no"),
    "two programs to look at": ("suggest --command a=ls --command b=ls", "give one program"),
    "an open program": ("suggest -- {} x", "stands for the contenders"),
    "an unknown option": ("suggest --fro 3s -- ls", "No such option"),
    "no program to record": ("record -o x -- /no/x", "there is no program"),
    "a static program to record": ("record -o x -- /sbin/ldconfig", "it cannot be recorded"),
    "nothing to record": ("record -o x", "want either a program after -- or --pid N"),
    "two to record": ("record -o x --pid 1 -- ls", "want either a program"),
    "no time of a recording": ("record -o x --for soon -- ls", "--for 'soon': legal is"),
    "nothing about a trace": ("trace", "Missing command (see `hztune trace --help`)"),
    "no trace": ("trace info nothing", "cannot read nothing: No such file"),
    "a pipe as a trace": ("trace convert pipe -o x", "it is not a regular file"),
    "a form that is none": ("trace convert ls.trace -o x --to foo", "--to foo: want trace"),
    "an end before the start": (
        "trace cut ls.trace -o x --from 2 --to 1", "later than --from",
    ),
    "a start behind the end": (
        "trace cut ls.trace -o x --from 100", "--from 100: ls.trace lasts 0 s",
    ),
    "sizes that are no power of two": (
        "trace anonymize ls.trace -o x --round-sizes 3", "a power of two",
    ),
    "a trace that is cut": ("trace info cut.trace", "cut.trace is cut: it should have "),
    "its program as the trace": ("record -o ./true -- ./true", "the program that is recorded"),
}  # fmt: skip


@pytest.mark.parametrize("what", TYPED)
def test_a_command_line_cannot_have(what, hztune_here, tmp_path):
    words, said = TYPED[what]
    path = traces.write(tmp_path / "ls.trace", [traces.churn(400)], flags=traces.HAS_TIME)
    (tmp_path / "cut.trace").write_bytes(path.read_bytes()[:-100])
    (tmp_path / "true").symlink_to("/bin/true")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    done = hztune_here(*words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("hztune: ") and said in done.stderr
    assert sorted(os.listdir(tmp_path)) == before
