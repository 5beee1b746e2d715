"""What a program is before hztune measures it: whether an allocator can be put under it at all.

LD_PRELOAD fails in silence, with exit status 0, on a static program and in one that gains rights
when it starts; and a program that brings an allocator of its own is not changed by another one.
Each of these is found here and said.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hztune.allocator import elf, inside, probe
from hztune.allocator.tables import tables
from hztune.arguments import FOR_SHELL
from hztune.errors import UsageError

_SCRIPTS_DEEP = 5
_RESOLVED = re.compile(r"=> (/.*) \(0x[0-9a-f]+\)$", re.M)
_SHEBANG_BYTES = 256
_GO = b"\xff Go buildinf:"


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A program as the kernel and the loader will see it."""

    program: Path
    """The file that is executed in the end: of a script, its interpreter."""
    scripts: tuple[Path, ...]
    """The scripts that lead there, the named one first."""
    loader: Path | None
    """Its PT_INTERP; None: it is static, so that nothing can be preloaded."""
    gains_rights: bool
    """Set-uid, set-gid or file capabilities that take effect for this user."""
    linked: str
    """Allocator that it was linked with as a library (DT_NEEDED); "": none."""
    inside: str
    """Allocator that stands in the program file itself; "": none."""
    variable: str
    """The variable that this allocator reads ("JE_MALLOC_CONF"); "": not known."""
    own_malloc: bool
    """It defines malloc itself, which comes before every preloaded library."""
    is_foreign: bool
    """It is made for another kind of processor, or another C library, than we are."""

    @property
    def is_static(self) -> bool:
        return self.loader is None

    @property
    def is_of_go(self) -> bool:
        return self.is_static and bool(elf.contained(self.program, [_GO]))

    def obstacle(self) -> str | None:
        """Why no allocator can be put under the program, in one sentence; None: one can."""
        whose = f" ({self.inside} is inside)" if self.inside else ""
        reasons = {
            "is a program of Go, whose own runtime gives it all its memory": self.is_of_go,
            "is a static program: the loader never runs, so LD_PRELOAD and GLIBC_TUNABLES change "
            "nothing; link it dynamically, or link the allocator into it": self.is_static,
            "gains rights when it starts (set-uid, set-gid or capabilities): the loader then "
            "ignores LD_PRELOAD without a word; measure a copy without them": self.gains_rights,
            "is made for another processor or C library than this machine's allocators "
            f"({self.loader}); they cannot be loaded into it": self.is_foreign,
            f"defines malloc itself{whose}; its own definition comes before any preloaded one": (
                self.own_malloc
            ),
        }
        return next((f"{self.program} {why}" for why, holds in reasons.items() if holds), None)

    def remarks(self) -> tuple[str, ...]:
        """What a user should know although measuring is possible, one sentence each."""
        reads = f" (it reads {self.variable})" if self.variable else ""
        linked = (
            f"{self.program} is linked with {self.linked}: unchanged, it runs on that, not on "
            f"glibc{reads}"
        )
        inside = (
            f"{self.program} has {self.inside} inside under names of its own: a preloaded "
            f"allocator serves only the libraries that it uses{reads}"
        )
        has_inside = self.inside and not self.own_malloc
        told = (linked if self.linked else "", inside if has_inside else "")
        return (*self.of_scripts(), *filter(None, told))

    def of_scripts(self) -> tuple[str, ...]:
        """What a script means for what is put under it; nothing for a program."""
        return tuple(
            f"{script} is a script: the allocator is put under {self.program} and under every "
            "program that the script starts"
            for script in self.scripts[:1]
        )


def inspect(program: str | Path) -> LoadedProgram:
    """What `program` is; a bare name is looked for on PATH, a script followed; else UsageError."""
    path, scripts = _executed(program)
    file = elf.read(path)
    if file is None:
        raise UsageError(f"{path} is neither a program of this kind of system nor a #! script")
    linked = next(
        (name for name in map(named, map(Path, file.needed)) if name not in ("", "glibc")), ""
    )
    own = next(iter(inside.marks_of(path)), None)
    return LoadedProgram(
        program=path,
        scripts=scripts,
        loader=file.interpreter,
        gains_rights=_gains_rights(path),
        linked=linked,
        inside=own.family if own else "",
        variable=own.variable if own else tables()[linked].variable if linked else "",
        own_malloc="malloc" in file.defines,
        is_foreign=file.interpreter is not None and _kind(file) != _kind(_ourselves()),
    )


