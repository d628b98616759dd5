"""Linking for systems that are older than this one: libraries that ask for nothing newer.

Compiler and headers are Debian's, as in the tests. On which systems a library runs is decided by the versions of the
symbols that it asks for. So it is linked with stand-ins of the system's libraries, which have what a policy of
auditwheel allows (manylinux_2_28: glibc 2.28, the C++ library of gcc 8) and nothing newer. What is missing then comes
from the static C++ library, or from older.c. The C++ library stays the system's, because exceptions go from one library
to another where nanobind is split. Red Hat's newer compilers make programs for its older systems like this.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from tools.environments import ROOT

POLICY = "manylinux_2_28"
_STAND_INS = ["libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"]
# What these had is in libc.so.6 since 2.34. Every library names them: an older system has to load them, newer ones have
# empty ones.
_MOVED = ["libpthread.so.0", "libdl.so.2"]
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def link_options(prefix: str, processor: str, folder: Path, policy: Path) -> list[str]:
    """Make the stand-ins for a processor.

    Args:
        prefix: What the names of its compiler and of the programs beside it begin with.
        processor: As the policies call it.
        folder: Where they go; where they are there, nothing is made.
        policy: auditwheel's file of policies.

    Returns:
        Options for the linker of that compiler, which finds them before the system's.
    """
    moved = "-Wl,--push-state,--no-as-needed,-lpthread,-ldl,--pop-state"
    options = [f"-L{folder}", "-Wl,--exclude-libs,ALL", moved]
    if folder.exists():
        return options
    folder.mkdir(parents=True)
    (rules,) = (rule for rule in json.loads(policy.read_text()) if rule["name"] == POLICY)
    allowed = {
        f"{name}_{version}" for name, versions in rules["symbol_versions"][processor].items() for version in versions
    }
    for library in [*_STAND_INS, *_MOVED]:
        symbols = _symbols(prefix, library, allowed) if library in _STAND_INS else {}
        _make_stand_in(prefix, folder / library, symbols)
    older = folder / "older.o"
    _run(f"{prefix}gcc", "-O2", "-fPIC", "-fvisibility=hidden", "-c", f"-o{older}", str(ROOT / "tools" / "older.c"))
    _run(f"{prefix}ar", "rcsD", str(folder / "libolder.a"), str(older))
    nonshared = _found(prefix, "libc_nonshared.a")
    loader = _found(prefix, _LOADERS[processor])
    scripts = {
        "libc.so": f"libc.so.6 libolder.a {nonshared} AS_NEEDED({loader})",
        "libm.so": "libm.so.6",
        "libgcc_s.so": "libgcc_s.so.1 -lgcc",
        "libstdc++.so": f"libstdc++.so.6 {_found(prefix, 'libstdc++.a')}",
        "libpthread.so": "libpthread.so.0",
        "libdl.so": "libdl.so.2",
    }
    for name, inputs in scripts.items():
        (folder / name).write_text(f"INPUT({inputs})\n")
    return options


def unresolved(prefix: str, library: Path) -> list[str]:
    """What a library asks for that it gets neither from the stand-ins nor, when it is loaded, from Python or an MPI."""
    rows = _run(f"{prefix}readelf", "--dyn-syms", "-W", str(library))
    names = re.findall(r" GLOBAL +DEFAULT +UND ([^@\s]+)$", rows, re.MULTILINE)
    return [name for name in names if not name.startswith(("Py", "_Py", "MPI_", "ompi_"))]


def unnamed(prefix: str, library: Path) -> list[str]:
    """What an older system would not load for a library that needs it there: it is not named in it.

    Where the compiler drops by itself what a newer system does not need (Ubuntu's), only the linker's option keeps it.
    """
    named = re.findall(r"\(NEEDED\).*\[(.+)\]", _run(f"{prefix}readelf", "--dynamic", "-W", str(library)))
    return [name for name in _MOVED if name not in named]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _found(prefix: str, name: str) -> Path:
    return Path(_run(f"{prefix}g++", f"-print-file-name={name}").strip()).resolve()


def _symbols(prefix: str, library: str, allowed: set[str]) -> dict[str, tuple[str, str]]:
    """Symbol -> its type, and its newest version that is allowed."""
    rows = re.findall(
        r"^ +\d+: \w+ +\w+ (\w+) +(?:GLOBAL|WEAK|UNIQUE) +DEFAULT +(?!UND)\w+ ([^@\s]+)@@?(\S+)",
        _run(f"{prefix}readelf", "--dyn-syms", "-W", str(_found(prefix, library))),
        re.MULTILINE,
    )
    newest: dict[str, tuple[str, str]] = {}
    for kind, name, version in rows:
        if version in allowed and (name not in newest or _order(newest[name][1]) < _order(version)):
            newest[name] = kind, version
    return newest


def _order(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


# Where symbols of a type are, and what the assembler calls it; all others are functions.
_SECTIONS = {"TLS": ('.tbss,"awT",@nobits', "tls_object"), "OBJECT": (".data", "object")}


def _make_stand_in(prefix: str, library: Path, symbols: dict[str, tuple[str, str]]) -> None:
    lines, versions = [], defaultdict(list)
    for name, (kind, version) in sorted(symbols.items()):
        section, type_ = _SECTIONS.get(kind, (".text", "function"))
        lines += [
            f".section {section}",
            f".globl {name}",
            f".type {name}, %{type_}",
            f"{name}: .skip 8",
            f".size {name}, 8",
        ]
        versions[version].append(name)
    source, script = library.with_suffix(".s"), library.with_suffix(".map")
    source.write_text("\n".join(lines) + "\n")
    script.write_text("".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in sorted(versions.items())))
    options = [f"-Wl,--version-script={script}"] if symbols else []
    _run(f"{prefix}gcc", "-shared", "-nostdlib", f"-Wl,-soname,{library.name}", *options, f"-o{library}", str(source))
