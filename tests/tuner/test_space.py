"""Search spaces: what may be proposed, each as indices, and what a bad file is told."""

from pathlib import Path
from random import Random

import pytest

from hztune import allocator, artifacts, files, params, space
from hztune.allocator.base import tables
from hztune.blocks import Arm
from hztune.errors import UsageError
from hztune.space.core import Expression

from .conftest import TOY_PARAMS

HEAD = 'schema = 1\nallocator = "hz"\n'


@pytest.fixture
def load(tmp_path):
    """Reads the rest of a file, on a machine of 4 CPUs for 8 threads."""

    def read(text, knobs=TOY_PARAMS, **facts):
        path = tmp_path / "space.toml"
        path.write_text(HEAD + text)
        given = {"cpus": 4, "threads": 8, **facts}
        return space.load(path, knobs, check=lambda config: None, facts=given)

    return read


def values(made, name):
    return next(d.values for d in made.dimensions if d.name == name)


# ---- what a space holds --------------------------------------------------------------------------


RANGES = [
    ("[parameters.cap]", (8, 16, 32, 64, 128, 256, 512, 1024)),
    ("[parameters.shards]", ("auto", 1, 2, 4, 8, 16)),
    ('[parameters.shards]\nhigh = "2 * min(cpus, threads)"', ("auto", 1, 2, 4, 8)),
    ('[parameters.shards]\nhigh = "1000 * cpus"', ("auto", 1, 2, 4, 8, 16)),
    ("[parameters.delay]\nhigh = 128", (0, 1, 2, 4, 8, 16, 32, 64, 100, 128)),
    ("[parameters.lock]", ("mutex", "spin", "lockfree")),
]


@pytest.mark.parametrize(("text", "listed"), RANGES)
def test_a_range_is_listed_as_its_scale_steps_special_values_first(text, listed, load):
    assert load(text).dimensions[0].values == listed
    wide = params.Param("n", 7, "a number", 0, 1000)
    few = load("[parameters.n]", (wide,)).dimensions[0].values
    assert {0, 7, 1000} <= {*few} and len(few) <= 36


def test_a_condition_decides_what_is_searched(toy_space):
    configs = [{"shards": 1}, {}, {"shards": 4}]
    assert ["ring" in toy_space.encode(config) for config in configs] == [False, False, True]


def test_what_is_forbidden_or_refused_is_named_with_its_reason(toy_space):
    def refuse(config):
        if config["lock"] == "spin":
            raise UsageError("no spinning here")

    told = "cap * shards > 2048: too much memory"
    made = space.Space("hz", (), (), (), TOY_PARAMS, refuse)
    assert toy_space.objection({"cap": 1024, "shards": 4}) == told
    assert made.objection({"lock": "spin"}) == "no spinning here"
    assert toy_space.objection({"cap": 1024}) is made.objection({"lock": "mutex"}) is None


def test_every_sample_is_legal_and_reads_back_from_its_point(toy_space, load):
    rng = Random(5)
    for config in (toy_space.sample(rng) for _ in range(100)):
        assert toy_space.at(toy_space.encode(config)) == config == toy_space.reduced(config)
        assert toy_space.contains(config)
    coarse = load("[parameters.cap]\nvalues = [16, 64]")
    assert coarse.at(coarse.encode({"cap": 512})) == {"cap": 64}, "the nearest on the grid"
    assert not coarse.contains({"cap": 512})


def test_the_fingerprint_changes_with_what_can_be_proposed(load):
    texts = ("[parameters.cap]", "# a comment\n[parameters.cap]", "[parameters.cap]\nlow = 16")
    whole, again, narrow = (load(text).fingerprint() for text in texts)
    assert whole == again != narrow


PARTS = """
forbid = [{ rule = "newer > 1", why = "x" }]
preset = [
    { name = "newer", why = "x", set = { newer = 1 } },
    { name = "rest", why = "x", set = { shards = 2 } },
    { name = "hoard", why = "x", set = { delay = 10000 } },
    { name = "at-once", why = "x", returns = true, set = { delay = 0 } },
]
[parameters]
cap = {}
newer = { if_present = true }
shards = { if_rests = true }
delay = { values = [0, 100, 10000], keeping = [10000] }
pages = { keeping = ["on"] }
"""


