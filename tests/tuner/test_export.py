"""Every form of export is read back by its own consumer, and says what the profile says."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from hztune import api, export
from hztune.errors import NoGainError, UsageError
from hztune.profile import AllocatorId, Claim, MemoryClaim, Objective, Profile
from hztune.report import words
from hztune.verify.running import examine

from .conftest import TUNED

MakeProfile = Callable[..., Profile]

EVERY = ["hz", *TUNED]
CASES = [
    (allocator, form.name)
    for allocator in EVERY
    for form in export.FORMATS
    if not form.allocators or allocator in form.allocators
]


@pytest.fixture(autouse=True)
def library(core_build: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The core that exports refer to."""
    monkeypatch.setenv("HZTUNE_CORE", str(core_build))
    return core_build / "libhz.so"


def expected(profile: Profile, library: Path | str) -> dict[str, str]:
    """What a form must set; `library` is where hz is for that form, its small library beside it."""
    soname = profile.allocator.soname
    beside = f"{soname}:{Path(library).with_name('libhz-deepbind.so')}" if soname else ""
    name = str(library) if profile.allocator.name == "hz" else beside
    return {**profile.environment, **({"LD_PRELOAD": name} if name else {})}


def printed_environment(command: list[str], **extra: str) -> dict[str, str]:
    """What `env -0`, at the end of `command`, says its environment is."""
    base = {"PATH": os.environ["PATH"], **extra}
    done = subprocess.run(command, env=base, capture_output=True, text=True, check=True)
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)


