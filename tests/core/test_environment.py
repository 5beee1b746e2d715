"""What hz reads from the environment, what it refuses, and what it says of itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Preload = Callable[..., "subprocess.CompletedProcess[str]"]

only_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make a set-user-id copy to run"
)
REJECTED = 78
CONFIRM = "HZ_CONFIRM "


def confirmed(stderr: str) -> dict[str, Any]:
    """The object of the one confirmation among the lines of stderr."""
    lines = [line for line in stderr.splitlines() if line.startswith(CONFIRM)]
    assert len(lines) == 1, stderr
    read: dict[str, Any] = json.loads(lines[0][len(CONFIRM) :])
    return read


def config_of(stderr: str) -> dict[str, Any]:
    """The configuration that was confirmed."""
    config: dict[str, Any] = confirmed(stderr)["config"]
    return config


@pytest.fixture
def defaults(preload: Preload) -> dict[str, Any]:
    """The configuration of a process with nothing set."""
    return config_of(preload("true", HZ_CONFIRM="1").stderr)


# --- values ---------------------------------------------------------------------------------------

BAD_VALUES = [
    ("HZ_MAGAZINE_CAP", "", "8"),
    ("HZ_MAGAZINE_CAP", "many", "1024"),
    ("HZ_MAGAZINE_CAP", "-1", "8"),
    ("HZ_MAGAZINE_CAP", "7", "8"),
    ("HZ_MAGAZINE_CAP", "2048", "1024"),
    ("HZ_MAGAZINE_CAP", "100", "power"),
    ("HZ_MAGAZINE_CAP", " 64", "1024"),
    ("HZ_MAGAZINE_CAP", "64 ", "1024"),
    ("HZ_MAGAZINE_CAP", "+64", "1024"),
    ("HZ_MAGAZINE_CAP", "0x40", "1024"),
    ("HZ_MAGAZINE_CAP", "64k", "1024"),
    ("HZ_MAGAZINE_CAP", "1e2", "1024"),
    ("HZ_MAGAZINE_CAP", "64.0", "1024"),
    ("HZ_MAGAZINE_CAP", "18446744073709551680", "1024"),
    ("HZ_MAGAZINE_CAP", "auto", "1024"),
    ("HZ_SHARDS", "automatic", "auto"),
    ("HZ_SHARDS", "0", "64"),
    ("HZ_DECAY_MS", "60001", "60000"),
    ("HZ_DEPOT_LOCK", "", "mutex"),
    ("HZ_DEPOT_LOCK", "MUTEX", "lockfree"),
    ("HZ_DEPOT_LOCK", "mutex spin", "lockfree"),
    ("HZ_THP", "yes", "on"),
]


@pytest.mark.parametrize(("variable", "value", "legal"), BAD_VALUES)
def test_a_bad_value_is_named_with_what_is_legal_and_the_default_kept(
    variable: str, value: str, legal: str, preload: Preload, defaults: dict[str, Any]
) -> None:
    done = preload("echo", "ran", HZ_CONFIRM="1", **{variable: value})
    said = [line for line in done.stderr.splitlines() if line.startswith("hz: ")]
    assert len(said) == 1
    assert variable in said[0] and value in said[0] and legal in said[0]
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert config_of(done.stderr) == defaults


@pytest.mark.parametrize(("variable", "value", "legal"), BAD_VALUES[:3] + BAD_VALUES[-1:])
def test_a_bad_value_is_refused_before_main_under_strict(
    variable: str, value: str, legal: str, preload: Preload
) -> None:
    done = preload("echo", "ran", HZ_STRICT="1", **{variable: value})
    assert (done.returncode, done.stdout) == (REJECTED, "")
    assert variable in done.stderr and legal in done.stderr


@pytest.mark.parametrize("value", ["yes", "true", "2", "1 "])
def test_a_switch_that_is_neither_0_nor_1_is_refused_where_it_asks_to_be_strict(
    value: str, preload: Preload
) -> None:
    strict = preload("echo", "ran", HZ_STRICT=value)
    assert (strict.returncode, strict.stdout) == (REJECTED, "")
    assert "HZ_STRICT is neither 0 nor 1" in strict.stderr
    told = preload("echo", "ran", HZ_CONFIRM=value)
    assert (told.returncode, told.stdout) == (0, "ran\n")
    assert "HZ_CONFIRM is neither 0 nor 1; it is taken as 1" in told.stderr
    assert config_of(told.stderr)


@pytest.mark.parametrize(
    "order", [("HZ_STRICT=1", "HZ_CONFIRM=2"), ("HZ_CONFIRM=2", "HZ_STRICT=1")]
)
def test_strictness_holds_for_the_other_switches_in_either_order(
    order: tuple[str, ...], core_build: Path
) -> None:
    words = ["env", "-i", *order, f"LD_PRELOAD={core_build / 'libhz.so'}", "/bin/echo", "ran"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (REJECTED, "")
    assert "HZ_CONFIRM is neither 0 nor 1; HZ_STRICT is set: giving up" in done.stderr


@pytest.mark.parametrize("value", ["0", ""])
def test_a_switch_that_is_off_says_nothing(value: str, preload: Preload) -> None:
    done = preload("echo", "ran", HZ_STRICT=value, HZ_CONFIRM=value, HZ_SHARDS="none")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert len(done.stderr.splitlines()) == 1 and "HZ_SHARDS" in done.stderr


def test_values_that_do_not_go_together_are_refused_together(
    preload: Preload, defaults: dict[str, Any]
) -> None:
    pair = {"HZ_MAGAZINE_CAP": "8", "HZ_REFILL_BATCH": "256"}
    done = preload("true", HZ_CONFIRM="1", **pair)
    assert "magazine_cap" in done.stderr and "refill_batch" in done.stderr
    assert config_of(done.stderr) == defaults
    assert preload("true", HZ_STRICT="1", **pair).returncode == REJECTED


def test_good_values_are_taken_and_nothing_is_said(preload: Preload) -> None:
    good = {"HZ_MAGAZINE_CAP": "64", "HZ_SHARDS": "4", "HZ_DEPOT_LOCK": "spin", "HZ_THP": "on"}
    done = preload("true", HZ_CONFIRM="1", HZ_STRICT="1", **good)
    config = config_of(done.stderr)
    assert len(done.stderr.splitlines()) == 1
    read = (config["magazine_cap"], config["shards"], config["depot_lock"], config["thp"])
    assert read == (64, 4, "spin", "on")


def test_auto_is_resolved_to_a_number(preload: Preload) -> None:
    shards = config_of(preload("true", HZ_CONFIRM="1", HZ_SHARDS="auto").stderr)["shards"]
    assert isinstance(shards, int) and 1 <= shards <= 64


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("HZ_MAGAZIN_CAP", "HZ_MAGAZINE_CAP"),
        ("HZ_MAGAZINES_CAP", "HZ_MAGAZINE_CAP"),
        ("HZ_MAGAZINECAP", "HZ_MAGAZINE_CAP"),
        ("HZ_DEPOT_LOCKS", "HZ_DEPOT_LOCK"),
        ("HZ_MAX_DIRTY", "HZ_MAX_DIRTY_BYTES"),
        ("HZ_SHARD", "HZ_SHARDS"),
    ],
)
def test_a_name_that_is_nearly_a_parameters_is_pointed_out(
    wrong: str, right: str, preload: Preload
) -> None:
    done = preload("echo", "ran", **{wrong: "64"})
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert wrong in done.stderr and right in done.stderr
    assert preload("echo", "ran", HZ_STRICT="1", **{wrong: "64"}).returncode == REJECTED


@pytest.mark.parametrize(
    "name",
    ["HZ_NETWORK_JOIN_AUTODETECTION_ENABLED", "HZ_CLUSTERNAME", "HZ_JAVA_OPTS", "HZ_", "HZ"],
)
def test_other_programs_variables_are_left_alone(name: str, preload: Preload) -> None:
    done = preload("echo", "ran", HZ_STRICT="1", **{name: "nonsense"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


# --- what it says ---------------------------------------------------------------------------------


def test_the_confirmation_is_one_line_in_one_write(
    libhz: Path, plain_environment: dict[str, str]
) -> None:
    reader, writer = os.pipe2(os.O_DIRECT)  # packets: a read gives what one write gave
    process = subprocess.Popen(
        ["true"],
        env={**plain_environment, "LD_PRELOAD": str(libhz), "HZ_CONFIRM": "1"},
        stderr=writer,
    )
    os.close(writer)
    packets = []
    while packet := os.read(reader, 65536):
        packets.append(packet.decode())
    os.close(reader)
    assert process.wait() == 0
    assert len(packets) == 1 and packets[0].endswith("}\n")
    read = confirmed(packets[0])
    assert set(read) == {"schema", "pid", "version", "frozen", "config"}
    assert (read["schema"], read["pid"], read["frozen"]) == (1, process.pid, False)


def test_nothing_is_said_unless_asked(preload: Preload) -> None:
    assert preload("true").stderr == ""


def test_a_threaded_process_confirms_once_and_a_fork_does_not(preload: Preload) -> None:
    done = preload("bash", "-c", "(:); (:); echo $(:) ran", HZ_CONFIRM="1")
    assert done.stdout == "ran\n"
    assert confirmed(done.stderr)["schema"] == 1


def test_statistics_are_written_at_exit(preload: Preload, tmp_path: Path) -> None:
    preload("bash", "-c", "x=$(seq 10000)", HZ_STATS=str(tmp_path / "stats.json"))
    read = json.loads((tmp_path / "stats.json").read_text())
    assert set(read) == {"version", "frozen", "config", "counters", "memory"}
    assert read["counters"]["refills"] > 0


def test_each_child_process_writes_statistics_of_its_own(preload: Preload, tmp_path: Path) -> None:
    script = "import os, subprocess; print(os.getpid()); subprocess.run(['true'])"
    done = preload("/usr/bin/python3", "-c", script, HZ_STATS=str(tmp_path / "stats-%p.json"))
    files = {path.name for path in tmp_path.glob("stats-*.json")}
    assert f"stats-{done.stdout.strip()}.json" in files
    assert len(files) == 2


def test_statistics_that_cannot_be_written_are_reported_and_do_no_harm(
    preload: Preload, tmp_path: Path
) -> None:
    path = str(tmp_path / "missing" / "stats.json")
    # Not echo: the programs of coreutils close stderr before they end.
    done = preload("bash", "-c", "echo ran", HZ_STATS=path)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "HZ_STATS" in done.stderr and path in done.stderr


def test_statistics_wait_for_no_reader_of_a_pipe(preload: Preload, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = preload("timeout", "20", "bash", "-c", "echo ran", HZ_STATS=str(tmp_path / "pipe"))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "HZ_STATS: cannot write" in done.stderr


def test_a_limit_of_file_sizes_does_not_end_a_program_when_hz_writes(
    preload: Preload, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    limited = f"ulimit -f 0; exec 2>{file}; exec bash -c 'echo ran'"
    done = preload("bash", "-c", limited, HZ_CONFIRM="1", HZ_STATS=str(tmp_path / "stats.json"))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert file.read_text() == (tmp_path / "stats.json").read_text() == ""


def test_statistics_never_follow_a_symbolic_link(preload: Preload, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / "stats.json").symlink_to(target)
    done = preload("true", HZ_STATS=str(tmp_path / "stats.json"))
    assert done.returncode == 0
    assert target.read_text() == "precious"


# --- privileged processes -------------------------------------------------------------------------

# For every variable of hz: a legal value that is not the default, others that are not legal, odd
# ones. `{place}` is a directory that every user may write to.
WORDS_NOT_DEFAULT = {
    "HZ_MAGAZINE_GROWTH": "full",
    "HZ_DOUBLE_FREE": "at_call",
    "HZ_HARDENING": "full",
    "HZ_REMOTE_GROUPING": "none",
    "HZ_DEPOT_LOCK": "spin",
    "HZ_THP": "on",
    "HZ_PREFAULT": "on",
}
SERVICES = {
    "HZ_STRICT": "1",
    "HZ_CONFIRM": "1",
    "HZ_STATS": "{place}/stats-%p.json",
    "HZ_KEEP_DEEPBIND": "1",
    "HZ_MAGAZIN_CAP": "8",
}
ODD = ["", "-1", "99999999999999999999", "8%s%n", "nonsense", "z" * 5000, "{place}/stats.json"]

AsNobody = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may write to, on a file system that honours set-user-id."""
    made = Path("/var/tmp") / f"hz-set-user-id-{os.getpid()}"
    made.mkdir()
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def as_nobody(core_tests: Path, place: Path, plain_environment: dict[str, str]) -> AsNobody:
    """Runs a set-user-id copy of `says`, linked to hz: the loader itself drops LD_PRELOAD there."""
    program = place / "says"
    shutil.copy(core_tests / "tests" / "says", program)
    program.chmod(0o4755)

    def run(asked: dict[str, str], *before: str) -> subprocess.CompletedProcess[str]:
        rights = {} if before else {"user": 65534, "group": 65534}
        variables = {k: v.replace("{place}", str(place)) for k, v in asked.items()}
        return subprocess.run(
            [*before, str(program)],
            env={**plain_environment, **variables},
            cwd=place,
            capture_output=True,
            text=True,
            **rights,
        )

    return run


