"""The command `ringrun` (also `ringcore run`)."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringcore._errors import BootstrapError, InvalidArgument
from ringcore.environment import settings as _settings
from ringcore.launcher import _hosts, _layout, _options, _placed, _watching
from ringcore.launcher._frames import Kind
from ringcore.launcher._guard import Guard
from ringcore.launcher._layout import JobLayout
from ringcore.launcher._loop import Loop
from ringcore.launcher._options import Options
from ringcore.launcher._output import Output, OutputOptions
from ringcore.launcher._supervisor import JobInput, Supervisor

if TYPE_CHECKING:
    from ringcore.bootstrap import RendezvousServer

_KEY_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Placed:
    """What is special where a scheduler starts the agents.

    Attributes:
        bind: This host's address that they reach.
        listener: Descriptor of the socket that they dial; it listens already.
        key: The job's key.
    """

    bind: str
    listener: int
    key: bytes = dataclasses.field(repr=False)


class KeyFileError(ValueError):
    """The descriptor that is to hold the job's key holds none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job as the command line says.

    Args:
        argv: Without the program's name; `None` is `sys.argv[1:]`.

    Returns:
        The exit code.
    """
    _fill_standard_streams()
    try:
        return start_job(_options.parse(sys.argv[1:] if argv is None else argv, os.environ))
    except _options.UsageError as error:
        print(f"ringrun: {error}\nringrun: see ringrun --help", file=sys.stderr)
        return 2
    except (_hosts.HostError, InvalidArgument, BootstrapError, KeyFileError) as error:
        print(f"ringrun: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _fill_standard_streams() -> None:
    """Put something in the place of standard streams that were closed: else the next file would take it.

    What is written there fails, as it would have done.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)


def start_job(
    options: Options,
    *,
    loop: Loop | None = None,
    blobs: dict[str, bytes] | None = None,
    on_result: Callable[[int, bytes], None] | None = None,
    on_start: Callable[[Supervisor], None] | None = None,
    placed: Placed | None = None,
) -> int:
    """Run a job to its end.

    Args:
        options: From `_options.parse`.
        loop: Where the caller waits for more than the job; `None`: a new one.
        blobs: Variable -> bytes for the ranks to read from a descriptor, besides the key.
        on_result: Takes (rank, piece) of what ranks write to RINGCORE_RESULT_FD.
        on_start: Is given the supervisor before the job starts.
        placed: A scheduler starts the agents.

    Returns:
        The exit code.

    Raises:
        HostError, InvalidArgument, BootstrapError, KeyFileError: Found before any rank was started.
    """
    settings = _settings.Settings.from_environ({**os.environ, **options.settings})
    if options.is_node:
        if on_result is not None:
            raise _hosts.HostError(
                "ringcore.run calls a function in a job of its own: leave out --nnodes MIN:MAX (PET_NNODES), or start "
                "a script that calls the function by ringrun on each node"
            )
        return _run_node(options, settings, loop or Loop())
    if options.listen is not None:
        placed = _listen(options, settings)
    if options.servers and placed is not None:
        raise _hosts.HostError("a scheduler that starts the ranks starts no servers: leave out --servers")
    if placed is None:
        layout = _layout.make_layout(options, settings)
    else:
        layout = _placed.layout_of((options.np or 1) if options.elastic is None else 0, placed.bind)
    key = _read_key(options) if placed is None else placed.key
    loop = loop or Loop()
    output = Output(loop, _output_options(options, layout), os.environ)
    _make_logs(output, options, layout)
    with contextlib.ExitStack() as stack:
        guard = Guard.start()  # Before the rendezvous and the output have their threads.
        stack.callback(guard.close)
        _say_first(output, options, placed)
        rendezvous = layout.rendezvous or ""
        job_id = options.settings.get("RINGCORE_JOB_ID") or _job_id(options, key)
        on_well_ended: Callable[[int], None] | None = None
        if layout.serves and options.elastic is None:
            server = stack.enter_context(_serve(layout, key, job_id))
            rendezvous = layout.rendezvous or server.address
            on_well_ended = server.note_ended
        given = JobInput(
            # Where a scheduler starts the agents they have them already, by its own channel.
            blobs={**(blobs or {}), "RINGCORE_KEY_FD": key} if placed is None else {},
            job_id=job_id,
            rendezvous=rendezvous,
            on_result=on_result,
            gate=None if placed is None else _placed.Gate(loop, key, placed.listener),
            on_well_ended=on_well_ended,
            serve=lambda bind: stack.enter_context(_serve(dataclasses.replace(layout, bind=bind), key, job_id)),
        )
        if given.gate is not None:
            stack.callback(given.gate.close)
        make = Supervisor if options.elastic is None else _elastic_supervisor(options, placed is not None)
        supervisor = make(loop, guard, output, options, layout, given, settings.start_timeout_s)
        if on_start is not None:
            on_start(supervisor)
        _let_in(stack, guard, loop, supervisor, options, layout, job_id)
        return supervisor.run()


def _run_node(options: Options, settings: _settings.Settings, loop: Loop) -> int:
    from ringcore.launcher.node import OwnNode

    layout = _layout.make_layout(options, settings)
    key = _read_key(options)
    output = Output(loop, _output_options(options, layout), os.environ)
    with contextlib.closing(Guard.start()) as guard:  # Before the output has its threads.
        _say_first(output, options)
        return OwnNode(loop, guard, output, options, layout, key).run(settings.start_timeout_s)


