"""The values of options as text: each form is read in one place, and refused in one form."""

import pytest

from hztune import arguments
from hztune.errors import UsageError

READ = {
    "times": (
        [*map(arguments.parse_duration, ("90s", "5m", "1.5h", "90", "0s"))],
        [90, 300, 5400, 90, 0],
    ),
    "a list of numbers": (arguments.counts("2,8,32"), (2, 8, 32)),
    "a list of names": (arguments.listed("hz, jemalloc"), ("hz", "jemalloc")),
    "a margin": (arguments.margin("2%"), 0.02),
    "KEY=VALUE": (arguments.key_value("path=a=b"), ("path", "a=b")),
    "NAME=REST": (arguments.split_named("new=./b c"), ("new", "./b c")),
    "no name": (arguments.split_named("./new --x=1"), None),
    "a command": (arguments.named_command("a='./b c' d", "--command"), ("a", ("./b c", "d"))),
    "a workload": (arguments.split_workload("remote@main"), ("remote", "main")),
    "a workload with its defaults": (arguments.split_workload("remote"), ("remote", None)),
    "the name of a trace": (arguments.workload_name("trace:a@b"), "trace"),
    "parameters": (
        arguments.split_configured("hz:shards=4,thp=on"),
        ("hz", {"shards": "4", "thp": "on"}),
    ),
    "an allocator inside": (arguments.split_configured("inside:jemalloc"), None),
}

REFUSED = {
    "a time": lambda: arguments.parse_duration("soon", "--given"),
    "a time below zero": lambda: arguments.parse_duration("-1s", "--given"),
    "a time without an end": lambda: arguments.parse_duration("inf", "--given"),
    "a time of twenty digits": lambda: arguments.parse_duration("9" * 20, "--given"),
    "an amount of memory": lambda: arguments.memory_amount("lots", "--given"),
    "a percentage": lambda: arguments.percentage("2", "--given"),
    "a margin of nothing": lambda: arguments.margin("0%", "--given"),
    "a list of numbers": lambda: arguments.counts("2,,8", "--given"),
    "a number in another script": lambda: arguments.counts("\u0662", "--given"),
    "KEY=VALUE": lambda: arguments.key_value("ws", "--given"),
    "a command without a name": lambda: arguments.named_command("./b", "--given"),
    "an expression without a group": lambda: arguments.expression("1", "--given"),
    "a text of a megabyte": lambda: arguments.percentage("9" * 1_000_000, "--given"),
}


@pytest.mark.parametrize("form", READ)
def test_a_text_becomes_a_typed_value(form):
    found, meant = READ[form]
    assert found == meant


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_not_legal_is_shown_with_its_option_and_what_is_legal(form):
    with pytest.raises(UsageError, match=r"^--given '.*: legal is ") as refused:
        REFUSED[form]()
    assert len(str(refused.value)) < 400