@pytest.fixture
def variables(core_tests: Path, plain_environment: dict[str, str]) -> dict[str, str]:
    """Every variable of hz, with a value that would change something."""
    says = [core_tests / "tests" / "says", "--table"]
    table = subprocess.run(says, env=plain_environment, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in table.stdout.splitlines()]
    numbers = {
        row["env"]: str(row["high"] if row["default"] in (str(row["low"]), "auto") else row["low"])
        for row in rows
        if not row["choices"]
    }
    assert {row["env"] for row in rows} == numbers.keys() | WORDS_NOT_DEFAULT.keys()
    return {**numbers, **WORDS_NOT_DEFAULT, **SERVICES}


@only_root
def test_a_set_user_id_process_reads_no_variable(
    as_nobody: AsNobody, variables: dict[str, str], place: Path
) -> None:
    assert len(variables) >= 25
    plain = as_nobody({})
    assert json.loads(plain.stdout)["privileged"] is True
    attacks = [variables, *({name: value} for name, value in variables.items())]
    for odd in ODD:
        attacks += [dict.fromkeys(variables, odd), {**variables, "HZ_SHARDS": odd}]
    for asked in attacks:
        attacked = as_nobody(asked)
        assert (attacked.returncode, attacked.stderr) == (0, ""), asked
        assert attacked.stdout == plain.stdout, asked
    assert [path.name for path in place.iterdir()] == ["says"]


