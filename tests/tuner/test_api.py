"""What `import hztune` offers: the functions that the command line calls, with their results."""

import ast
import dataclasses
import inspect
import itertools
import os
import pydoc
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.conftest import finished

import hztune
from hztune import api, files
from hztune.measure.program import called
from hztune.measure.whole import CallExecutor
from hztune.tuning.request import TuneRequest

from .conftest import ONE_KNOB, Listener, spin_wins
from .measured import CONTROL, FIRST, OpenProof


def test_the_command_line_uses_every_function_of_the_api():
    used = {
        node.attr
        for path in Path(api.__file__).parents[1].glob("cli/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "api"
    }
    assert used == set(api.__all__)


@pytest.mark.parametrize("name", api.__all__)
def test_the_text_of_a_function_explains_it_and_each_of_many_arguments(name):
    function = getattr(api, name)
    text = inspect.getdoc(function) or ""
    text += (inspect.getdoc(hztune.tune) or "") if name == "request" else ""
    taken = list(inspect.signature(function).parameters)
    assert text.split(".")[0].count(" ") >= 3
    assert len(taken) < 4 or all(f"{each}:" in text for each in taken)


@pytest.fixture
def study(simulate, carry_out, monkeypatch):
    """Carries out a study from Python, of a simulated target on which `spin` is faster."""
    monkeypatch.setattr("hztune.doctor.remarks", lambda: ["warning: others want the CPUs"])
    simulate(spin_wins(knob="depot_lock"))
    return partial(carry_out, ONE_KNOB, budget="1m")


def test_a_study_from_python_ends_in_a_result_with_its_views(study):
    listener = Listener()
    studied = study("larson", threads=2, reporter=listener)
    said = [line.partition(":")[0] for line in listener.lines]
    assert said.index("warning") < said.index("calibrated"), "what disturbs is said first"
    tuned, folder = studied.profile, studied.folder
    assert (tuned.claim.verdict, tuned.params) == ("improved", {"depot_lock": "spin"})
    assert folder is not None and api.load_profile(folder / "profile.json") == tuned
    made = api.environment(tuned, {"HZ_DEPOT_LOCK": "mutex", "HOME": "/h"})
    assert (made["HZ_DEPOT_LOCK"], made["HOME"]) == ("spin", "/h")
    assert api.summary(studied)["verdict"] == "improved"
    assert any(line.startswith("verdict: improved") for line in api.summary_lines(studied))
    assert "depot_lock" in api.report(folder).read_text()


def test_a_program_may_be_called_as_it_likes(study, tmp_path):
    program = tmp_path / "my pr\u00f6g's\udcff"
    program.symlink_to("/bin/cat")
    found = study(program=api.program((str(program),)), allocator="hz")
    assert found.profile.workload.name == "my-pr-g-s-"
    assert api.load_profile(found.folder / "profile.json") == found.profile


def test_a_study_in_a_thread_is_like_any_other(study):
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(study, "larson", threads=2).result()
    assert result.profile.claim.verdict == "improved"


# ---- a function that measures --------------------------------------------------------------------


def test_functions_stay_functions_whatever_was_imported_before():
    code = "import hztune.comparing.conduct, hztune.api.stable as s, hztune\n"
    code += "names = {*dir(hztune)} - {'__version__'}\n"
    code += "same = all(getattr(hztune, n) is getattr(s, n) for n in names)\n"
    code += "print(same and names == {*s.__all__}, hztune.__version__)"
    done = finished([sys.executable, "-c", code])
    assert done.stdout.split() == ["True", hztune.version()], done.stderr


def test_help_is_the_description_and_the_contents_of_the_package():
    assert len(pydoc.render_doc(hztune).splitlines()) < 80


def test_a_request_takes_what_tune_takes():
    ours, below = (inspect.signature(each).parameters for each in (hztune.tune, api.request))
    fields = {each.name: each.default for each in dataclasses.fields(TuneRequest)}
    others = {name: each.default for name, each in below.items() if name != "fields"}
    taken = {**fields, **others}
    assert ours.keys() - {"reporter"} == taken.keys() - {"beside", "more", "budget_s", "command"}
    assert [name for name in ours if name in taken and ours[name].default != taken[name]] == []


def by_call(measure, *arms, **options):
    """The executor of a function, and the outcomes of a block of these arms."""
    executor = CallExecutor(called(measure, **options), seed=1, identity=OpenProof())
    return executor.measure(arms or [CONTROL, FIRST], role="search", rounds=1, number=0).outcomes


def test_a_function_is_given_the_environment_of_each_arm_and_its_seconds_count():
    seen = []

    def seconds(environment):
        seen.append(environment)
        return 2.0 if environment.get("KNOB_knob") else 4.0

    control, tuned = by_call(seconds)
    assert (control.ops_per_s, tuned.ops_per_s) == (0.25, 0.5)
    assert all(each["PATH"] == os.environ["PATH"] for each in seen)
    control, tuned = by_call(seconds, maximize=True)
    assert (control.ops_per_s, tuned.ops_per_s) == (4.0, 2.0)


WRONG = {
    "nan": float("nan"), "zero": 0, "negative": -1.0, "infinite": float("inf"), "a text": "1.5",
    "nothing": None, "true": True, "an array": np.array([1.0]), "complex": 1j,
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_number_above_0_is_a_failure_of_that_arm_alone(what):
    (control, tuned) = by_call(lambda env: WRONG[what] if "KNOB_knob" in env else 1)
    assert control.ok and tuned.status == "bad_output"
    assert tuned.detail.startswith("your function lambda returned ") and "above 0" in tuned.detail


@pytest.mark.parametrize("error", [ValueError("no\nroom"), SystemExit(3)])
def test_what_a_function_raises_is_told_as_its_own_with_its_line(error):
    def seconds(environment):
        if "KNOB_knob" in environment:
            raise error
        return 1.0

    (control, tuned) = by_call(seconds)
    assert control.ok and tuned.status == "failed"
    assert tuned.detail.startswith(f"your function seconds raised {type(error).__name__}: ")
    assert "(test_api.py:" in tuned.detail and "\n" not in tuned.detail


def test_a_function_that_fails_for_the_control_ends_all_at_once_with_its_own_error():
    with pytest.raises(hztune.HztuneError, match="lambda raised TypeError") as refused:
        by_call(lambda: 1.0)
    assert isinstance(refused.value.__cause__, TypeError)
    with pytest.raises(hztune.HztuneError, match="returned 0; legal is"):
        by_call(lambda environment: 0)


def test_a_child_that_a_function_forks_does_not_go_on_as_hztune(tmp_path, quiet_machine):
    def forks(environment):
        if child := os.fork():
            os.waitpid(child, 0)
        with (tmp_path / "returned").open("a") as file:
            file.write("parent " if child else "child ")
        return 1.0

    assert by_call(forks, CONTROL)[0].ok
    returned = (tmp_path / "returned").read_text()
    assert returned == returned.count("parent") * "child parent "


NOISE = itertools.cycle([1.0, 0.99, 1.01, 0.995, 1.005])  # whose mean is 1 in any stretch


def seconds_of_spin(environment):
    """Seconds as a process of hz might take them, which is not asked to speak on stderr."""
    assert "HZ_CONFIRM" not in environment
    gain = 1.2 if environment.get("HZ_DEPOT_LOCK") == "spin" else 1.0
    return next(NOISE) / gain


@pytest.fixture
def asked(tmp_path):
    """A study of one parameter."""
    space = tmp_path / "one.toml"
    space.write_text(ONE_KNOB)
    return {"allocator": "hz", "space": str(space), "budget": 20, "out": tmp_path / "out"}


@pytest.fixture
def measured(monkeypatch, quiet_machine):
    """That function, which takes a tenth of what it says, on a clock that nothing else moves."""
    now_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], monotonic_ns=lambda: round(1e9 * now_s[0]))
    monkeypatch.setattr("hztune.measure.whole.time", clock)
    monkeypatch.setattr("hztune.tuning.session.system_clock", clock.monotonic)
    monkeypatch.setattr("hztune.verifying.claim.system_clock", clock.monotonic)

    def seconds(environment):
        took = seconds_of_spin(environment)
        now_s[0] += 0.1 * took
        return took

    return seconds


