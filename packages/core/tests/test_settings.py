"""Settings: defaults, parsing, and errors that name the variable, its value and what is accepted."""

from __future__ import annotations

import dataclasses

import pytest
from ringcore import InvalidArgument, _native
from ringcore.environment import settings as _settings
from ringcore.environment.settings import Settings


def test_without_variables_every_setting_has_its_default() -> None:
    settings = Settings.from_environ({})
    assert settings == Settings()
    assert settings.fusion_threshold_bytes == 64 * 1024**2
    assert settings.eager_limit_bytes == 65536
    assert (settings.timeout_s, settings.stall_warning_s, settings.heartbeat_s) == (300.0, 5.0, 2.0)
    assert (settings.start_timeout_s, settings.spin_us, settings.arena_bytes) == (30.0, 100, 0)
    assert (settings.transport, settings.network, settings.network_interfaces) == ("auto", (), ())
    assert settings.allow_pickle and not settings.deterministic


def test_an_empty_variable_is_an_unset_one() -> None:
    assert Settings.from_environ({"RINGCORE_TIMEOUT_S": "", "RINGCORE_TIMELINE": ""}) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("fusion_threshold_bytes", "0", 0),
        ("fusion_threshold_bytes", "4MiB", 4 * 1024**2),
        ("eager_limit_bytes", "1 KiB", 1024),
        ("timeout_s", "0.25", 0.25),
        ("stall_warning_s", "0", 0.0),
        ("spin_us", "0", 0),
        ("transport", "TCP", "tcp"),
        ("network", "10.0.0.0/8, 192.168.1.0/24", ("10.0.0.0/8", "192.168.1.0/24")),
        ("network", "fd00::/8", ("fd00::/8",)),
        ("network_interfaces", "eth0,ib0", ("eth0", "ib0")),
        ("deterministic", "yes", True),
        ("allow_pickle", "off", False),
        ("timeline", "/tmp/t.json", "/tmp/t.json"),
        ("log_level", "DEBUG", "debug"),
        ("rendezvous", "tcp:node-1.example:29400", "tcp:node-1.example:29400"),
        ("rendezvous", "tcp:[fd00::1]:1", "tcp:[fd00::1]:1"),
        ("rendezvous", "unix:/run/job", "unix:/run/job"),
        ("metrics_port", "9400", 9400),
        ("key_fd", "7", 7),
        ("job_id", "run-7", "run-7"),
    ],
)
def test_accepted(name: str, text: str, value: object) -> None:
    settings = Settings.from_environ({_settings.variable(name): text})
    assert getattr(settings, name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fusion_threshold_bytes", "-1"),
        ("fusion_threshold_bytes", "64MB"),
        ("fusion_threshold_bytes", "1_000"),
        ("eager_limit_bytes", "1.5"),
        ("timeout_s", "0"),
        ("timeout_s", "5m"),
        ("timeout_s", "nan"),
        ("timeout_s", "1e3"),
        ("heartbeat_s", "-2"),
        ("spin_us", "٣"),
        ("transport", "rdma"),
        ("network", "10.0.0.1/8"),
        ("network", "10.0.0.0/8,,"),
        ("network_interfaces", "a-name-that-is-too-long"),
        ("deterministic", "maybe"),
        ("log_level", "loud"),
        ("rendezvous", "host:29400"),
        ("rendezvous", "tcp:host:70000"),
        ("rendezvous", "unix:relative"),
        ("metrics_port", "70000"),
        ("key_fd", "-1"),
        ("job_id", "two words"),
    ],
)
def test_refused_with_the_variable_the_value_and_what_is_accepted(name: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Settings.from_environ({_settings.variable(name): text})
    message = str(caught.value)
    assert _settings.variable(name) in message
    assert repr(text) in message
    assert Settings.__dataclass_fields__[name].metadata["accepts"] in message


def test_every_transport_can_be_chosen() -> None:
    for transport in _native.TRANSPORTS:
        assert Settings.from_environ({"RINGCORE_TRANSPORT": transport}).transport == transport
    *first, last = _native.TRANSPORTS
    with pytest.raises(InvalidArgument, match=f"auto, {', '.join(first)} or {last}"):
        Settings.from_environ({"RINGCORE_TRANSPORT": "none"})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().timeout_s = 1.0  # type: ignore[misc]


def test_every_setting_tells_what_it_is_for() -> None:
    for field in dataclasses.fields(Settings):
        assert field.metadata["help"] and field.metadata["accepts"], field.name


def test_misspelt_variables_are_found() -> None:
    environ = {"RINGCORE_TIMEOUT": "5", "RINGCORE_TIMEOUT_S": "5", "RINGCORE_RANK": "0", "PATH": "/bin"}
    environ["RINGCORE_LIGHTNING_REGISTER"] = "0"  # read by the adapter
    assert _settings.unknown_variables(environ) == [("RINGCORE_TIMEOUT", "RINGCORE_TIMEOUT_S")]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RINGCORE_TIMEOT_S", "; did you mean RINGCORE_TIMEOUT_S?"),
        ("RINGCORE_NETWORK_INTERFACE", "; did you mean RINGCORE_NETWORK_INTERFACES?"),
        ("RINGCORE_LIGHTNING_REGISTR", "; did you mean RINGCORE_LIGHTNING_REGISTER?"),
        ("RINGCORE_UNICORN", ""),
    ],
)
def test_what_a_misspelt_variable_means_is_told(name: str, meant: str) -> None:
    assert _settings.told_unknown({name: "1"}) == [f"{name} is set, but there is no such setting{meant}"]
