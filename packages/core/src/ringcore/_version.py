"""The version of all distributions. It stands only here; the adapters' builds read it from this file."""

__version__ = "0.1.0"
