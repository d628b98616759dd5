"""Every setting of ringcore: one typed, frozen record, read once from `RINGCORE_*` variables."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ringcore._errors import InvalidArgument

PREFIX = "RINGCORE_"
_KIB = 1024
_MAX_CONNECTIONS = 64
_MAX_PORT = 65535
_SIZE_UNITS = {"": 1, "KiB": _KIB, "MiB": _KIB**2, "GiB": _KIB**3}
_LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")

# Set by `ringrun` for each rank. They say where the rank is, not how it should work, so they are
# read by `_placement` and are no settings.
PLACEMENT_VARIABLES = frozenset(
    PREFIX + name for name in ("RANK", "SIZE", "SERVERS", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
)
# What the launcher hands to its ranks besides: descriptors, and where they leave word.
_CALL_VARIABLES = frozenset(
    {"RINGCORE_CALL_FD", "RINGCORE_RESULT_FD", "RINGCORE_LOSS_FILE", "RINGCORE_WATCH_FILE", "RINGCORE_LAUNCHER_FD"}
)
# Read elsewhere: by a start of the interpreter that loads nothing of ringcore, and by ranks that Spark has placed.
OTHER_VARIABLES = {
    "RINGCORE_LIGHTNING_REGISTER": "0: the strategies are registered by `import ringcore_lightning`, and not without",
    "RINGCORE_SPARK_PARTITION": "where a rank finds its rows; set by ringcore_spark",
}


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+) ?(|KiB|MiB|GiB)", text, re.ASCII)
    if match is None:
        raise ValueError
    return int(match[1]) * _SIZE_UNITS[match[2]]


def _count(text: str) -> int:
    if re.fullmatch(r"[0-9]+", text, re.ASCII) is None:
        raise ValueError
    return int(text)


def _some(text: str) -> int:
    if _count(text) == 0:
        raise ValueError
    return int(text)


def _port(text: str) -> int:
    if _count(text) > _MAX_PORT:
        raise ValueError
    return int(text)


def _connections(text: str) -> int:
    if _count(text) > _MAX_CONNECTIONS:
        raise ValueError
    return int(text)


def _seconds_or_zero(text: str) -> float:
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", text, re.ASCII) is None:
        raise ValueError
    return float(text)


def _seconds(text: str) -> float:
    value = _seconds_or_zero(text)
    if value == 0.0:
        raise ValueError
    return value


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError


# What `off` of the setting `encryption` means, in words.
CLEAR_TEXT = "whoever sees the network between hosts can read what ranks send, and change it"


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return parse


def _networks(text: str) -> tuple[str, ...]:
    import ipaddress

    return tuple(str(ipaddress.ip_network(word)) for word in _words(text))


def _interfaces(text: str) -> tuple[str, ...]:
    # 15 characters: IFNAMSIZ of Linux without the closing zero.
    words = _words(text)
    if any(re.fullmatch(r"[^\s/,]{1,15}", word) is None for word in words):
        raise ValueError
    return words


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise ValueError
    return words


def _address(text: str) -> str:
    if re.fullmatch(r"unix:/.+", text):
        return text
    match = re.fullmatch(r"tcp:(\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", text, re.ASCII)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError
    return text


def _host_port(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text, re.ASCII)
    if match is None or not 0 < int(match[3]) < 65536:
        raise ValueError
    return match[1] or match[2], int(match[3])


def _name(text: str) -> str:
    if re.fullmatch(r"[\x21-\x7e]{1,128}", text) is None:
        raise ValueError
    return text


def _setting(
    default: Any,
    parse: Callable[[str], Any],
    accepts: str,
    text: str,
    aliases: tuple[str, ...] = (),
) -> Any:
    metadata = {"parse": parse, "accepts": accepts, "help": text, "aliases": aliases}
    return dataclasses.field(default=default, metadata=metadata)


_SIZE = "a whole number of bytes, 0 or more, with KiB, MiB or GiB behind it if you like"
_POSITIVE = "a number of seconds greater than 0, such as 30 or 0.5"
_OR_ZERO = "a number of seconds, 0 or more"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the engine of this process works.

    The field `timeout_s` is the variable `RINGCORE_TIMEOUT_S` and the ringrun option `--timeout-s`.
    """

    fusion_threshold_bytes: int = _setting(
        64 * _KIB**2,
        _size,
        _SIZE,
        "largest bucket that small tensors are fused into, 1 MiB at most in shared memory; 0: no fusion",
    )
    partition_bytes: int = _setting(
        4 * _KIB**2,
        _size,
        _SIZE,
        "between hosts a tensor with a priority is cut into pieces of this size, and overtaken between two; 0: not cut",
    )
    credit_bytes: int = _setting(
        8 * _KIB**2,
        _size,
        _SIZE,
        "operations with a priority begin side by side until so much is under way; 0: one after the other",
    )
    eager_limit_bytes: int = _setting(
        65536, _size, _SIZE, "blocking operations send their data at once while a rank then sends no more than this"
    )
    timeout_s: float = _setting(
        300.0,
        _seconds,
        _POSITIVE,
        "an operation that a rank has not joined, or of which nothing moves, for so long is an error on all ranks",
        ("--gloo-timeout-seconds",),
    )
    stall_warning_s: float = _setting(
        5.0,
        _seconds_or_zero,
        _OR_ZERO,
        "report who is missing after so long; 0: never",
        ("--stall-check-warning-time-seconds",),
    )
    heartbeat_s: float = _setting(
        2.0, _seconds, _POSITIVE, "a rank that is silent for so long is lost; far away for 30 round trips more"
    )
    elastic: bool = _setting(
        False,
        _flag,
        "1, true, yes, on, 0, false, no or off",
        "when ranks are lost the others go on in their processes; without it all fail",
    )
    elastic_timeout_s: float = _setting(
        600.0, _seconds, _POSITIVE, "a rank of an elastic job that reaches too few others to go on ends after so long"
    )
    start_timeout_s: float = _setting(
        30.0, _seconds, _POSITIVE, "all ranks must have met after so long", ("--start-timeout",)
    )
    spin_us: int = _setting(
        100,
        _count,
        "a whole number of microseconds",
        "a wait spins at least so long before it sleeps; it yields a core that others need for twice so long at most",
    )
    arena_bytes: int = _setting(
        0, _size, _SIZE, "shared memory that a rank sets aside for buckets; 0: ringcore chooses"
    )
    transport: str = _setting(
        "auto",
        _choice("auto", "shm", "tcp", "mpi"),
        "auto, shm, tcp or mpi",  # native/transport/transports.hpp
        "how ranks move bytes; auto: shared memory where it works, else TCP, or MPI where ranks meet through it",
    )
    mpi_library: str | None = _setting(
        None,
        str,
        "a path such as /opt/openmpi/lib/libmpi.so.40",
        "MPI library to use; unset: the one that is loaded already, else the one that launched the job",
    )
    network: tuple[str, ...] = _setting(
        (),
        _networks,
        "networks such as 10.0.0.0/8,192.168.1.0/24",
        "ranks connect to each other only in these networks; several of one host are used at once",
    )
    network_interfaces: tuple[str, ...] = _setting(
        (),
        _interfaces,
        "interface names such as eth0,eth1",
        "ranks connect to each other only on these interfaces; several are used at once",
        ("--network-interface", "--nics"),
    )
    connections: int = _setting(
        0,
        _connections,
        "a whole number, 0 to 64",
        "TCP connections that a link between two addresses is striped over; 0: several where one cannot fill it",
    )
    encryption: str = _setting(
        "auto",
        _choice("auto", "on", "off"),
        "auto, on or off",
        "TLS 1.3 between ranks; auto: on TCP connections that leave the host; on: on all, and what cannot be "
        "encrypted is refused; off: nowhere",
    )
    openssl_library: str | None = _setting(
        None, str, "a path such as /opt/openssl/lib/libssl.so.3", "OpenSSL 3 that encrypts; unset: the system's"
    )
    kernel_tls: bool = _setting(
        False,
        _flag,
        "1, true, yes, on, 0, false, no or off",
        "the kernel encrypts what is sent to other hosts, where it can (`ringcore doctor` says so); else, and without "
        "it, ringcore does",
    )
    deterministic: bool = _setting(
        False,
        _flag,
        "1, true, yes, on, 0, false, no or off",
        "results do not depend on timing, fusion or the plan that was chosen",
    )
    autotune: bool = _setting(
        False,
        _flag,
        "1, true, yes, on, 0, false, no or off",
        "what trains tries ways to send gradients in the first steps, and keeps the quickest; where it cannot, the log "
        "says so",
    )
    autotune_file: str | None = _setting(
        None,
        str,
        "a path on the host of rank 0",
        "what was chosen is kept here, for later jobs of this shape; unset: ringcore/tuned.json in the user's cache",
    )
    autotune_log_file: str | None = _setting(
        None, str, "a path on the host of rank 0", "write what the trials have measured to this file"
    )
    autotune_warmup_samples: int = _setting(
        3, _count, "a whole number", "the trials begin after so many samples, of as many steps as follows"
    )
    autotune_steps_per_sample: int = _setting(
        5, _some, "a whole number, 1 or more", "each way is tried for so many steps, twice in a round"
    )
    timeline: str | None = _setting(
        None, str, "a path", "write a trace of all ranks to this file", ("--timeline-filename",)
    )
    topology_file: str | None = _setting(
        None,
        str,
        "a path on the host of rank 0",
        "plan for the links between hosts that this file tells (`ringcore topology`); unset: for what transfers show",
    )
    switch: tuple[str, int] | None = _setting(
        None,
        _host_port,
        "HOST:PORT",
        "where `ringcore-switch` runs: it sums float32 on the way wherever that is measured to be quicker; unset: none",
    )
    switch_key_file: str | None = _setting(
        None,
        str,
        "a path",
        "file of mode 0600 with the switch's key: 32 bytes, or 64 hex digits; unset: RINGCORE_KEY_FILE, or "
        "~/.ringcore/key",
    )
    switch_sums: str = _setting(
        "float32",
        _choice("float32", "int32"),
        "float32 or int32",
        "what the switch adds; int32: numbers rounded to some 30 bits less log2 of the ranks below the largest of 352, "
        "whose sums no order changes",
    )
    switch_timeout_s: float = _setting(
        5.0,
        _seconds,
        _POSITIVE,
        "a switch that answers nothing for so long is an error, in elastic jobs given up; sooner it may come back",
    )
    plans: str | None = _setting(
        None, str, "names with commas between them", "register these entry points of the group ringcore.plans"
    )
    nvtx: bool = _setting(
        False,
        _flag,
        "1, true, yes, on, 0, false, no or off",
        "show operations to NVIDIA's tools, as ranges of NVTX",
    )
    nvtx_library: str | None = _setting(None, str, "a path", "NVTX; unset: the system's libnvToolsExt.so.1")
    metrics_port: int = _setting(
        0,
        _port,
        "a port from 1 to 65535, or 0",
        "local rank 0 serves numbers for Prometheus at this port, the others at the next ones; 0: nobody does",
    )
    metrics_address: str = _setting(
        "127.0.0.1", _name, "an address of this host", "where they are served: others can read them than at loopback"
    )
    log_level: str | None = _setting(
        None,
        _choice(*_LOG_LEVELS),
        ", ".join(_LOG_LEVELS),
        'level of Python\'s logger "ringcore"; unset: as the program has set it, which logs warnings',
    )
    kernels: str | None = _setting(
        None, _name, "a name that `ringcore doctor` lists", "reduction kernels to use; unset: best"
    )
    cuda_library: str | None = _setting(None, str, "a path", "CUDA's driver; unset: the system's")
    nccl_library: str | None = _setting(
        None, str, "a path", "NCCL; unset: what the framework has loaded, or its wheels have brought, or the system's"
    )
    nvrtc_library: str | None = _setting(None, str, "a path", "CUDA's compiler as a library; unset: as for NCCL")
    allow_pickle: bool = _setting(
        True,
        _flag,
        "1, true, yes, on, 0, false, no or off",
        "object collectives may pickle between the authenticated ranks of this job",
    )
    rendezvous: str | None = _setting(
        None,
        _address,
        "tcp:HOST:PORT or unix:/PATH",
        "where the ranks meet; unset: ringrun serves it, and a rank alone needs none",
    )
    key_fd: int | None = _setting(
        None, _count, "an open descriptor's number", "descriptor to read the job's 32-byte key from"
    )
    key_file: str | None = _setting(
        None, str, "a path", "file of mode 0600 that holds the job's key: 32 bytes, or 64 hex digits"
    )
    job_id: str | None = _setting(
        None,
        _name,
        "1 to 128 printable ASCII characters without spaces",
        "name of the job: its ranks find each other by it where no rendezvous is named, and refuse those of others",
        ("--rdzv-id",),
    )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings from environment variables; a missing or empty one keeps its default.

        Args:
            environ: Usually `os.environ`.

        Returns:
            The settings of this process.

        Raises:
            InvalidArgument: A variable has a value that is not accepted.
        """
        given = {name: environ.get(variable(name)) for name in names()}
        return cls(**{name: parse(name, text) for name, text in given.items() if text})


def names() -> Iterator[str]:
    """Names of all settings, in the order in which they are shown."""
    return (field.name for field in dataclasses.fields(Settings))


def variable(name: str) -> str:
    """The environment variable of a setting: `timeout_s` -> `RINGCORE_TIMEOUT_S`."""
    return PREFIX + name.upper()


def parse(name: str, text: str, *, origin: str | None = None) -> Any:
    """Parse the text of one setting.

    Args:
        name: Field of `Settings`.
        text: What the user wrote.
        origin: What to call it in an error; `None` is its variable's name.

    Returns:
        The value, of the field's type.

    Raises:
        InvalidArgument: The text is not accepted.
    """
    metadata = Settings.__dataclass_fields__[name].metadata
    try:
        return metadata["parse"](text)
    except ValueError:
        accepted = metadata["accepts"]
        raise InvalidArgument(f"{origin or variable(name)} is {text!r}, but accepted is {accepted}") from None


def check_setting(variable_name: str, text: str, *, origin: str) -> None:
    """Refuse a text that a setting does not accept, before the variable is set by it.

    Args:
        variable_name: Such as `RINGCORE_TIMEOUT_S`.
        text: What the user wrote.
        origin: What to call it in an error.

    Raises:
        InvalidArgument: The text is not accepted.
    """
    parse(variable_name.removeprefix(PREFIX).lower(), text, origin=origin)


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Variables that begin with `RINGCORE_` and mean nothing, each with the one that was most likely meant."""
    known = {variable(name) for name in names()} | PLACEMENT_VARIABLES | _CALL_VARIABLES | OTHER_VARIABLES.keys()
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    if not unknown:
        return []
    import difflib  # Every start of a rank would pay for it.

    mine = {name.removeprefix(PREFIX): name for name in known - _CALL_VARIABLES}
    # The prefix, which all have, would make all alike.
    near = [difflib.get_close_matches(name.removeprefix(PREFIX), mine, 1) for name in unknown]
    return [(name, mine[found[0]] if found else None) for name, found in zip(unknown, near, strict=True)]


def told_unknown(environ: Mapping[str, str]) -> list[str]:
    """The same for people: a line each."""
    return [
        f"{name} is set, but there is no such setting" + (f"; did you mean {meant}?" if meant else "")
        for name, meant in unknown_variables(environ)
    ]