def test_what_a_version_lacks_or_a_study_does_not_ask_is_left_out_with_what_names_it(load):
    usual, rests, keeps = load(PARTS), load(PARTS, rests=1), load(PARTS, keeping=1)
    assert [d.name for d in usual.dimensions] == ["cap", "delay"]
    assert (usual.rules, [preset.name for preset in usual.presets]) == ((), ["at-once"])
    assert usual.returning == (Arm.of("hz", {"delay": 0}),)
    assert values(usual, "delay") == (0, 100)
    assert [d.name for d in rests.dimensions] == ["cap", "shards", "delay"]
    assert [preset.name for preset in rests.presets] == ["rest", "at-once"]
    assert values(keeps, "delay") + values(keeps, "pages") == (0, 100, 10000, "off", "on")
    assert [preset.name for preset in keeps.presets] == ["hoard", "at-once"]


# ---- the space that hztune ships for hz ----------------------------------------------------------


def test_hz_searches_every_row_but_experimental_ones_or_says_why_not():
    for rests in (0, 1):
        facts = {"cpus": 4, "threads": 8, "rests": rests}
        hz = space.load("hz", params.table(), check=params.check, facts=facts)
        assert [preset.name for preset in hz.presets if not hz.contains(preset.config)] == []
        assert hz.returning
        assert hz.contains({})
    searched = {dimension.name for dimension in hz.dimensions}
    named = files.read_toml(artifacts.search_spaces() / "hz.toml", 1 << 20)["not_searched"]
    assert searched | named.keys() == {param.name for param in params.table()}
    assert not searched & {param.name for param in params.table() if param.is_experimental}
    assert hz.returning[0].config == {"decay_ms": 0, "background_period_us": 65536}


# ---- what a bad file is told ---------------------------------------------------------------------

CAP = "[parameters.cap]\n"
PRESET = '[[preset]]\nname = "p"\nwhy = "x"\nset = { cap = %s }'
BAD = {  # by what is said, the text
    " is no TOML": "schema = = 1",
    ": contains unknown field colour": "colour = 1",
    ": parameters.capp: there is no 'capp'; did you": "[parameters.capp]",
    ": parameters.cap: contains unknown field min": CAP + "min = 8",
    "to 4096; legal is a power of two from 8": CAP + "high = 4096",
    "from 64 to 32": CAP + "low = 64\nhigh = 32",
    ": parameters.cap: low is True; expected int | str": CAP + "low = true",
    "is a word and has no range": "[parameters.lock]\nlow = 1",
    'cap is "9"': CAP + "keeping = [9]",
    "one of: mutex spin lockfree": '[parameters.lock]\nvalues = ["rw"]',
    "legal is a list of different values": CAP + "values = []",
    "there is no 'x'": CAP + 'when = "x > 1"',
    "did you mean shards": CAP + 'when = "shard > 1"',
    "is no expression": CAP + "when = \"__import__('os')\"",
    "need each other in a circle": (
        CAP + 'when = "delay > 1"\n[parameters.delay]\nwhen = "cap > 8"'
    ),
    ": forbid[0]: missing required field why": '[[forbid]]\nrule = "cap > 8"',
    ": risk[0].why is ": '[[risk]]\nrule = "cap > 8"\nwhy = "a\\nb"',  # no profile could hold it
    ': preset[0]: cap is "7"': PRESET % 7,
    "'p' is not legal: cap > 8: big": ('[[forbid]]\nrule = "cap > 8"\nwhy = "big"\n' + PRESET % 16),
    "under [parameters] too": CAP + '[not_searched]\ncap = "x"',
    ": not_searched.cap: it is ''; expected text": '[not_searched]\ncap = ""',
}


@pytest.mark.parametrize("said", BAD)
def test_a_mistake_is_one_sentence_with_the_file_and_what_is_legal(said, tmp_path, load):
    with pytest.raises(UsageError) as caught:
        load(BAD[said])
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "space.toml"))
    assert said in message
    assert "\n" not in message


def test_a_file_of_another_schema_is_refused(tmp_path):
    (tmp_path / "space.toml").write_text('schema = 2\nallocator = "hz"')
    with pytest.raises(UsageError, match="schema is 2; legal is 1"):
        space.load(tmp_path / "space.toml", (), check=lambda config: None)


# ---- expressions ---------------------------------------------------------------------------------

