"""Every form of export is read back by its own consumer, and says what the profile says."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.conftest import finished

from hztune import api, artifacts, export
from hztune.errors import NoGainError, UsageError
from hztune.profile import AllocatorId, Claim, MemoryClaim, Objective
from hztune.verifying.running import examine

from .conftest import TUNED, put

CASES = [
    (allocator, form.name)
    for allocator in TUNED
    for form in export.FORMATS
    if form.name != "json" and (not form.allocators or allocator in form.allocators)
]
PACKAGES = {
    "jemalloc": "libjemalloc2", "mimalloc": "libmimalloc2.0",
    "tcmalloc": "libtcmalloc-minimal4", "tbb": "libtbbmalloc2",
}  # fmt: skip
IN_IMAGE = Path("/usr/local/lib/libhz.so")


def expected(profile, library=None):
    """What a form must set, with hz at `library`, its small one beside it; None: as installed."""
    library = library or artifacts.library()
    soname = profile.allocator.soname
    preload = f"{soname}:{library.with_name('libhz-deepbind.so')}" if soname else ""
    preload = str(library) if profile.allocator.name == "hz" else preload
    return {**profile.environment, **({"LD_PRELOAD": preload} if preload else {})}


def printed_environment(*command, **extra):
    """What `env -0`, at the end of `command`, says its environment is."""
    done = finished(command, env={"PATH": os.environ["PATH"], **extra}, check=True)
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)


# ---- what a file says ----------------------------------------------------------------------------

SAID = (
    "remote@main remote=50, 32 threads",
    "14.0 % better in ops_per_s",
    "1.100 to 1.200",
    "max_rss 1.10x",
    "Test CPU (R) 3.0GHz, 2 CPUs, quota of 1.5",
    "2026-01-31",
    "suggest: a memory limit of 413 MiB, 1.25 times the largest peak",
    "verify:  hztune verify PROFILE --pid PID",
    "check:   without hztune, ",
    "undo:",
)


@pytest.mark.parametrize(("allocator", "name"), CASES)
def test_a_file_says_what_it_gains_and_undoes(allocator, name, make_profile):
    text = export.render(make_profile(of=allocator, suggested_limit_kb=422912), name)
    assert [said for said in SAID if said not in text] == []
    assert text.endswith("\n") and not re.search(r"[ \t]\n|\n\n$", text)


GAIN = Claim("ops_per_s", 1.14, 1.1, 1.2, 8, "improved")
CLAIMS = {
    "a gain and its cost": (GAIN, "",
        "14.0 % better in ops_per_s than the default (95 % interval 1.100 to 1.200, 8 pairs), "
        "1.570 times the peak memory of the default (95 % interval 1.500 to 1.640), "
        "0.900 times the kept memory of the default (95 % interval 0.800 to 1.000)"),
    "a gain over the program": (GAIN, "none",
                                "14.0 % better in ops_per_s than the unchanged program"),
    "a gain in time": (Claim("wall_s", 1.14, 1.09, 1.19, 14, "improved"), "",
                       "14.0 % faster than the default"),
    "a gain in a number": (Claim("metric", 1.14, 1.09, 1.19, 14, "improved"), "",
                           "14.0 % better in its own metric than the default"),
    "no gain": (Claim("ops_per_s", 0.96, 0.92, 0.99, 4, "no_gain"), "",
                "no gain in ops_per_s over the default was proved"),
    "less memory": (
        Claim("ops_per_s", 0.95, 0.92, 0.98, 12, "less_memory", MemoryClaim(0.7, 0.68, 0.72)), "",
        "0.700 times the peak memory of the default (95 % interval 0.680 to 0.720), "
        "ops_per_s 0.950 times that of the default (95"),
    "a limit": (Claim("ops_per_s", 0.95, 0.92, 0.98, 12, "within_limit"), "",
                "keeps max_rss, which the default does not, at 0.950 times its ops_per_s"),
    "nothing": (Claim("ops_per_s", None, None, None, 0, "infeasible"), "",
                "infeasible: nothing was proved"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_is_one_sentence_with_its_interval(name, make_profile):
    claimed, control, said = CLAIMS[name]
    objective = Objective(claimed.metric, {"max_rss": "1.10x"}, control)
    seen = (MemoryClaim(1.57, 1.5, 1.64), MemoryClaim(0.9, 0.8, 1.0, "kept"))
    memory = seen if name == "a gain and its cost" else ()
    made = make_profile(claim=claimed, objective=objective, memory=memory)
    assert export.provenance(made)[1].removeprefix("result:  ").startswith(said)


def test_what_cannot_be_exported_is_refused_with_what_fits(make_profile):
    with pytest.raises(UsageError, match="did you mean header"):
        export.render(make_profile(), "heder")
    with pytest.raises(UsageError, match=r"c-jemalloc exists for jemalloc.*header cmake json"):
        export.render(make_profile(), "c-jemalloc")


@pytest.mark.parametrize(
    "allocator, verdict", [("none", "improved"), ("glibc", "improved"), ("hz", "no_gain")]
)
def test_what_sets_nothing_is_json_alone(allocator, verdict, make_profile):
    claim, identity = Claim("", 1.1, 1.1, 1.2, 8, verdict), AllocatorId(allocator, "", "", "")
    nothing = make_profile({}, allocator=identity, claim=claim)
    assert json.loads(api.export(nothing, "json"))["params"] == {}
    with pytest.raises(NoGainError, match="start the program as before"):
        api.export(nothing, "env")


# ---- one machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", TUNED)
def test_env_and_systemd_give_every_variable_quoted(allocator, make_profile):
    """Docker keeps quotes, compose drops them, systemd wants no `export`: plain lines suit all."""
    profile = make_profile(of=allocator)
    lines = export.render(profile, "env").splitlines()
    given = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Z_]+=[A-Za-z0-9_.:,|=/+-]*", line) for line in given)
    assert dict(line.split("=", 1) for line in given) == expected(profile)
    text = export.render(profile, "systemd")
    assert re.findall(r'^Environment="([^"]+)"$', text, re.M) == given


@pytest.mark.parametrize(("shell", "allocator"), [("bash", "hz"), *(("dash", n) for n in TUNED)])
def test_sh_sets_the_variables_of_a_shell_and_undoes_it(shell, allocator, make_profile, tmp_path):
    text = export.render(make_profile(of=allocator), "sh")
    (tmp_path / "tuned.sh").write_text(text)
    seen = printed_environment(shell, "-euc", f". {tmp_path}/tuned.sh; env -0")
    assert seen.items() >= expected(make_profile(of=allocator)).items()
    undo = next(line for line in text.splitlines() if "# undo:" in line).split(":", 1)[1]
    if allocator == "hz":
        both = printed_environment(shell, "-euc", f". {tmp_path}/tuned.sh; env -0",
                                   LD_PRELOAD="libm.so.6")  # fmt: skip
        assert both["LD_PRELOAD"] == f"{artifacts.library()}:libm.so.6", "what was set before stays"
    before = printed_environment(shell, "-euc", "env -0")
    assert printed_environment(shell, "-euc", f". {tmp_path}/tuned.sh; {undo}; env -0") == before


@pytest.mark.parametrize("allocator", TUNED)
def test_the_wrapper_puts_it_in_effect(allocator, make_profile, started, tmp_path):
    """PHP's extensions are loaded with RTLD_DEEPBIND, which no preloaded allocator survives."""
    profile, script = make_profile(of=allocator), tmp_path / "run-tuned"
    put(tmp_path, {"run-tuned": export.render(profile, "wrapper")})
    done = finished([script, "sh", "-c", 'echo "$#:$2"; exit 7', "sh", "a b", "c  d"])
    assert (done.stdout, done.returncode) == ("2:c  d\n", 7)
    done = finished([script, "php", "-r", "echo 1;"])
    assert (done.returncode, done.stdout) == (0, "1")
    words = [script, "python3", "-S", "-c", "print('ready', flush=True); input()"]
    report = examine(profile, started(words, PATH="/usr/bin:/bin").pid)
    assert report.in_effect, report.faults
    assert {row.name: row.found for row in report.rows} == profile.params


