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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hztune.allocator import elf, inside, probe
from hztune.allocator.base import tables
from hztune.arguments import FOR_SHELL
from hztune.errors import UsageError

_SCRIPTS_DEEP = 5
_RESOLVED = re.compile(r"=> (/.*) \(0x[0-9a-f]+\)$", re.M)
_SHEBANG_BYTES = 256
_GO = b"\xff Go buildinf:"


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    program: Path  # the file that is executed in the end: of a script, its interpreter
    scripts: tuple[Path, ...]  # that lead there, the named one first
    loader: Path | None  # its PT_INTERP; None: it is static, so that nothing can be preloaded
    gains_rights: bool  # set-uid, set-gid or file capabilities that take effect for this user
    inside: str  # allocator that stands in the program file itself; "": none
    obstacle: str | None  # why no allocator can be put under it, in one sentence; None: one can
    of_scripts: tuple[str, ...]  # what a script means for what is put under it
    remarks: tuple[str, ...]  # what a user should know although measuring is possible


def inspect(program: str | Path) -> LoadedProgram:
    """What `program` is; a bare name is looked for on PATH, a script followed; else UsageError."""
    path, scripts = _executed(program)
    file = elf.read(path)
    if file is None:
        raise UsageError(f"{path} is neither a program of this kind of system nor a #! script")
    mark = next(iter(inside.marks_of(path)), None)
    own = mark.family if mark else ""
    known = (named(Path(each)) for each in file.needed)
    linked = next((each for each in known if each not in ("", "glibc")), "")
    variable = mark.variable if mark else tables()[linked].variable if linked else ""
    reads = f" (it reads {variable})" if variable else ""
    is_static, has_malloc = file.interpreter is None, "malloc" in file.defines
    gains_rights = _gains_rights(path)
    is_of_go = is_static and bool(elf.contained(path, [_GO]))
    whose = f" ({own} is inside)" if own else ""
    reasons = {
        "is made for another processor or C library than this machine's allocators; they cannot be "
        "loaded into it": _kind(file) != _kind(elf.read(Path(sys.executable).resolve())),
        "is a program of Go, whose own runtime gives it all its memory": is_of_go,
        "is a static program: the loader never runs, so LD_PRELOAD and GLIBC_TUNABLES change "
        "nothing; link it dynamically, or link the allocator into it": is_static,
        "gains rights when it starts (set-uid, set-gid or capabilities): the loader then ignores "
        "LD_PRELOAD without a word; measure a copy without them": gains_rights,
        f"defines malloc itself{whose}; its own definition comes before any preloaded one": (
            has_malloc
        ),
    }
    script = tuple(
        f"{each} is a script: the allocator is put under {path} and under every program that the "
        "script starts"
        for each in scripts[:1]
    )
    told = {
        f"{path} is linked with {linked}: unchanged, it runs on that, not on glibc{reads}": linked,
        f"{path} has {own} inside under names of its own: a preloaded allocator serves only the "
        f"libraries that it uses{reads}": own and not has_malloc,
    }
    return LoadedProgram(
        path,
        scripts,
        file.interpreter,
        gains_rights,
        own,
        next((f"{path} {why}" for why, holds in reasons.items() if holds), None),
        script,
        (*script, *(sentence for sentence, holds in told.items() if holds)),
    )


def named(library: Path) -> str:
    """The allocator that a library file is, by its name; "" when hztune knows none."""
    starts = {name: table.file for name, table in tables().items() if table.file}
    return next((name for name in starts if library.name.startswith(starts[name])), "")


def loader_of(program: Path | None) -> Path:
    """The loader that `program` asks for, else the system's own; UsageError: it is static."""
    target = inspect(program or Path(sys.executable).resolve())
    if target.loader is None:
        raise UsageError(str(target.obstacle))
    return target.loader


def libraries(program: Path) -> tuple[Path, ...]:
    """What the program's loader finds for it; nothing where it is static or cannot run here."""
    loader = inspect(program).loader
    if loader is None or not loader.is_file():
        return ()
    listed = probe.run_probe({}, str(loader), "--list", str(program)).stdout
    return tuple(Path(found[1]) for found in _RESOLVED.finditer(listed))


def _executed(program: str | Path) -> tuple[Path, tuple[Path, ...]]:
    scripts, path = list[Path](), _found(program)
    while interpreter := _shebang(path):
        if len(scripts) == _SCRIPTS_DEEP:
            raise UsageError(f"{program} is a script of scripts, more than {_SCRIPTS_DEEP} deep")
        scripts.append(path)
        path = _found(interpreter)
    return path, tuple(scripts)


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
    first, _, rest = program.partition(" ")
    if rest and any(word in FOR_SHELL for word in rest.split()):
        return f"; no shell reads it, so write: sh -c {shlex.quote(program)}"
    if rest and shutil.which(first):
        return "; write its words apart, without quotes around all of them"
    if re.match(r"[A-Za-z_]\w*=", program):
        return f"; to set a variable for a program, write: env {program} PROGRAM"
    return ""


def _shebang(path: Path) -> str:
    """The interpreter of a script (`env` looked through); "" when it is no script."""
    with path.open("rb") as file:
        first = file.readline(_SHEBANG_BYTES)
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else ""


def _gains_rights(path: Path) -> bool:
    """Whether the kernel would set AT_SECURE for this user, as execve(2) describes it."""
    status, both = path.stat(), stat.S_ISGID | stat.S_IXGRP
    sets_uid = status.st_mode & stat.S_ISUID and status.st_uid != os.getuid()
    sets_gid = status.st_mode & both == both and status.st_gid != os.getgid()
    with suppress(OSError):
        has_more = os.getuid() != 0 and bool(os.getxattr(path, "security.capability"))
        return bool(sets_uid or sets_gid or has_more)
    return bool(sets_uid or sets_gid)


def _kind(file: elf.Elf | None) -> tuple[object, bool]:
    """Processor, word size and whether the C library is musl."""
    assert file is not None, "a running Python is an ELF program"
    return file.machine, file.interpreter is not None and "musl" in file.interpreter.name
