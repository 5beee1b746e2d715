"""What hz reads from the environment, what it refuses, and what it says of itself."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conftest import finished

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes set-user-id copies")
REJECTED = 78
CONFIRM = "HZ_CONFIRM "


def confirmed(stderr):
    """The object of the one confirmation among the lines of stderr."""
    (line,) = [line for line in stderr.splitlines() if line.startswith(CONFIRM)]
    return json.loads(line[len(CONFIRM) :])


def config_of(stderr):
    return confirmed(stderr)["config"]


@pytest.fixture
def defaults(preload):
    """The configuration of a process with nothing set."""
    return config_of(preload("true", HZ_CONFIRM="1").stderr)


def runs(done):
    """Whether `echo ran` did."""
    return (done.returncode, done.stdout) == (0, "ran\n")


def is_rejected(done):
    """Whether the program ended before main."""
    return (done.returncode, done.stdout) == (REJECTED, "")


# --- values ---------------------------------------------------------------------------------------

BAD_VALUES = [
    *(("HZ_MAGAZINE_CAP", value, "8") for value in ("", "-1", "7")),
    *(("HZ_MAGAZINE_CAP", value, "1024") for value in ("many", "2048", "+64", "64.0", "auto")),
    ("HZ_MAGAZINE_CAP", "100", "power"),
    ("HZ_MAGAZINE_CAP", "18446744073709551680", "1024"),
    ("HZ_SHARDS", "automatic", "auto"),
    ("HZ_DEPOT_LOCK", "MUTEX", "lockfree"),
]


@pytest.mark.parametrize(("variable", "value", "legal"), BAD_VALUES)
def test_a_bad_value_is_named_with_what_is_legal(variable, value, legal, preload, defaults):
    done = preload("echo", "ran", HZ_CONFIRM="1", **{variable: value})
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("hz: ")]
    assert variable in said and value in said and legal in said
    assert runs(done) and config_of(done.stderr) == defaults
    strict = preload("echo", "ran", HZ_STRICT="1", **{variable: value})
    assert is_rejected(strict) and variable in strict.stderr and legal in strict.stderr


@pytest.mark.parametrize("value", ["yes", "true", "2", "1 "])
def test_a_switch_that_is_neither_0_nor_1_is_refused_where_it_asks_to_be_strict(value, preload):
    strict = preload("echo", "ran", HZ_STRICT=value)
    assert is_rejected(strict) and "HZ_STRICT is neither 0 nor 1" in strict.stderr
    told = preload("echo", "ran", HZ_CONFIRM=value)
    assert runs(told) and told.stderr == "hz: HZ_CONFIRM is neither 0 nor 1; it is ignored\n"


def test_values_that_do_not_go_together_are_refused_together(preload, defaults):
    pair = {"HZ_MAGAZINE_CAP": "8", "HZ_REFILL_BATCH": "256"}
    done = preload("true", HZ_CONFIRM="1", **pair)
    assert "magazine_cap" in done.stderr and "refill_batch" in done.stderr
    assert config_of(done.stderr) == defaults
    assert preload("true", HZ_STRICT="1", **pair).returncode == REJECTED


NEARLY = {
    "HZ_MAGAZIN_CAP": "HZ_MAGAZINE_CAP",
    "HZ_MAGAZINES_CAP": "HZ_MAGAZINE_CAP",
    "HZ_MAGAZINECAP": "HZ_MAGAZINE_CAP",
    "HZ_DEPOT_LOCKS": "HZ_DEPOT_LOCK",
    "HZ_MAX_DIRTY": "HZ_MAX_DIRTY_BYTES",
    "HZ_SHARD": "HZ_SHARDS",
}


@pytest.mark.parametrize(("wrong", "right"), NEARLY.items())
def test_a_name_that_is_nearly_a_parameters_is_pointed_out(wrong, right, preload):
    done = preload("echo", "ran", **{wrong: "64"})
    assert runs(done) and wrong in done.stderr and right in done.stderr
    assert is_rejected(preload("echo", "ran", HZ_STRICT="1", **{wrong: "64"}))


def test_other_programs_variables_are_left_alone(preload):
    for name in ("HZ_NETWORK_JOIN_AUTODETECTION_ENABLED", "HZ_CLUSTERNAME", "HZ_JAVA_OPTS", "HZ_"):
        done = preload("echo", "ran", HZ_STRICT="1", HZ="nonsense", **{name: "nonsense"})
        assert runs(done) and done.stderr == "", name


# --- what it says ---------------------------------------------------------------------------------


def test_the_confirmation_is_one_line_in_one_write(libhz, plain_environment):
    reader, writer = os.pipe2(os.O_DIRECT)  # packets: a read gives what one write gave
    environment = {**plain_environment, "LD_PRELOAD": str(libhz), "HZ_CONFIRM": "1"}
    process = subprocess.Popen(["true"], env=environment, stderr=writer)
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


def test_a_process_confirms_once_and_a_fork_does_not_and_nothing_is_said_unless_asked(preload):
    done = preload("bash", "-c", "(:); (:); echo $(:) ran", HZ_CONFIRM="1")
    assert runs(done) and confirmed(done.stderr)["schema"] == 1
    assert preload("true").stderr == ""


def test_each_process_writes_statistics_of_its_own_at_exit(preload, tmp_path):
    script = "import os, subprocess; print(os.getpid()); subprocess.run(['true'])"
    done = preload("/usr/bin/python3", "-c", script, HZ_STATS=str(tmp_path / "stats-%p.json"))
    files = list(tmp_path.glob("stats-*.json"))
    own = tmp_path / f"stats-{done.stdout.strip()}.json"
    assert own in files and len(files) == 2
    read = json.loads(own.read_text())
    assert set(read) == {"version", "frozen", "config", "counters", "memory"}
    assert read["counters"]["refills"] > 0


def test_statistics_that_cannot_be_written_are_reported_and_do_no_harm(preload, tmp_path):
    """Nor do they wait for the reader of a pipe. Echo would close stderr before it ends."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "missing" / "stats.json", tmp_path / "pipe"):
        done = preload("timeout", "20", "bash", "-c", "echo ran", HZ_STATS=str(path))
        assert runs(done) and f"HZ_STATS: cannot write {path}" in done.stderr