def test_a_study_by_a_function_is_proved_kept_and_verified(asked, measured):
    result = hztune.tune(measure=measured, **asked)
    assert result.profile.claim.verdict == "improved"
    assert dict(result.profile.params) == {"depot_lock": "spin"}
    assert [each.what for each in result.profile.cautions] == ["unseen"]
    columns = {name: np.array(values) for name, values in result.blocks.items()}
    tuned = (columns["params.depot_lock"] == "spin") & (columns["role"] == "confirm")
    assert 1.15 < columns["ratio"][tuned].astype(float).mean() < 1.25
    found = hztune.load_profile(asked["out"] / "profile.json")
    assert found == result.profile
    assert hztune.verify(found, measure=measured, budget=20, keep=False).answer == "holds"


def test_ctrl_c_within_a_function_keeps_what_was_measured(asked, quiet_machine):
    left = iter(range(20))

    def seconds(environment):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return seconds_of_spin(environment)

    result = hztune.tune(measure=seconds, **asked)
    assert result.profile.claim.verdict == "interrupted" and result.blocks["block"]


def test_two_that_begin_in_one_second_have_a_directory_each(monkeypatch):
    monkeypatch.setattr(files.time, "strftime", lambda _: "now")
    assert files.fresh_results("compare") != files.fresh_results("compare")


def test_a_comparison_by_a_function_has_its_figures_as_columns(quiet_machine):
    found = hztune.compare(["none", "hz:depot_lock=spin"], measure=seconds_of_spin, budget=2)
    assert found.standings[0].of("hz:depot_lock=spin").speed.ratio.low > 1.1
    assert set(found.blocks["arm"]) == {"none", "hz:depot_lock=spin"}
    assert len({len(each) for each in found.blocks.values()}) == 1


REFUSED = {
    "a program and measure": lambda: hztune.tune(program=["ls"], measure=seconds_of_spin),
    "maximize alone": lambda: hztune.tune("larson", maximize=True),
    "a program in one text": lambda: hztune.tune(program="ls"),
    "a word that is no text": lambda: hztune.tune(program=["sleep", 1]),
    "a program among words": lambda: hztune.tune(program=[hztune.program(["ls"]), "-l"]),
    "no function": lambda: hztune.tune(measure=3),
    "a limit of memory": lambda: hztune.tune(measure=seconds_of_spin, max_rss="1x"),
    "a cluster": lambda: hztune.tune(measure=seconds_of_spin, on="tcp://x:1"),
    "nothing to compare on": lambda: hztune.compare(["none", "hz"]),
    "one text of contenders": lambda: hztune.compare("none", "larson"),
    "no profile": lambda: hztune.verify("nowhere.json"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_legal_is_refused_in_one_sentence(what):
    with pytest.raises(hztune.UsageError) as refused:
        REFUSED[what]()
    assert 10 < len(str(refused.value)) < 300