@pytest.mark.parametrize("content", ["hz", "jemalloc", 'Environment="A=%z"', "Enviroment=A=1"])
def test_systemd_accepts_no_wrong_drop_in(content, make_profile, tmp_path):
    is_right, text = content in TUNED, f"[Service]\n{content}\n"
    if is_right:
        text = export.render(make_profile(of=content), "systemd")
    unit = {"app.service": "[Service]\nExecStart=/bin/true\n"}
    put(tmp_path / "etc/systemd/system", {**unit, "app.service.d/50-hztune.conf": text})
    put(tmp_path, {"bin/true": "#!/bin/sh\n"})
    said = finished(["systemd-analyze", "verify", f"--root={tmp_path}", "app.service"]).stderr
    assert ("50-hztune.conf" in said) != is_right, said


# ---- containers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", TUNED)
def test_a_dockerfile_brings_the_library_first(allocator, make_profile):
    profile = make_profile(of=allocator)
    text = export.render(profile, "dockerfile")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    if allocator == "hz":
        assert lines.pop(0) == f"COPY libhz.so {IN_IMAGE}"
    elif allocator in PACKAGES:
        install = "apt-get install -y --no-install-recommends"
        assert f"{install} {PACKAGES[allocator]} && rm -rf" in lines.pop(0)
        assert lines.pop(0) == "COPY libhz-deepbind.so /usr/local/lib/libhz-deepbind.so"
    given = [re.fullmatch(r'ENV ([A-Z_]+)="([^"$\\]*)"', line) for line in lines]
    assert all(given), "nothing but ENV may follow"
    assert {m[1]: m[2] for m in given if m} == expected(profile, IN_IMAGE)


