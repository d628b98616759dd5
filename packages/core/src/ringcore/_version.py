"""The version of all distributions; `nox -s version` sets it, here and in the adapters' pyproject.toml."""

__version__ = "0.1.0"
