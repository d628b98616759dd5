"""Where an estimator keeps data and checkpoints: a folder that the driver, all tasks of Spark and all ranks see."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

# A path that is not below a store: absolute, or a URL.
_ELSEWHERE = re.compile(r"/|([A-Za-z][A-Za-z0-9+.-]*):/")
# What Hadoop calls a file system, and what Arrow does.
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "az"}


class Store:
    """A folder on any file system that Arrow or fsspec knows: `Store.create(path)` takes the right one.

    Args:
        prefix_path: The folder, as a path or a URL as Spark or Arrow has it; behind a `?` a URL may say more, such as
            `?region=eu-west-1`.
        filesystem: Of pyarrow or fsspec; None: as the URL says. Pickled along to the ranks.
    """

    def __init__(self, prefix_path: str, *, filesystem: Any = None) -> None:
        place, _, self._query = prefix_path.partition("?") if "://" in prefix_path else (prefix_path, "", "")
        self.prefix_path = place.rstrip("/")
        self._filesystem = filesystem

    @staticmethod
    def create(prefix_path: str, *, filesystem: Any = None) -> Store:
        """The store for a path: a local one where it has no scheme, or `file:` or `dbfs:`."""
        scheme = prefix_path.partition(":")[0] if ":" in prefix_path else "file"
        if filesystem is None and scheme in ("file", "dbfs"):
            return LocalStore(prefix_path)
        return Store(prefix_path, filesystem=filesystem)

    def arrow(self, *parts: str) -> tuple[Any, str]:
        """A path below, for Arrow: the file system and the path on it."""
        from pyarrow import fs

        if self._filesystem is None:
            scheme, _, rest = self.url().partition("://")
            found, root = fs.FileSystem.from_uri(f"{_ARROW_SCHEMES.get(scheme, scheme)}://{rest}")
            return found, "/".join([root.rstrip("/"), *parts])
        path = "/".join([_on_given(self.prefix_path), *parts])
        if isinstance(self._filesystem, fs.FileSystem):
            return self._filesystem, path
        return fs.PyFileSystem(fs.FSSpecHandler(self._filesystem)), path

    def place(self, source: str | Sequence[str]) -> tuple[Any, Any]:
        """What is anywhere, for Arrow: below, or elsewhere where a path is absolute or a URL.

        Where this store was given its file system, that is taken for other places that have the same scheme.

        Args:
            source: A path, or several on one file system.

        Returns:
            The file system, and the path on it, or a list of them.

        Raises:
            ValueError: There are none, or they are on different file systems.
        """
        if isinstance(source, str):
            return self._elsewhere(source).arrow() if _ELSEWHERE.match(source) else self.arrow(source)
        if not source:
            raise ValueError("there is no file in the list: give at least one")
        places = [self.place(path) for path in source]
        filesystem = places[0][0]
        other = next((path for path, place in zip(source, places, strict=True) if place[0] != filesystem), None)
        if other is not None:
            one, other = (self.name_of(path) for path in (source[0], other))
            raise ValueError(f"{one} and {other} are on different file systems: give files of one, or train on copies")
        return filesystem, [path for _, path in places]

    def _elsewhere(self, path: str) -> Store:
        same = _scheme(path) == _scheme(self.prefix_path)
        return Store.create(path, filesystem=self._filesystem if same else None)

    def name_of(self, path: str) -> str:
        """A path as `place` takes it, for people: without a password."""
        return str(self._elsewhere(path)) if _ELSEWHERE.match(path) else f"{path} in the store {self}"

    def url_of(self, path: str) -> str:
        """A path, as `place` takes it, as whoever opens it by its name has it."""
        return path if _ELSEWHERE.match(path) else self.url(path)

    def url(self, *parts: str) -> str:
        """A path below, as whoever opens it by its name has it."""
        return "/".join([self.prefix_path, *parts]) + (f"?{self._query}" if self._query else "")

    def __str__(self) -> str:
        """The folder, for people: without a password."""
        return re.sub(r"://[^/@]*:[^/@]*@", "://...@", self.prefix_path)

    def check_writable(self) -> None:
        """Write a file and remove it.

        Raises:
            ValueError: That does not work; with the path and the reason.
        """
        name = f".ringcore-{uuid.uuid4().hex}"
        try:
            self.write(b"", name)
            self.delete(name)
        except (OSError, ValueError) as error:
            why = str(error).partition("\n")[0]  # Arrow lists all places where it has looked for Hadoop.
            raise ValueError(
                f"the store {self} cannot be written to: {why}. Give a folder that the driver and all executors can "
                "read and write (store=Store.create(path))"
            ) from error

    def write(self, data: bytes, *parts: str) -> None:
        """Put a file there; whoever reads sees all of it or the one before."""
        filesystem, path = self.arrow(*parts)
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        partial = f"{path}.part"
        with filesystem.open_output_stream(partial) as stream:
            stream.write(data)
        rename(filesystem, partial, path)

    def read(self, *parts: str) -> bytes | None:
        """A file's bytes; None if there is none."""
        from pyarrow import fs

        filesystem, path = self.arrow(*parts)
        if filesystem.get_file_info(path).type == fs.FileType.NotFound:
            return None
        with filesystem.open_input_stream(path) as stream:
            data: bytes = stream.read()
            return data

    def delete(self, *parts: str) -> None:
        """Remove a file or a folder, if it is there."""
        from pyarrow import fs

        filesystem, path = self.arrow(*parts)
        kind = filesystem.get_file_info(path).type
        if kind == fs.FileType.Directory:
            filesystem.delete_dir(path)
        elif kind == fs.FileType.File:
            filesystem.delete_file(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def _scheme(path: str) -> str:
    """Of a path or a URL, as Arrow calls it."""
    found = _ELSEWHERE.match(path)
    scheme = (found and found[1]) or "file"
    return _ARROW_SCHEMES.get(scheme, scheme)


def _on_given(url: str) -> str:
    """The path of a URL on a file system that has its credentials, and its account, already."""
    scheme, _, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    if "@" not in authority:
        return rest
    container, _, host = authority.rpartition("@")  # of Azure; elsewhere they are credentials and the bucket
    return (container if _ARROW_SCHEMES.get(scheme, scheme) in ("abfs", "az") else host) + slash + path


def rename(filesystem: Any, partial: str, path: str) -> None:
    """Give a file that is whole its name.

    Args:
        filesystem: Of pyarrow.
        partial: Its name until now.
        path: Its name from now on.
    """
    try:
        filesystem.move(partial, path)
    except NotImplementedError:  # Azure without a hierarchical namespace: Arrow moves nothing there.
        filesystem.copy_file(partial, path)
        filesystem.delete_file(partial)


class LocalStore(Store):
    """A folder that every host has under the same path: of one machine, or shared (NFS, `/dbfs`, `/Volumes`)."""

    def __init__(self, prefix_path: str) -> None:
        path = prefix_path.removeprefix("file://").removeprefix("file:")
        if path.startswith("dbfs:/"):
            path = "/dbfs/" + path.removeprefix("dbfs:").lstrip("/")
        super().__init__(path)

    def arrow(self, *parts: str) -> tuple[Any, str]:
        """A path below, for Arrow."""
        from pyarrow import fs

        return fs.LocalFileSystem(), "/".join([self.prefix_path, *parts])