@pytest.mark.parametrize("allocator", TUNED)
def test_compose_and_k8s_read_as_their_schemas_say(allocator, make_profile):
    """compose-spec.json: a list of unique strings; core/v1 EnvVar: a C identifier and a string."""
    wanted = expected(make_profile(of=allocator), IN_IMAGE)
    read = yaml.safe_load(export.render(make_profile(of=allocator), "compose"))
    entries = read["services"]["app"]["environment"]
    assert read == {"services": {"app": {"environment": entries}}}
    assert len(set(entries)) == len(entries)
    assert not any("$" in entry for entry in entries), "compose would interpolate it"
    assert dict(entry.split("=", 1) for entry in entries) == wanted
    read = yaml.safe_load(export.render(make_profile(of=allocator), "k8s"))
    assert read == {"env": [{"name": name, "value": value} for name, value in wanted.items()]}
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", entry["name"]) for entry in read["env"])
    if allocator in PACKAGES:
        for name in ("compose", "k8s", "dockerfile"):
            text = export.render(make_profile(of=allocator), name)
            needs = next(line for line in text.splitlines() if line.startswith("# needs:"))
            assert PACKAGES[allocator] in needs and "hztune paths --deepbind" in needs


POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  template:
    spec:
      containers:
        - {name: sidecar, env: [{name: LD_PRELOAD, value: /opt/proxy.so}]}
        - name: app
          env:
            - {name: TZ, value: UTC}
