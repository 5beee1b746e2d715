"""A foreign allocator in a shared library that is preloaded by its soname, by its table.

The library is found as the target will find it, by preloading the soname into a probe and looking
which file was mapped: what the loader does with a name is decided by the loader alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hztune import artifacts
from hztune.allocator import probe
from hztune.allocator.base import Adapter, Environment, Installed, WrongConfiguration
from hztune.allocator.tables import SWITCH, KnobRow, tables
from hztune.errors import UsageError
from hztune.files import sha256_of
from hztune.params import Value

_STRICT = "abort_conf:true"
_SAY = "confirm_conf:true"
#: Asked with a longer buffer than the value's, mallctl fills it all the same; 2 is ENOENT: this
#: version has no such name.
_ASK_JEMALLOC = """
answer = {}
for knob, name, form in ASKED:
    raw, length = ctypes.create_string_buffer(8), ctypes.c_size_t(8)
    if this.mallctl(name, raw, ctypes.byref(length), None, ctypes.c_size_t(0)) == 2:
        continue
    value = int.from_bytes(raw.raw, "little", signed=True)
    if form == "switch":
        answer[knob] = ("false", "true")[value]
    else:
        answer[knob] = ctypes.string_at(value).decode() if form == "word" else value
"""
#: The C++ members use no `this`; NumMoveSize(8) is the limit itself up to 8192.
_ASK_TCMALLOC = """
answer = {}
def number(name):
    value = ctypes.c_size_t()
    if this.MallocExtension_GetNumericProperty(name, ctypes.byref(value)):
        return value.value
answer["max_total_thread_cache_bytes"] = number(b"tcmalloc.max_total_thread_cache_bytes")
decommits = number(b"tcmalloc.aggressive_memory_decommit")
answer["aggressive_decommit"] = None if decommits is None else ("false", "true")[bool(decommits)]
try:
    batch = this._ZN8tcmalloc7SizeMap11NumMoveSizeEm
    batch.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    answer["transfer_num_obj"] = batch(None, 8)
    rate = this._ZN22TCMallocImplementation20GetMemoryReleaseRateEv
    rate.argtypes, rate.restype = [ctypes.c_void_p], ctypes.c_double
    answer["release_rate_percent"] = round(100 * rate(None))
except AttributeError:
    pass
"""


class Library(Adapter):
    """One of which the table says all: what it runs with, it says itself or nothing does."""

    def installed(self) -> Installed:
        """The library that the loader finds under the first soname that it knows."""
        if self.is_inside:
            raise UsageError(
                f"{self.name} is no library of this machine: it stands in a program; let `hztune "
                "--allocator inside -- ./program` find settings for it, and name the profile"
            )
        for soname, package in self.table.libraries:
            stem = f"/{soname.partition('.so')[0]}.so"
            code = (
                f"files = [file for file in mapped() if {stem!r} in file]\n"
                f"version = {self.table.probe_version.strip()} if files else ''\n"
                "say({'files': files, 'version': version})"
            )
            answer = probe.ask(code, {"LD_PRELOAD": soname})
            if answer["files"]:
                path, version = Path(answer["files"][0]), answer["version"]
                return Installed(self.name, version, soname, path, sha256_of(path), package)
        package = self.table.package
        remedy = (
            f"install it with: apt-get install {package}"
            if package
            else "it has no Debian package: build it and put its library where the loader looks"
        )
        raise UsageError(f"{self.name} is not installed on this machine; {remedy}")

    def preloads(self, installed: Installed) -> tuple[str, ...]:
        """The soname, and the library without which RTLD_DEEPBIND would end the program."""
        return (installed.preload, str(artifacts.deepbind()))

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """What a process that does nothing says; of what is inside, what its variables ask for."""
        if self.is_inside:
            return self.requested(environment, installed)
        if not self.confirms:
            return self.answers(environment, installed)
        with_it = {"LD_PRELOAD": installed.preload, **environment}
        done = probe.run_true(self.confirm_environment(with_it))
        said = self.confirmed(done.stderr)
        if said is None:
            raise WrongConfiguration(
                f"{self.name} did not say what it runs with; the process {done.describe()}"
            )
        return said

    def answers(self, environment: Mapping[str, str], installed: Installed) -> dict[str, Value]:
        """What a probe learns from the library; here only that it is in the process."""
        self.ask("answer = {}", environment, installed)
        return {}

    def ask(self, code: str, environment: Mapping[str, str], installed: Installed) -> Any:
        """What Python code leaves in `answer`, in a probe that has the library.

        Raises:
            WrongConfiguration: The probe was started with it, but runs without it.
        """
        answer = probe.ask(
            f"{code}\nsay({{'files': mapped(), 'answer': answer}})",
            {"LD_PRELOAD": installed.preload, **environment},
        )
        if str(installed.path) not in answer["files"]:
            raise WrongConfiguration(
                f"{installed.preload} was preloaded, but {installed.path} is not in the process"
            )
        return answer["answer"]


class Jemalloc(Library):
    """A bad pair is only spoken of on stderr unless abort_conf:true stands first.

    Names and values are compared by prefix (`m:auto` is taken for metadata_thp), and several values
    are clipped in silence: whole names are written, and values read back through mallctl.
    """

    def saying(self) -> Environment:
        return {self.variable: _SAY}

    def confirm_environment(self, environment: Mapping[str, str]) -> Environment:
        """`environment` with bad pairs fatal from the first on, and good ones said."""
        pairs = [_STRICT, _SAY, *filter(None, [environment.get(self.variable, "")])]
        return {**environment, self.variable: ",".join(pairs)}

    def confirmed(self, stderr: str) -> dict[str, Value] | None:
        """The pairs that jemalloc took; their values are as written, before clipping."""
        return super().confirmed(stderr) or ({} if _SAY in stderr else None)

    def read_back(
        self, environment: Mapping[str, str], installed: Installed, program: Path | None = None
    ) -> dict[str, Value]:
        """What mallctl says in a probe: every value after clipping."""
        if self.is_inside:
            return self.requested(environment, installed)
        asked = [(row.name, *_mallctl(row)) for row in self.rows(installed)]
        strict = self.confirm_environment(environment)
        answer: dict[str, Value] = self.ask(f"ASKED = {asked!r}{_ASK_JEMALLOC}", strict, installed)
        return answer


def _mallctl(row: KnobRow) -> tuple[bytes, str]:
    """The name under which mallctl knows a knob, and the form of its answer."""
    if row.name == "bin_shards":
        return b"arenas.bin.0.nshards", "number"
    form = "switch" if row.words == SWITCH else "word"
    return f"opt.{row.option}".encode(), form if row.words else "number"


class Tcmalloc(Library):
    """The library's own functions say in a probe what it runs with, after clipping."""

    def value_of(self, row: KnobRow, text: str) -> Value:
        if row.words == SWITCH:
            return SWITCH[text[:1] in "tTyY1"]
        return super().value_of(row, text)

    def answers(self, environment: Mapping[str, str], installed: Installed) -> dict[str, Value]:
        said: dict[str, Value | None] = self.ask(_ASK_TCMALLOC, environment, installed)
        return {name: value for name, value in said.items() if value is not None}


def library_of(name: str, prefix: str | None = None) -> Library:
    """The adapter of a preloaded library, or with a prefix of a build inside a program."""
    kinds: dict[str, type[Library]] = {"jemalloc": Jemalloc, "tcmalloc": Tcmalloc}
    return kinds.get(name, Library)(tables()[name], prefix)