def test_a_limit_of_file_sizes_does_not_end_a_program_when_hz_writes(preload, tmp_path):
    file = tmp_path / "file"
    limited = f"ulimit -f 0; exec 2>{file}; exec bash -c 'echo ran'"
    assert runs(preload("bash", "-c", limited, HZ_CONFIRM="1", HZ_STATS=str(tmp_path / "stats")))
    assert file.read_text() == (tmp_path / "stats").read_text() == ""


def test_statistics_never_follow_a_symbolic_link(preload, tmp_path):
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / "stats.json").symlink_to(target)
    assert preload("true", HZ_STATS=str(tmp_path / "stats.json")).returncode == 0
    assert target.read_text() == "precious"


# --- privileged processes -------------------------------------------------------------------------

# `{place}` is a directory that every user may write to.
SERVICES = {
    "HZ_STRICT": "1",
    "HZ_CONFIRM": "1",
    "HZ_STATS": "{place}/stats-%p.json",
    "HZ_KEEP_DEEPBIND": "1",
    "HZ_MAGAZIN_CAP": "8",
}
ODD = ["", "-1", "99999999999999999999", "8%s%n", "nonsense", "z" * 5000, "{place}/stats.json"]


@pytest.fixture
def place():
    """A directory that every user may write to, on a file system that honours set-user-id."""
    made = Path(f"/var/tmp/hz-set-user-id-{os.getpid()}")
    made.mkdir()
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def as_nobody(core_tests, place, plain_environment):
    """Runs a set-user-id copy of `says`, linked to hz: the loader itself drops LD_PRELOAD there."""
    program = place / "says"
    shutil.copy(core_tests / "tests" / "says", program)
    program.chmod(0o4755)

    def run(asked, *before):
        rights = {} if before else {"user": 65534, "group": 65534}
        variables = {k: v.replace("{place}", str(place)) for k, v in asked.items()}
        own = {**plain_environment, **variables}
        return finished([*before, program], env=own, cwd=place, **rights)

    return run


@pytest.fixture
def variables(core_tests, plain_environment):
    """Every variable of hz, with a legal value that is not the default."""
    says = [core_tests / "tests" / "says", "--table"]
    table = subprocess.check_output(says, env=plain_environment, text=True)
    others = {}
    for row in map(json.loads, table.splitlines()):
        values = (*row["choices"].split(), str(row["high"]), str(row["low"]))
        others[row["env"]] = next(value for value in values if value != row["default"])
    return {**others, **SERVICES}


@only_root
def test_a_set_user_id_process_reads_no_variable(as_nobody, variables, place):
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
def test_without_the_bit_the_same_program_would_read_them(as_nobody, variables, place):
    (place / "says").chmod(0o755)
    plain = as_nobody({})
    assert json.loads(plain.stdout)["privileged"] is False
    assert as_nobody(variables).returncode == REJECTED
    for name in ("HZ_SHARDS", "HZ_DECAY_MS", "HZ_DEPOT_LOCK"):
        assert as_nobody({name: variables[name]}).stdout != plain.stdout


@only_root
def test_a_set_user_id_process_opens_no_other_file_for_a_variable(as_nobody, variables):
    strace = ["strace", "-f", "-u", "nobody", "-e", "trace=%file,connect"]

    def paths(asked):
        done = as_nobody(asked, *strace)
        assert done.returncode == 0 and json.loads(done.stdout)["privileged"] is True, done
        return [line for line in done.stderr.splitlines() if "execve(" not in line]

    plain = paths({})
    assert any("libc.so" in line for line in plain)
    assert paths(variables) == plain
    assert paths(dict.fromkeys(variables, "{place}/stats.json")) == plain
