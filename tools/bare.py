"""Bare roots of the distributions that the README names, and its commands in them, as a stranger would type them."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import nox

from tools.environments import BUILD, ROOT, require_system

_KEYS = Path("/usr/share/keyrings")
# Release -> its mirror, where its packages are besides `main`, and the keys that they are signed by.
_RELEASES = {
    "bookworm": ("http://deb.debian.org/debian", "", "debian-archive-keyring.gpg"),
    "trixie": ("http://deb.debian.org/debian", "", "debian-archive-keyring.gpg"),
    "noble": ("http://archive.ubuntu.com/ubuntu", ",universe", "ubuntu-archive-keyring.gpg"),
}
_USER = "somebody"
# Nothing that is mounted or started in there outlives the command, or is seen on this machine.
_APART = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private"]


def try_readme(session: nox.Session, words: Iterable[str]) -> None:
    """Run the README's two commands in a bare root of each release; of those, and the commands, that words name.

    First a user types them, to whom all that is missing has to be told at once; then root, for whom it is installed.
    A root is deleted when all went well.
    """
    require_system(session, "mmdebstrap", "git")
    words = list(words)
    releases = [word for word in words if word in _RELEASES] or list(_RELEASES)
    commands = re.findall(r"^\./nox -s \w+$", (ROOT / "README.md").read_text(), re.MULTILINE)
    if not commands:
        session.error("the README has no command that begins with ./nox")
    wanted = [word for word in words if word not in _RELEASES]
    commands = [command for command in commands if not wanted or command.split()[-1] in wanted]
    left_out = {release: reason for release in releases if (reason := _left_out(release))}
    for release in releases:
        if release not in left_out:
            _try_release(session, release, commands)
    for release, reason in left_out.items():
        session.warn(f"{release} is left out: {reason}")
    if len(left_out) == len(releases) or not commands:
        session.error("nothing was tried")


def _left_out(release: str) -> str | None:
    mirror, _, keys = _RELEASES[release]
    if not (_KEYS / keys).exists():
        return f"there is no {_KEYS / keys}, which tells whether packages are its own"
    try:
        urllib.request.urlopen(f"{mirror}/dists/{release}/InRelease", timeout=30).close()
    except OSError as error:
        return f"{mirror} does not answer ({error})"
    return None


def _try_release(session: nox.Session, release: str, commands: Iterable[str]) -> None:
    root = BUILD / "bare" / release
    _make_root(session, root)
    for command in commands:
        _expect_advice(session, root, command)
    for command in commands:
        session.log(f"{release}, root: {command}")
        session.run(*_entering(root, "root", command), external=True)
    shutil.rmtree(root)


def _make_root(session: nox.Session, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    mirror, more, keys = _RELEASES[root.name]
    session.log(f"making a bare root of {root.name} from {mirror}")
    root.parent.mkdir(parents=True, exist_ok=True)
    options = ["--quiet", "--mode=root", f"--components=main{more}", f"--keyring={_KEYS / keys}"]
    # To Ubuntu apt is not one of the least packages, though each of its images has it.
    least = ["--variant=minbase", "--include=apt"]
    session.run(*_APART, "mmdebstrap", *options, *least, root.name, str(root), mirror, external=True)
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # packages start no daemons
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    session.run("chroot", str(root), "useradd", "--create-home", _USER, external=True)
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    for home in (root / "root", root / "home" / _USER):
        for name in filter(None, files.split("\0")):
            target = home / "ringcore" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    session.run("chroot", str(root), "chown", "-R", _USER, f"/home/{_USER}", external=True)


def _entering(root: Path, user: str, command: str) -> list[str]:
    """The command line; the root gets this machine's name, name servers and settings of pip."""
    _give(root, "resolv.conf", Path("/etc/resolv.conf").read_bytes())
    # As an installer leaves it: torchrun waits long for a host that does not know its own name.
    _give(root, "hosts", f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n".encode())
    settings = dict(line.split("=", 1) for line in _pip("config", "list"))
    values = {name.rpartition(".")[2]: value.strip("'") for name, value in settings.items()}
    if "cert" in values:
        _give(root, "pip-certificates", Path(values["cert"]).read_bytes())
        values["cert"] = "/etc/pip-certificates"
    text = "".join(f"{name} = {value}\n" for name, value in values.items())
    _give(root, "pip.conf", f"[global]\n{text}".encode())
    named = re.findall(r"(?:^|[\s=]|file://)(/\S+)", text.replace("/etc/pip-certificates", ""))
    folders = {"/" + path.split("/")[1] for path in named}
    folders = {folder for folder in folders if not any(Path(f"{root}{folder}").glob("*"))}  # nothing is hidden by them
    return [*_APART, "sh", str(ROOT / "tools" / "enter-root.sh"), str(root), user, command, *sorted(folders)]


def _give(root: Path, name: str, content: bytes) -> None:
    target = root / "etc" / name
    target.unlink(missing_ok=True)  # a link in there may name a file of this machine
    target.write_bytes(content)


def _pip(*arguments: str) -> list[str]:
    done = subprocess.run(["python3", "-m", "pip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def _expect_advice(session: nox.Session, root: Path, command: str) -> None:
    session.log(f"{root.name}, {_USER}: {command}")
    done = subprocess.run(_entering(root, _USER, command), capture_output=True, text=True, check=False, timeout=60)
    told = done.stderr.splitlines()
    if done.returncode != 1 or len(told) != 2 or "sudo apt-get install -y" not in told[1]:
        session.error(f"expected one line of what is missing and one of advice, and not: {done.stdout}{done.stderr}")
    session.log(told[1])
