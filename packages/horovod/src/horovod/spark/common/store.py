"""Horovod's names for `ringcore_spark.store`."""

from __future__ import annotations

from ringcore_spark.store import LocalStore, Store

__all__ = ["DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]

FilesystemStore = Store
HDFSStore = Store
DBFSLocalStore = LocalStore
