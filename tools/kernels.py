"""The tests of TLS by the kernel, in virtual machines with kernels of Debian: this machine's may have none."""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import nox

from tools.engine import build_native
from tools.environments import BUILD, install, require_system

# Suite -> what its kernel does, as kernel_tls_test.cpp has it: no kernel before Linux 6.14 can change a key.
_SUITES = {"bookworm": "cannot change the key", "trixie-backports": "offered"}
_ARCHIVE = "http://deb.debian.org/debian"
_TESTS = "--test-case=kernel tls*"
# What the kernel would ask user space for: TLS and its ciphers, as far as they are modules.
_MODULES = (
    *("tls", "gcm", "ctr", "ghash-generic", "aesni-intel", "ghash-clmulni-intel"),
    *("chacha20poly1305", "chacha", "chacha_generic", "poly1305", "poly1305_generic"),
)
_INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox ip link set lo up
for module in {modules}; do /bin/busybox insmod $module; done
/bin/busybox uname -r
RINGCORE_TEST_KERNEL_TLS='{expected}' /ringcore_tests '{tests}'
echo "exit code $?"
/bin/busybox poweroff -f
"""
_LIMIT_S = 500


def run_kernel_tls(session: nox.Session) -> None:
    """Boot a kernel that can do it and one that cannot, and run the tests in each."""
    require_system(session, "qemu-system-x86_64", "cpio", "busybox")
    install(session, "compile")
    program = build_native(session, "release", "-DRINGCORE_BUILD_TESTS=ON", target="ringcore_tests") / "ringcore_tests"
    for suite, expected in _SUITES.items():
        folder = BUILD / "kernels" / suite
        root = _fetch(session, suite, folder)
        image = _make_image(session, folder, root, program, expected)
        _boot(session, next(path for path in sorted(root.rglob("vmlinuz*")) if path.is_file()), image)


def _fetch(session: nox.Session, suite: str, folder: Path) -> Path:
    """Unpack the suite's kernel for virtual machines, by apt with lists of its own; once."""
    root = folder / "root"
    if root.exists():
        return root
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(f"deb {_archive()} {suite} main\n")
    options = [
        *(f"-oDir::Etc::sourcelist={folder}/sources.list", "-oDir::Etc::sourceparts=/dev/null"),
        *(f"-oDir::State::lists={folder}/lists", f"-oDir::Cache={folder}/cache", "-oAPT::Sandbox::User=root"),
    ]
    session.run("apt-get", *options, "update", "-q", external=True, silent=True)
    needed = session.run(
        "apt-cache", *options, "depends", "--recurse", "--important", "linux-image-cloud-amd64",
        external=True, silent=True,
    )  # fmt: skip
    packages = re.findall(r"^linux-(?:image|binary|modules)-\d\S*", needed or "", re.MULTILINE)
    with session.chdir(folder / "debs"):
        session.run("apt-get", *options, "download", "-q", *sorted(set(packages)), external=True, silent=True)
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    for package in (folder / "debs").glob("*.deb"):
        session.run("dpkg-deb", "-x", str(package), str(unpacked), external=True, silent=True)
    return unpacked.rename(root)


def _archive() -> str:
    """Where this machine takes Debian's packages from: the sources may name a mirror."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    hosts = [line for line in said.stdout.splitlines() if urllib.parse.urlparse(line).path.rstrip("/") == "/debian"]
    return hosts[0] if hosts else _ARCHIVE


def _make_image(session: nox.Session, folder: Path, root: Path, program: Path, expected: str) -> Path:
    """All that there is after the start, and stays in memory: the tests, what they load, the modules, and a shell."""
    image = folder / "image"
    shutil.rmtree(image, ignore_errors=True)
    for name in ("bin", "dev", "lib/modules"):
        (image / name).mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox")), image / "bin")
    session.run("strip", "-o", str(image / "ringcore_tests"), str(program), external=True)
    for library in _libraries(str(program), str(image / "bin" / "busybox")):
        target = image / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    names = []
    for name, content in _modules(root):
        (image / "lib" / "modules" / f"{name}.ko").write_bytes(content)
        names.append(f"/lib/modules/{name}.ko")
    start = image / "init"
    start.write_text(_INIT.format(modules=" ".join(names), expected=expected, tests=_TESTS))
    start.chmod(0o755)
    packed = folder / "image.cpio"
    with packed.open("wb") as file:
        paths = "\n".join(str(path.relative_to(image)) for path in sorted(image.rglob("*")))
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"], cwd=image, input=paths.encode(), stdout=file, check=True
        )
    return packed


def _libraries(*programs: str) -> set[str]:
    """What the programs are linked with, and OpenSSL, which the tests open."""
    cached = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"libssl\.so\.3 .*x86-64.*=> (\S+)", cached)[:1])
    for path in (*programs, *found):  # of a program that is linked with nothing, ldd says so and fails
        linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        found.update(re.findall(r"(/\S+) \(0x", linked))
    return found


def _modules(root: Path) -> Iterator[tuple[str, bytes]]:
    """Modules of the kernel, each behind those that it needs."""
    paths = {
        path.name.partition(".")[0].replace("-", "_"): path for path in root.glob("**/lib/modules/*/kernel/**/*.ko*")
    }
    done: set[str] = set()

    def load(name: str) -> Iterator[tuple[str, bytes]]:
        name = name.replace("-", "_")
        if name in done or name not in paths:
            return
        done.add(name)
        content = paths[name].read_bytes()
        if paths[name].suffix == ".xz":
            content = lzma.decompress(content)
        needed = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in needed[1].decode().split(",") if needed else []:
            yield from load(other)
        yield name, content

    for name in _MODULES:
        yield from load(name)


def _boot(session: nox.Session, kernel: Path, image: Path) -> None:
    """Run what the image starts, and read its console: all that is heard of it."""
    session.log(f"booting {kernel.name}, emulated: takes a minute or two")
    command = [
        *("qemu-system-x86_64", "-cpu", "max", "-smp", "2", "-m", "1024", "-nographic", "-no-reboot", "-nic", "none"),
        *("-kernel", str(kernel), "-initrd", str(image), "-append", "console=ttyS0 quiet panic=-1"),
    ]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False)
        said = done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace")
    print(said)
    if not re.search(r"^exit code 0\s*$", said, re.MULTILINE):
        session.error(f"the tests failed with {kernel.name}")
