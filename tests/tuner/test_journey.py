"""Every parameter reaches every station, from the table to the running library and back.

Walked here: the start value (by the header, and frozen), the environment and the profile. Looked
for in the tree: the effect, the search, the documentation and the liveness test. The others are
made from the row itself. A row that was added but is not reachable somewhere fails here,
at the stations that it misses; the last tests prove that.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil

import pytest
from tests.conftest import QUICK

from hztune import export, params, process, profile
from hztune.errors import UsageError

TABLE = params.table()
NAME = "added_row"
ADDED = f"""
HZ_INT ({NAME}, {NAME.upper()}, 4, 1, 64, POW2, "blocks", NONE,
        "nothing at all")
"""


def alternatives(row):
    """Legal values other than the default, the nearest first: big steps cost memory."""
    if row.kind == "enum":
        return [word for word in row.choices if word != row.default]
    steps = {row.low, row.high} | {2**n for n in range(40) if row.low <= 2**n <= row.high}
    default = row.default if isinstance(row.default, int) else row.low
    others = [value for value in steps if value != row.default]
    return sorted(others, key=lambda value: abs(value.bit_length() - default.bit_length()))


def everything_changed(config, rows):
    """`config` and for each row another value than its default, all legal; {}: there is none."""
    if not rows:
        return config
    for value in alternatives(rows[0]):
        try:
            params.check({**config, rows[0].name: value})
        except UsageError:
            continue
        if found := everything_changed({**config, rows[0].name: value}, rows[1:]):
            return found
    return {}


CHANGED = everything_changed({}, TABLE)
VARIABLES = params.environment(CHANGED)


def told(library, **variables):
    """A process under `library` that says what it runs with, and ends at what it refuses."""
    asked = {"LD_PRELOAD": str(library), "HZ_CONFIRM": "1", "HZ_STRICT": "1", **variables}
    return process.run(["/bin/true"], env=asked, deadline_s=60)


def confirmed(library, **variables):
    done = told(library, **variables)
    assert done.ok, done.describe()
    return json.loads(done.stderr.removeprefix("HZ_CONFIRM "))["config"]


@pytest.fixture(scope="session")
def header(root, make_profile, tmp_path_factory):
    """An hz_config.h with every row away from its default.

    Always at the same place for a tree, so that builds with it can be kept between runs.
    """
    tree = hashlib.sha256(str(root).encode()).hexdigest()[:12]
    path = tmp_path_factory.getbasetemp().parent / f"hztune-journey-{tree}" / "hz_config.h"
    path.parent.mkdir(exist_ok=True)
    text = export.render(make_profile(CHANGED), "header")
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
    return path


@pytest.fixture(scope="module")
def grown(root, tmp_path_factory):
    """A copy of the core whose table has one more row."""
    tree = tmp_path_factory.mktemp("grown")
    shutil.copytree(root / "core", tree / "core")
    table = tree / "core" / "include" / "hz" / "params.def"
    text = table.read_text()
    marker = "/* A test build may append"
    assert text.count(marker) == 1
    table.write_text(text.replace(marker, f"{ADDED}\n{marker}"))
    return tree


# ---- stations of the running library -------------------------------------------------------------


def test_the_library_says_its_defaults_and_heeds_the_environment(core_build):
    said = confirmed(core_build / "libhz.so")
    for row in TABLE:
        value = said[row.name]
        if row.default == "auto":
            assert isinstance(value, int) and row.low <= value <= row.high
        else:
            assert value == row.default
    assert confirmed(core_build / "libhz.so", **VARIABLES) == CHANGED


@pytest.mark.slow
def test_a_row_comes_from_the_table_alone(grown, build_core, header):
    own = grown / "hz_config.h"
    own.write_text(header.read_text() + f"\n#define HZ_CONFIG_{NAME.upper()} 8\n")
    built = build_core(source=grown, targets=["hz_shared"], HZ_CONFIG_HEADER=str(own), **QUICK)
    library = built / "libhz.so"
    assert confirmed(library) == {**CHANGED, NAME: 8}
    back = params.environment(params.defaults())
    said = confirmed(library, **back, **{f"HZ_{NAME.upper()}": "32"})
    fixed = {name: value for name, value in params.defaults().items() if value != "auto"}
    assert {name: said[name] for name in (*fixed, NAME)} == {**fixed, NAME: 32}


@pytest.mark.slow
def test_no_header_without_the_row_builds(grown, build_core, header):
    with pytest.raises(RuntimeError, match=f"HZ_CONFIG_{NAME.upper()}"):
        build_core(source=grown, targets=["hz_shared"], HZ_CONFIG_HEADER=str(header), **QUICK)


@pytest.mark.slow
def test_a_frozen_library_refuses_each_variable(build_core, header):
    defines = {"HZ_CONFIG_HEADER": str(header), "HZ_FROZEN": "ON", **QUICK}
    library = build_core(targets=["hz_shared"], **defines) / "libhz.so"
    said = json.loads(told(library).stderr.removeprefix("HZ_CONFIRM "))
    assert (said["config"], said["frozen"]) == (CHANGED, True)
    for variable, value in VARIABLES.items():
        refused = told(library, **{variable: value})
        assert (refused.code, variable in refused.stderr) == (78, True)


def test_a_profile_carries_every_row_there_and_back(make_profile):
    assert profile.parse(profile.dumps(make_profile(CHANGED)).encode()).params == CHANGED


# ---- stations in the tree ------------------------------------------------------------------------

STATIONS = {
    "core/src": r"\bhz_cfg\.{0}\b|\bhz_live\({0}\)",
    "search_spaces/hz.toml": r"(?m)^\[parameters\.{0}\]$|^{0} = ",
    "core/README.md": r"\| `{0}` \|",
    "tests/core/test_liveness.py": r"(?m)^{0} [a-z]",
}
"""Where a row must be found: a file or folder, by which text."""


def test_every_row_is_used_searched_documented_and_alive(root):
    files = {name: sorted((root / name).glob("*.[ch]")) or [root / name] for name in STATIONS}
    texts = {name: "\n".join(path.read_text() for path in files[name]) for name in files}

    def missed(name):
        return [at for at, text in texts.items() if not re.search(STATIONS[at].format(name), text)]

    lacking = {row.name: missed(row.name) for row in TABLE}
    assert {name: places for name, places in lacking.items() if places} == {}
    assert missed(NAME) == [*STATIONS]