TRUE = [
    "1 < 2 <= 2",
    "a == 3 and word == 'auto'",
    "not a > 3",
    "a in [1, 2, 3]",
    "word not in ['x']",
    "min(a, 7) * 2 + 1 == 7",
    "max(a, 7) // 2 == 3 and 7 % 4 == 3 and 7 / 2 == 3",
    "-a < 0",
    "word > 5 or a > 2",
    "not word + 1 > 0",
]
FALSE = ["word > 0", "word < 0", "word * a > 0", "a / 0 > 0", "a > 3 or word != 'auto'"]
SENSELESS = [
    "", "a b", "a.b", "a[0]", "lambda: 1", "open('x')", "min()", "min(a, key=b)", "min(*a)",
    "min > 1 if a else a", "1.5 > a", "a ** 9", "a if a else a", "[x for x in a]", "f'{a}'",
    "(a := 1)", "a is 1", "~a", "a > " * 600 + "1",
]  # fmt: skip


@pytest.mark.parametrize("text", [*TRUE, *FALSE])
def test_an_expression_holds_or_does_not(text):
    assert Expression.parse(text).holds({"a": 3, "word": "auto"}) == (text in TRUE)


@pytest.mark.parametrize("text", SENSELESS)
def test_what_is_no_expression_or_no_number_is_refused(text):
    with pytest.raises(UsageError, match="is no expression; legal are"):
        Expression.parse(text)
    with pytest.raises(UsageError, match="does not give a whole number"):
        Expression.parse("word").number({"word": "auto"})


# ---- the spaces of foreign allocators ------------------------------------------------------------


SEED = 20260131
VERSIONS = {name: table.sources for name, table in tables().items() if table.rows}
EVERY = [(name, version) for name, versions in VERSIONS.items() for version in versions]


def _space(adapter, installed, **facts):
    return space.load(
        adapter.name,
        adapter.knobs(installed),
        check=lambda config: adapter.check(config, installed),
        facts={"cpus": 2, "threads": 8, **facts},
    )


def _of(name, version):
    return allocator.get(name), allocator.Installed(name, version, "lib.so", Path(), "", "")


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_a_space_fits_every_version_and_holds_default_and_presets(name, version):
    read = _space(*_of(name, version))
    assert (read.allocator, bool(read.dimensions)) == (name, True)
    configs = [{}, *(preset.config for preset in read.presets)]
    assert [config for config in configs if not read.contains(config)] == []


@pytest.mark.parametrize("name", VERSIONS)
def test_what_is_proposed_takes_effect_in_a_process(name):
    adapter, installed = allocator.get(name), allocator.states()[name]
    if not isinstance(installed, allocator.Installed):
        pytest.skip(str(installed))
    read = _space(adapter, installed)
    rng = Random(SEED)
    proposed = [dict(preset.config) for preset in read.presets]
    proposed += [read.sample(rng) for _ in range(4)]
    for config in proposed:
        answers = adapter.read_back(adapter.environment(config, installed), installed)
        adapter.verify(config, answers)


# Of an allocator what keeps all memory, and what is in the preset that returns most.
KEEPING = {
    "glibc": ({"trim_threshold": 1 << 30}, {"arena_max": 2}),
    "jemalloc": ({"dirty_decay_ms": -1, "muzzy_decay_ms": -1}, {"dirty_decay_ms": 0}),
    "mimalloc": ({"allow_decommit": "0", "purge_delay": -1}, {"purge_delay": 0}),
    "tcmalloc": ({"release_rate_percent": 0}, {"aggressive_decommit": "true"}),
}


@pytest.mark.parametrize(("name", "version"), [each for each in EVERY if each[0] in KEEPING])
def test_what_keeps_memory_is_only_tried_when_asked_for(name, version):
    never, returns_most = KEEPING[name]

    def in_reach(read):
        tried = {each.name: {*each.values} for each in read.dimensions}
        for knob, value in (item for preset in read.presets for item in preset.config.items()):
            tried.setdefault(knob, set()).add(value)
        return [knob for knob, value in never.items() if value in tried.get(knob, ())]

    usual, allowed = (_space(*_of(name, version), keeping=keeping) for keeping in (0, 1))
    assert usual.returning[0].config.items() >= returns_most.items()
    assert in_reach(usual) == []
    assert in_reach(allowed) or (name, version >= "2.1") == ("mimalloc", True)