def _listen(options: Options, settings: _settings.Settings) -> Placed:
    """Listens for nodes that come by themselves, at an address that their ranks reach as well."""
    import ipaddress

    from ringcore.bootstrap.interfaces import own_address
    from ringcore.bootstrap.sockets import listen_tcp

    assert options.listen is not None
    host, port = options.listen
    _layout.require_key(options)
    key = _read_key(options)
    if host is None and (settings.network_interfaces or settings.network):
        host = _hosts.address_on(settings.network_interfaces, settings.network)
    listener = listen_tcp(host or own_address(), port)
    address = str(listener.getsockname()[0])
    if ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
        listener.close()
        raise _hosts.HostError(f"--listen {host}:{port}: name one address, which the nodes reach: ranks are told it")
    return Placed(address, listener.detach(), key)


def _say_first(output: Output, options: Options, placed: Placed | None = None) -> None:
    for line in [*options.notes, *_settings.told_unknown(os.environ)]:
        output.say(f"ringrun: {line}")
    if options.listen is not None and placed is not None:
        from ringcore.bootstrap.sockets import format_address

        output.say(f"ringrun: waiting for nodes at {format_address((placed.bind, options.listen[1]))}")


def _elastic_supervisor(options: Options, is_placed: bool) -> type[Supervisor]:
    # Most jobs are neither.
    if options.listen is not None:
        from ringcore.launcher.elastic.nodes import NodesSupervisor

        return NodesSupervisor
    if is_placed:
        from ringcore.launcher.elastic.arrivals import PlacedElasticSupervisor

        return PlacedElasticSupervisor
    from ringcore.launcher.elastic.supervisor import ElasticSupervisor

    return ElasticSupervisor


def _let_in(
    stack: contextlib.ExitStack,
    guard: Guard,
    loop: Loop,
    supervisor: Supervisor,
    options: Options,
    layout: JobLayout,
    job: str,
) -> None:
    """Let this user look at the job; where there is no private folder for that, it runs all the same."""
    import time

    # Each launcher of a job that has several knows its own ranks.
    name = job if options.nnodes == 1 else f"{job}.node{options.node_rank}"
    about = {
        "job": name,
        "size": layout.size,
        "command": list(options.command),
        "hosts": [node.name for node in layout.nodes],
        "started": time.time(),
        "launcher": os.getpid(),
    }
    try:
        door = _watching.Door(loop, name, about, supervisor.ask, supervisor.order)
    except FileExistsError as error:
        if options.elastic is not None:  # There is no telling which of the two an order is for.
            raise _hosts.HostError(str(error)) from None
        supervisor.note(f"nobody can look at this job: {error}")
        return
    except (OSError, BootstrapError) as error:
        supervisor.note(f"nobody can look at this job: {error}")
        return
    guard.remove_directory(door.folder)
    stack.callback(door.close)


def _serve(layout: JobLayout, key: bytes, job: str) -> RendezvousServer:
    from ringcore.bootstrap import RendezvousServer

    return RendezvousServer(layout.size + layout.servers, key, host=layout.bind, port=layout.port, job=job)


def _job_id(options: Options, key: bytes) -> str:
    """A new name, or the same one in all launchers of a job that has several: they share nothing but the key."""
    if options.nnodes == 1:
        return f"ringrun-{os.urandom(8).hex()}"
    import hashlib

    return f"ringrun-{hashlib.sha256(b'job id' + key).hexdigest()[:16]}"


def _read_key(options: Options) -> bytes:
    """Reads the key that several launchers share, or makes one for this job alone."""
    given = _settings.Settings.from_environ(options.settings)
    is_one_of_several = options.nnodes > 1 or options.is_node or options.listen is not None
    if is_one_of_several and given.key_fd is None and given.key_file is None:
        given = _settings.Settings.from_environ(os.environ)
    if given.key_fd is None and given.key_file is None:
        return os.urandom(_KEY_BYTES)
    if given.key_fd is None:
        from ringcore.bootstrap.keys import read_key_file  # As the ranks do, and by the same rules.

        return bytes(read_key_file(Path(given.key_file or "")))
    data = os.pread(given.key_fd, 4096, 0)
    if len(data) == _KEY_BYTES:
        return data
    with contextlib.suppress(ValueError):
        decoded = bytes.fromhex(data.decode("ascii").strip())
        if len(decoded) == _KEY_BYTES:
            return decoded
    raise KeyFileError(
        f"the key in descriptor {given.key_fd} has {len(data)} bytes; 32 bytes, or 64 hexadecimal digits, are needed"
    )


def _output_options(options: Options, layout: JobLayout) -> OutputOptions:
    local_ranks = {slot.rank: slot.local_rank for node in layout.nodes for slot in node.slots}
    bits = {Kind.STDOUT: 1, Kind.STDERR: 2}
    if (options.tee or options.redirects) and not options.log_dir:
        raise _hosts.HostError("--tee and --redirects say what of the log files is shown too: give --log-dir")

    def shows(rank: int, kind: Kind) -> bool:
        if options.listen is not None:  # Each node shows it.
            return False
        local_rank = local_ranks.get(rank, -1)  # Places that came later: nothing is asked for by local rank there.
        if options.local_ranks_filter is not None and local_rank not in options.local_ranks_filter:
            return False
        if options.tee is not None:
            return bool(options.tee.get(local_rank, options.tee.get(None, 0)) & bits[kind])
        if options.redirects is not None:
            return not options.redirects.get(local_rank, options.redirects.get(None, 0)) & bits[kind]
        return True

    return OutputOptions(options.log_dir, shows, options.prefix_timestamp, layout.size)


def _make_logs(output: Output, options: Options, layout: JobLayout) -> None:
    try:
        output.create_logs([slot.rank for node in layout.nodes for slot in node.slots])
    except OSError as error:
        raise _hosts.HostError(f"cannot write to --log-dir {options.log_dir}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
