"""Reads ringrun's options from a file and turns them into the words of a command line.

TOML (Python 3.11 or newer) and JSON hold long options without the dashes: `np = 4`, `log-dir = "logs"`.
Sections are only for the eye. Horovod's YAML files are read too where PyYAML is installed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

# Horovod's nested keys whose option is not called like the key alone.
_HOROVOD_SECTIONS: dict[str, dict[str, str]] = {
    "autotune": {
        "enabled": "autotune",
        "log-file": "autotune-log-file",
        "warmup-samples": "autotune-warmup-samples",
        "steps-per-sample": "autotune-steps-per-sample",
        "bayes-opt-max-samples": "autotune-bayes-opt-max-samples",
        "gaussian-process-noise": "autotune-gaussian-process-noise",
    },
    "timeline": {"filename": "timeline-filename", "mark-cycles": "timeline-mark-cycles"},
    "stall-check": {
        "enabled": "stall-check",
        "warning-time-seconds": "stall-check-warning-time-seconds",
        "shutdown-time-seconds": "stall-check-shutdown-time-seconds",
    },
    "logging": {"level": "log-level", "with-timestamp": "log-with-timestamp"},
}


class ConfigError(ValueError):
    """A configuration file that cannot be used."""


def read(path: str, known: Mapping[str, bool]) -> list[str]:
    """Read a file and return its options as command line words.

    Args:
        path: The file; its ending says the format: .toml, .json, .yaml or .yml.
        known: Long options, and whether each takes a value.

    Raises:
        ConfigError: The file cannot be read, or holds an option that does not exist.
    """
    return words_of(path, _load(path), known)


def words_of(path: str, content: Any, known: Mapping[str, bool]) -> list[str]:
    """Turn the content of a configuration file into command line words; see `read`."""
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a table of options is needed, not {type(content).__name__}")
    words: list[str] = []
    for name, value in _flatten(content):
        words += _words(path, name, value, known)
    return words


def _load(path: str) -> Any:
    ending = os.path.splitext(path)[1]
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    try:
        if ending == ".json":
            return json.loads(data)
        if ending == ".toml":
            return _load_toml(path, data.decode())
        if ending in (".yaml", ".yml"):
            return _load_yaml(path, data)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: {error}") from None
    raise ConfigError(f"{path}: the ending must be .toml, .json, .yaml or .yml")


def _load_toml(path: str, text: str) -> Any:
    if sys.version_info < (3, 11):
        raise ConfigError(f"{path}: TOML needs Python 3.11 or newer; this one reads the same options as JSON (.json)")
    import tomllib

    return tomllib.loads(text)


def _load_yaml(path: str, data: bytes) -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"{path}: YAML needs PyYAML (pip install pyyaml); TOML and JSON need nothing") from None
    try:
        return yaml.safe_load(data)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {error}") from None


def _flatten(table: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    renamed = _HOROVOD_SECTIONS.get(section, {})
    for key, value in table.items():
        name = str(key).replace("_", "-")
        if isinstance(value, dict):
            yield from _flatten(value, name)
        elif name == "controller" and value == "gloo":
            yield "gloo", True
        else:
            yield renamed.get(name, name), value


def _words(path: str, name: str, value: Any, known: Mapping[str, bool]) -> list[str]:
    option = f"--{name}"
    if option not in known:
        raise ConfigError(f"{path}: there is no option {name!r}")
    if isinstance(value, bool):
        if value and not known[option]:
            return [option]
        if not value and f"--no-{name}" in known:
            return [f"--no-{name}"]
        if not value and not known[option]:
            return []
        raise ConfigError(f"{path}: {name} needs a value, not {str(value).lower()}")
    if not known[option]:
        raise ConfigError(f"{path}: {name} is true or false, not {value!r}")
    if isinstance(value, list) and name == "env":
        return [word for entry in value for word in _words(path, name, entry, known)]
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if not isinstance(value, (str, int, float)):
        raise ConfigError(f"{path}: {name} needs a text or a number, not {value!r}")
    return [f"{option}={value}"]