def named(library: Path) -> str:
    """The allocator that a library file is, by its name; "" when hztune knows none."""
    starts = {name: table.file for name, table in tables().items() if table.file}
    return next((name for name in starts if library.name.startswith(starts[name])), "")


def loader_of(program: Path | None) -> Path:
    """The loader that `program` asks for, else the system's own; UsageError: it is static."""
    if program is None:
        loader = _ourselves().interpreter
        if loader is None:
            raise UsageError(f"{sys.executable} is a static program: there is no loader to ask")
        return loader
    target = inspect(program)
    if target.loader is None:
        raise UsageError(str(target.obstacle()))
    return target.loader


def libraries(program: Path) -> tuple[Path, ...]:
    """The files that the program's loader finds for what it was linked with.

    None for a static program, and for one whose loader cannot run here.
    """
    loader = inspect(program).loader
    if loader is None or not loader.is_file():
        return ()
    listed = probe.run_loader(loader, "--list", str(program)).stdout
    return tuple(Path(found[1]) for found in _RESOLVED.finditer(listed))


def _executed(program: str | Path) -> tuple[Path, tuple[Path, ...]]:
    """The file that is run in the end, and the scripts on the way to it."""
    scripts: list[Path] = []
    path = _found(program)
    while len(scripts) < _SCRIPTS_DEEP:
        interpreter = _shebang(path)
        if interpreter is None:
            return path, tuple(scripts)
        scripts.append(path)
        path = _found(interpreter)
    raise UsageError(f"{program} is a script of scripts, more than {_SCRIPTS_DEEP} deep")


def _found(program: str | Path) -> Path:
    """The executable file that a name means; a Path is a file, its `./` lost or not."""
    named = program.absolute() if isinstance(program, Path) else program
    found = shutil.which(named)
    if found is None:
        raise UsageError(
            f"there is no program {str(program)!r} that can be executed{_meant(str(program))}"
        )
    return Path(found).absolute()


def _meant(program: str) -> str:
    """What was probably meant by a name of no program; "": nothing is known."""
    first, _, rest = program.partition(" ")
    if rest and any(word in FOR_SHELL for word in rest.split()):
        return f"; no shell reads it, so write: sh -c {shlex.quote(program)}"
    if rest and shutil.which(first):
        return "; write its words apart, without quotes around all of them"
    if re.match(r"[A-Za-z_]\w*=", program):
        return f"; to set a variable for a program, write: env {program} PROGRAM"
    return ""


def _shebang(path: Path) -> str | None:
    """The interpreter of a script (`env` looked through); None when it is no script."""
    with path.open("rb") as file:
        first = file.readline(_SHEBANG_BYTES)
    if not first.startswith(b"#!"):
        return None
    words = shlex.split(first[2:].decode(errors="replace"))
    if not words:
        return None
    if Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else None


def _gains_rights(path: Path) -> bool:
    """Whether the kernel would set AT_SECURE for this user, as execve(2) describes it."""
    status = path.stat()
    sets_gid = stat.S_ISGID | stat.S_IXGRP
    if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
        return True
    if status.st_mode & sets_gid == sets_gid and status.st_gid != os.getgid():
        return True
    if os.getuid() == 0:
        return False
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


@cache
def _ourselves() -> elf.Elf:
    """The headers of this Python, which runs under the system's own loader."""
    file = elf.read(Path(sys.executable).resolve())
    assert file is not None, "a running Python is an ELF program"
    return file


def _kind(file: elf.Elf) -> tuple[tuple[int, int], bool]:
    """Processor, word size and whether the C library is musl."""
    return file.machine, file.interpreter is not None and "musl" in file.interpreter.name