@only_root
def test_without_the_bit_the_same_program_would_read_them(
    as_nobody: AsNobody, variables: dict[str, str], place: Path
) -> None:
    (place / "says").chmod(0o755)
    plain = as_nobody({})
    assert json.loads(plain.stdout)["privileged"] is False
    assert as_nobody(variables).returncode == REJECTED
    for name in ("HZ_SHARDS", "HZ_DECAY_MS", "HZ_DEPOT_LOCK"):
        assert as_nobody({name: variables[name]}).stdout != plain.stdout


@only_root
def test_a_set_user_id_process_opens_no_other_file_for_a_variable(
    as_nobody: AsNobody, variables: dict[str, str]
) -> None:
    assert shutil.which("strace"), "strace is not installed"
    strace = ["strace", "-f", "-u", "nobody", "-e", "trace=%file,connect"]

    def paths(asked: dict[str, str]) -> list[str]:
        done = as_nobody(asked, *strace)
        assert done.returncode == 0 and json.loads(done.stdout)["privileged"] is True, done
        return [line for line in done.stderr.splitlines() if "execve(" not in line]

    plain = paths({})
    assert any("libc.so" in line for line in plain)
    assert paths(variables) == plain
    assert paths(dict.fromkeys(variables, "{place}/stats.json")) == plain