def contains(environment: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= environment.items()


# ---- all of them ---------------------------------------------------------------------------------


SAID = (
    "remote@main remote=50, 32 threads",
    "14.0 % better in ops_per_s",
    "1.100 to 1.200",
    "max_rss 1.10x",
    "Test CPU (R) 3.0GHz, 2 CPUs, quota of 1.5",
    "2026-01-31",
    "verify:  hztune verify PROFILE --pid PID",
    "check:   without hztune, ",
    "undo:",
)


@pytest.mark.parametrize(("allocator", "name"), [case for case in CASES if case[1] != "json"])
def test_a_file_says_what_was_gained_where_and_how_to_check_and_undo_it(
    allocator: str, name: str, profile_of: Callable[[str], Profile]
) -> None:
    text = export.render(profile_of(allocator), name)
    for said in SAID:
        assert said in text


@pytest.mark.parametrize(("control", "said"), [("", "the default"), ("none", "the unchanged")])
def test_a_file_says_what_the_gain_is_to(
    control: str, said: str, make_profile: MakeProfile
) -> None:
    made = make_profile(objective=Objective("wall_s", {}, control))
    assert f"14.0 % better in ops_per_s than {said}" in export.render(made, "sh")


def test_where_nothing_was_gained_no_second_noise_is_told(make_profile: MakeProfile) -> None:
    made = make_profile({}, claim=Claim("ops_per_s", 0.96, 0.92, 0.99, 4, "no_gain"))
    assert "no gain in ops_per_s over the default was proved\n" in export.render(made, "sh")


def test_a_gain_in_run_time_is_called_faster(make_profile: MakeProfile) -> None:
    made = make_profile(claim=Claim("wall_s", 1.14, 1.09, 1.19, 14, "improved"))
    assert "14.0 % faster than the default" in export.render(made, "sh")


@pytest.mark.parametrize(("allocator", "name"), [case for case in CASES if case[1] != "json"])
def test_a_gain_is_told_with_what_it_costs_in_memory_and_a_limit_for_that(
    allocator: str, name: str, profile_of: Callable[[str], Profile]
) -> None:
    seen = (MemoryClaim(1.57, 1.5, 1.64), MemoryClaim(0.9, 0.8, 1.0, "kept"))
    text = export.render(
        structs.replace(profile_of(allocator), memory=seen, suggested_limit_kb=422912), name
    )
    assert (
        "8 pairs), 1.570 times the peak memory of the default (95 % interval 1.500 to 1.640), "
        "0.900 times the kept memory of the default (95 % interval 0.800 to 1.000)\n"
    ) in text
    assert "suggest: a memory limit of 413 MiB, 1.25 times the largest peak" in text
    assert words.verdict_words(structs.replace(profile_of("hz"), memory=seen)).endswith(
        ", for 57\u00a0% more peak memory"
    )


@pytest.mark.parametrize(("allocator", "name"), CASES)
def test_a_form_ends_with_a_newline_and_has_no_blank_at_the_end_of_a_line(
    allocator: str, name: str, profile_of: Callable[[str], Profile]
) -> None:
    text = export.render(profile_of(allocator), name)
    assert text.endswith("\n") and not re.search(r"[ \t]\n|\n\n$", text)


def test_an_unknown_form_is_refused_with_those_that_exist(make_profile: MakeProfile) -> None:
    with pytest.raises(UsageError, match="did you mean header"):
        export.render(make_profile(), "heder")


def test_a_form_of_another_allocator_is_refused_with_the_fitting_ones(
    make_profile: MakeProfile,
) -> None:
    with pytest.raises(UsageError, match=r"c-jemalloc exists for jemalloc.*header cmake json"):
        export.render(make_profile(), "c-jemalloc")


def test_json_is_the_profile_itself(make_profile: MakeProfile) -> None:
    assert json.loads(export.render(make_profile(), "json"))["params"]["magazine_cap"] == 512


def test_a_library_under_a_name_that_ld_preload_cannot_carry_is_refused(
    make_profile: MakeProfile, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "two words"
    odd.mkdir()
    (odd / "libhz.so").symlink_to(library)
    monkeypatch.setenv("HZTUNE_CORE", str(odd))
    with pytest.raises(UsageError, match="LD_PRELOAD cannot carry"):
        export.render(make_profile(), "env")


@pytest.mark.parametrize("name", ["env", "sh", "wrapper", "systemd"])
def test_a_form_that_names_files_of_this_installation_says_what_to_do_elsewhere(
    name: str, make_profile: MakeProfile, profile_of: Callable[[str], Profile]
) -> None:
    text = export.render(make_profile(), name)
    assert "# elsewhere: LD_PRELOAD names files of the installation" in text
    assert "export the profile again" in text and "ld.so only warns" in text
    assert "RTLD_DEEPBIND" not in text
    assert "# deepbind:  no allocator" in export.render(profile_of("jemalloc"), name)
    assert "elsewhere:" not in export.render(profile_of("glibc"), name)


# ---- one machine ---------------------------------------------------------------------------------


def as_docker_reads(text: str) -> dict[str, str]:
    """An env file by docker's rules (cli/pkg/kvfile): a comment only at the start of a line, no
    quoting, blanks at the left dropped, a name without blanks."""
    found = {}
    for line in text.splitlines():
        line = line.lstrip()
        if line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals and name and not re.search(r"\s", name), line
            found[name] = value
    return found


@pytest.mark.parametrize("allocator", EVERY)
def test_env_gives_docker_compose_and_systemd_the_same_lines(
    allocator: str, profile_of: Callable[[str], Profile], library: Path
) -> None:
    profile = profile_of(allocator)
    text = export.render(profile, "env")
    assert as_docker_reads(text) == expected(profile, library)
    # docker keeps quotes, compose drops them, systemd wants no `export`: plain lines suit all.
    given = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Z_]+=[A-Za-z0-9_.:,|=/+-]*", line) for line in given)


@pytest.mark.parametrize("allocator", EVERY)
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_sh_sets_the_variables_of_the_shell_that_sources_it(
    shell: str, allocator: str, profile_of: Callable[[str], Profile], library: Path, tmp_path: Path
) -> None:
    (tmp_path / "tuned.sh").write_text(export.render(profile_of(allocator), "sh"))
    subprocess.run([shell, "-n", tmp_path / "tuned.sh"], check=True)
    seen = printed_environment([shell, "-euc", f". {tmp_path}/tuned.sh; env -0"])
    assert contains(seen, expected(profile_of(allocator), library))


@pytest.mark.parametrize("allocator", EVERY)
def test_the_undo_step_of_sh_leaves_nothing_behind(
    allocator: str, profile_of: Callable[[str], Profile], tmp_path: Path
) -> None:
    text = export.render(profile_of(allocator), "sh")
    (tmp_path / "tuned.sh").write_text(text)
    found = re.search(r"^# undo:    (.*)$", text, re.M)
    assert found
    before = printed_environment(["dash", "-euc", "env -0"])
    after = printed_environment(["dash", "-euc", f". {tmp_path}/tuned.sh; {found[1]}; env -0"])
    assert after == before


def test_sh_keeps_what_was_preloaded_before_behind_its_own(
    make_profile: MakeProfile, library: Path, tmp_path: Path
) -> None:
    (tmp_path / "tuned.sh").write_text(export.render(make_profile(), "sh"))
    other = "libm.so.6"
    seen = printed_environment(["dash", "-euc", f". {tmp_path}/tuned.sh; env -0"], LD_PRELOAD=other)
    assert seen["LD_PRELOAD"] == f"{library}:{other}"


@pytest.mark.parametrize("allocator", EVERY)
def test_the_wrapper_runs_a_program_with_its_words_and_status(
    allocator: str, profile_of: Callable[[str], Profile], library: Path, tmp_path: Path
) -> None:
    script = tmp_path / "run-tuned"
    script.write_text(export.render(profile_of(allocator), "wrapper"))
    script.chmod(0o755)
    subprocess.run(["dash", "-n", script], check=True)
    seen = printed_environment([str(script), "env", "-0"])
    assert contains(seen, expected(profile_of(allocator), library))
    done = subprocess.run([script, "sh", "-c", 'echo "$#:$2"; exit 7', "sh", "a b", "c  d"],
                          capture_output=True, text=True)  # fmt: skip
    assert (done.stdout, done.returncode) == ("2:c  d\n", 7)


@pytest.mark.parametrize("allocator", EVERY)
def test_a_program_under_the_wrapper_has_the_profile_in_effect(
    allocator: str, profile_of: Callable[[str], Profile], tmp_path: Path
) -> None:
    profile = profile_of(allocator)
    script = tmp_path / "run-tuned"
    script.write_text(export.render(profile, "wrapper"))
    with subprocess.Popen(
        ["sh", script, "python3", "-S", "-c", "print('x', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"x\n"
        report = examine(profile, child.pid)
        child.communicate(b"\n", timeout=30)
    assert report.in_effect, report.faults
    assert {row.name: row.found for row in report.rows} == profile.params


@pytest.mark.parametrize("allocator", EVERY)
def test_php_runs_under_the_wrapper(
    allocator: str, profile_of: Callable[[str], Profile], tmp_path: Path
) -> None:
    """Its extensions are loaded with RTLD_DEEPBIND, which no preloaded allocator survives."""
    script = tmp_path / "run-tuned"
    script.write_text(export.render(profile_of(allocator), "wrapper"))
    done = subprocess.run(["sh", script, "php", "-r", "echo 1;"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1")


@pytest.mark.parametrize("name", ["compose", "k8s", "dockerfile"])
@pytest.mark.parametrize("allocator", [name for name in EVERY if name not in ("hz", "glibc")])
def test_a_container_is_told_of_both_libraries_that_it_must_hold(
    allocator: str, name: str, profile_of: Callable[[str], Profile]
) -> None:
    text = export.render(profile_of(allocator), name)
    needs = next(line for line in text.splitlines() if line.startswith("# needs:"))
    assert PACKAGES[allocator] in needs and "hztune paths --deepbind" in needs


def test_the_environment_reaches_the_library_and_is_what_it_confirms(
    make_profile: MakeProfile, tmp_path: Path
) -> None:
    profile = make_profile()
    script = tmp_path / "run-tuned"
    script.write_text(export.render(profile, "wrapper"))
    done = subprocess.run(
        ["sh", script, "true"],
        env={**os.environ, "HZ_CONFIRM": "1", "HZ_STRICT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    confirmed = json.loads(done.stderr.splitlines()[-1].removeprefix("HZ_CONFIRM "))["config"]
    assert contains(confirmed, profile.params)


def drop_in(folder: Path, content: str) -> Path:
    """A root with a unit that has `content` as its drop-in."""
    units = folder / "etc" / "systemd" / "system"
    (units / "app.service.d").mkdir(parents=True)
    (units / "app.service").write_text("[Service]\nExecStart=/bin/true\n")
    path = units / "app.service.d" / "50-hztune.conf"
    path.write_text(content)
    (folder / "bin").mkdir()
    (folder / "bin" / "true").symlink_to("/bin/true")
    return path


def said_by_systemd(folder: Path) -> str:
    command = ["systemd-analyze", "verify", f"--root={folder}", "app.service"]
    return subprocess.run(command, capture_output=True, text=True).stderr


@pytest.mark.parametrize("allocator", EVERY)
def test_a_systemd_drop_in_is_accepted_by_systemd(
    allocator: str, profile_of: Callable[[str], Profile], library: Path, tmp_path: Path
) -> None:
    path = drop_in(tmp_path, export.render(profile_of(allocator), "systemd"))
    said = said_by_systemd(tmp_path)
    assert "50-hztune.conf" not in said, said
    assignments = re.findall(r'^Environment="([^"]+)"$', path.read_text(), re.M)
    given = dict(line.split("=", 1) for line in assignments)
    assert given == expected(profile_of(allocator), library)


@pytest.mark.parametrize("wrong", ['Environment="A=%z"', "Enviroment=A=1"])
def test_systemd_does_complain_of_a_drop_in_that_is_wrong(wrong: str, tmp_path: Path) -> None:
    drop_in(tmp_path, f"[Service]\n{wrong}\n")
    assert "50-hztune.conf" in said_by_systemd(tmp_path)


# ---- containers ----------------------------------------------------------------------------------


IN_IMAGE = "/usr/local/lib/libhz.so"


PACKAGES = {
    "jemalloc": "libjemalloc2",
    "mimalloc": "libmimalloc2.0",
    "tcmalloc": "libtcmalloc-minimal4",
    "tbb": "libtbbmalloc2",
}


@pytest.mark.parametrize("allocator", EVERY)
def test_a_dockerfile_sets_the_variables_after_it_brought_the_library(
    allocator: str, profile_of: Callable[[str], Profile]
) -> None:
    profile = profile_of(allocator)
    text = export.render(profile, "dockerfile")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    if allocator == "hz":
        assert lines.pop(0) == f"COPY libhz.so {IN_IMAGE}"
    elif allocator in PACKAGES:
        install = "apt-get install -y --no-install-recommends"
        assert f"{install} {PACKAGES[allocator]} && rm -rf" in lines.pop(0)
    if allocator != "hz" and profile.allocator.soname:
        assert lines.pop(0) == "COPY libhz-deepbind.so /usr/local/lib/libhz-deepbind.so"
    given = [re.fullmatch(r'ENV ([A-Z_]+)="([^"$\\]*)"', line) for line in lines]
    assert all(given), "nothing but ENV may follow"
    assert {m[1]: m[2] for m in given if m} == expected(profile, IN_IMAGE)


@pytest.mark.parametrize("allocator", EVERY)
def test_compose_reads_as_the_specification_has_it(
    allocator: str, profile_of: Callable[[str], Profile]
) -> None:
    """compose-spec.json: services.*.environment is a list of unique strings (list_of_strings)."""
    read = yaml.safe_load(export.render(profile_of(allocator), "compose"))
    assert set(read) == {"services"} and set(read["services"]) == {"app"}
    assert set(read["services"]["app"]) == {"environment"}
    entries = read["services"]["app"]["environment"]
    assert isinstance(entries, list) and all(isinstance(entry, str) for entry in entries)
    assert len(set(entries)) == len(entries)
    assert not any("$" in entry for entry in entries), "compose would interpolate it"
    given = dict(entry.split("=", 1) for entry in entries)
    assert given == expected(profile_of(allocator), IN_IMAGE)


@pytest.mark.parametrize("allocator", EVERY)
def test_k8s_reads_as_its_schema_has_it(
    allocator: str, profile_of: Callable[[str], Profile]
) -> None:
    """core/v1 EnvVar: a name that is a C identifier, and a value that is a string."""
    read = yaml.safe_load(export.render(profile_of(allocator), "k8s"))
    assert set(read) == {"env"} and isinstance(read["env"], list)
    for entry in read["env"]:
        assert set(entry) == {"name", "value"}
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", entry["name"])
        assert isinstance(entry["value"], str) and "$(" not in entry["value"]
    given = {entry["name"]: entry["value"] for entry in read["env"]}
    assert len(given) == len(read["env"])
    assert given == expected(profile_of(allocator), IN_IMAGE)


@pytest.mark.parametrize("allocator", ["none", "glibc"])
def test_a_profile_that_sets_nothing_is_exported_as_json_alone(
    allocator: str, make_profile: MakeProfile
) -> None:
    nothing = make_profile({}, allocator=AllocatorId(allocator, "", "", ""))
    for form in export.FORMATS:
        if form.name == "json":
            assert api.export(nothing, form.name) == export.render(nothing, form.name)
        elif not form.allocators or allocator in form.allocators:
            with pytest.raises(NoGainError, match="start the program as it is"):
                api.export(nothing, form.name)


def test_the_file_of_a_study_without_a_gain_sets_nothing(make_profile: MakeProfile) -> None:
    nothing = make_profile({}, allocator=AllocatorId("none", "", "", ""))
    assert as_docker_reads(export.render(nothing, "env")) == {}