"""
OWN = "            - {name: LD_PRELOAD, value: /opt/own.so}\n"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
@pytest.mark.parametrize("own", ["", OWN])
@pytest.mark.parametrize("allocator", TUNED)
def test_kustomize_appends_to_what_the_pod_preloads(own, allocator, make_profile, tmp_path):
    component = export.render(make_profile(of=allocator), "kustomize")
    put(tmp_path, {"hztune/kustomization.yaml": component, "pod.yaml": POD + own})
    (tmp_path / "kustomization.yaml").write_text("resources: [pod.yaml]\ncomponents: [hztune]\n")
    built = yaml.safe_load(finished(["kubectl", "kustomize", tmp_path], check=True).stdout)
    assert built["kind"] == "Deployment", "the source of the replacement is not built"
    pod = built["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: {one["name"]: one["value"] for one in each["env"]} for each in pod}
    wanted = {"TZ": "UTC", **expected(make_profile(of=allocator), IN_IMAGE)}
    parts = [*(["/opt/own.so"] if own else []), *filter(None, [wanted.pop("LD_PRELOAD", "")])]
    assert env["sidecar"] == {"LD_PRELOAD": "/opt/proxy.so"}
    assert env["app"].pop("LD_PRELOAD", "").lstrip(":") == ":".join(parts)
    assert env["app"] == wanted


HUGE = {
    ("hz", "thp", "never"): "disable", ("hz", "thp", "on"): "system", ("hz", "thp", "off"): "",
    ("jemalloc", "thp", "always"): "system", ("jemalloc", "narenas", 2): "",
}  # fmt: skip


@pytest.mark.parametrize("setting", HUGE)
def test_a_unit_says_of_huge_pages_what_the_profile_says(setting, make_profile):
    allocator, name, value = setting
    text = export.render(make_profile({name: value}, of=allocator), "systemd")
    assert re.findall(r"^MemoryTHP=(\w+)$", text, re.M) == [HUGE[setting]] * bool(HUGE[setting])


# ---- building hz ---------------------------------------------------------------------------------


def test_cmake_writes_the_header_by_its_script(make_profile, tmp_path):
    header = export.render(make_profile(), "header")
    found, at_defaults = header.split("at their defaults")
    assert "default 256 */\n#define HZ_CONFIG_MAGAZINE_CAP 512" in found
    assert "#define HZ_CONFIG_DEPOT_LOCK HZ_DEPOT_LOCK_SPIN" in found
    assert "HZ_CONFIG_SHARDS HZ_AUTO" in at_defaults
    lists = "cmake_minimum_required(VERSION 3.20)\nproject(x NONE)\n"
    script = export.render(make_profile(), "cmake")
    put(tmp_path, {"tuned.cmake": script, "CMakeLists.txt": lists})
    build = tmp_path / "build"
    finished(["cmake", "-C", tmp_path / "tuned.cmake", "-S", tmp_path, "-B", build], check=True)
    assert (build / "hz_config.h").read_text() == header
    cache = (build / "CMakeCache.txt").read_text()
    assert f"HZ_CONFIG_HEADER:FILEPATH={build}/hz_config.h" in cache


# ---- source code ---------------------------------------------------------------------------------


@pytest.fixture
def linked(compiled):
    """Compiles an exported source with a program, runs it, and returns the words that it prints."""

    def run(source, main, *flags, **environment):
        text = f"{source}\n#include <stdio.h>\n{main}"
        program = compiled("main", text, "-Wall", "-Wextra", "-Werror", *flags)
        return finished([program], env=environment, check=True).stdout.split()

    return run


ARENAS = """
#include <malloc.h>
#include <stdlib.h>
int main(void)
{
    #pragma omp parallel num_threads(8)
    {
        void *volatile block = malloc(100);
        #pragma omp barrier
        free(block);
    }
    return malloc_info(0, stdout);
}
"""


def test_the_glibc_source_acts(make_profile, linked):
    text = export.render(make_profile(of="glibc"), "c-glibc")
    assert "missing: glibc.malloc.tcache_count=64 has no mallopt" in text
    tunables = "glibc.malloc.arena_max=8"  # the source overrides it
    without, tuned = (
        linked(source, ARENAS, "-fopenmp", GLIBC_TUNABLES=tunables).count("<heap")
        for source in ("", text)
    )
    assert without > 2 >= tuned


def test_the_jemalloc_source_acts(make_profile, linked):
    main = (
        "int mallctl(const char *, void *, size_t *, void *, size_t);\n"
        "extern const char *malloc_conf;\n"
        "int main(void) {\n"
        "    unsigned n = 0; size_t size = sizeof n;\n"
        '    int failed = mallctl("opt.narenas", &n, &size, NULL, 0);\n'
        '    printf("%u %s\\n", n, malloc_conf);\n'
        "    return failed;\n"
        "}\n"
    )
    tuned = make_profile(of="jemalloc")
    source, library = export.render(tuned, "c-jemalloc"), "-l:libjemalloc.so.2"
    conf = tuned.environment["MALLOC_CONF"]
    assert linked(source, main, library) == ["2", conf]
    assert linked(source, main, library, MALLOC_CONF="narenas:5") == ["5", conf]
    assert f'b"{conf}\\0"' in export.render(tuned, "rust-jemalloc")


def test_the_mimalloc_source_acts(make_profile, linked):
    text = export.render(make_profile(of="mimalloc"), "c-mimalloc")
    options = dict(re.findall(r"mi_option_set\((mi_option_\w+), (\d+)\);", text))
    assert len(options) == len(make_profile(of="mimalloc").environment) > 0
    reads = "".join(f'    printf("%ld\\n", mi_option_get({name}));\n' for name in options)
    main = f"#include <mimalloc.h>\nint main(void) {{\n{reads}}}\n"
    assert linked(text, main, "-lmimalloc") == list(options.values())
    newer = AllocatorId("mimalloc", "2.1.7", "libmimalloc.so.2", "c" * 64)
    sized = make_profile({"arena_reserve": 65536}, allocator=newer)
    assert "mi_option_arena_reserve, 65536);" in export.render(sized, "c-mimalloc"), "in KiB"
