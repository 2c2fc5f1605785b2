# SPDX-License-Identifier: Apache-2.0
"""A store that cannot be reached, read or written: one error that names the path, the reason and what helps."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from horovod.world.files.places import make_folder
from horovod.world.files.whole import replacement

__all__ = ["check_access", "file_system", "files_in", "of_spark", "refuse_odd_path", "write_file"]

_ODD = re.compile(r"(?!file:)[A-Za-z][\w+.-]*:(?!//)")
# Of Hadoop's exceptions, those that tell of the store, not of the DataFrame.
_OF_HADOOP = re.compile(
    r"No FileSystem for scheme[^\n]*|(?:ClassNotFound|AccessControl|AccessDenied)Exception: [^\n]*"
    r"|(?:Permission denied|Mkdirs failed|Parent path is not a directory)[^\n]*"
)


def refuse_odd_path(path: str) -> None:
    """Raises ValueError for s3:/bucket, say, which would be a folder here."""
    if _ODD.match(path):
        raise ValueError(
            f"the store {path!r} looks like a URL, but has no // after the colon\n"
            "hint: write s3://bucket/path, or ./a:b for a local folder; dbfs:/ works on Databricks only"
        )


def file_system(path: str, make: Callable[[], Any]) -> Any:
    """Returns the result of `make`. Raises ImportError or OSError that names the store."""
    try:
        return make()
    except ImportError as error:
        raise ImportError(
            f"the store {path} cannot be opened: {_first_line(error)}\n"
            "hint: install that package in the Python of the driver and of all executors"
        ) from error
    except Exception as error:  # each file system has its own
        raise OSError(
            f"the store {path} cannot be opened: {_first_line(error)}\n"
            "hint: check the URL; storage_options are those of fsspec; hdfs:// needs libhdfs and libjvm"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def files_in(fs: Any, url: str, inside: str) -> list[str]:
    """All files of a folder, sorted; none if it is not there. Raises OSError if it cannot be listed."""
    fs.invalidate_cache()  # Spark may have written since a listing was kept
    if not fs.exists(inside):
        return []
    try:
        fs.ls(inside)  # `find` passes over what it may not read
    except Exception as error:  # each file system has its own
        raise OSError(
            f"the store cannot be used: {url} cannot be listed: {type(error).__name__}: {error}\n"
            "hint: let the user of the driver read it"
        ) from error
    return sorted(fs.find(inside))


def check_access(fs: Any, folders: Mapping[str, str]) -> None:
    """Writes a file to each folder, reads it and removes it. `folders`: their paths in the file system, by URL."""
    for url, inside in folders.items():
        probe = f"{inside.rstrip('/')}/.horovod-{secrets.token_hex(6)}"
        try:
            _make_folder(fs, inside)
            fs.pipe_file(probe, b"horovod")
            if fs.cat_file(probe) != b"horovod":
                raise OSError("the file has other content than was written")
            fs.rm_file(probe)
        except Exception as error:  # each file system has its own
            raise OSError(
                f"the store cannot be used: {url} cannot be written and read: {type(error).__name__}: {error}\n"
                "hint: choose a path where the user of the driver, and of the executors, may write"
            ) from error


def write_file(fs: Any, source: str | bytes, target: str) -> None:
    """Writes a local file, or bytes, to a file system; the folder is made.

    If a reader could see half of it, it gets its name at the end; object stores show whole files only.
    """
    protocols = _protocols(fs)
    _make_folder(fs, target.rpartition("/")[0])
    if "file" in protocols:
        with replacement(target) as part:
            _put(fs, source, part)
    elif not protocols & {"hdfs", "arrow_hdfs"}:
        _put(fs, source, target)
    else:
        part = f"{target}.part"
        _put(fs, source, part)
        if fs.exists(target):  # HDFS renames to a free name only
            fs.rm_file(target)
        fs.mv(part, target)


def _put(fs: Any, source: str | bytes, target: str) -> None:
    if isinstance(source, bytes):
        fs.pipe_file(target, source)
    else:
        fs.put_file(source, target)


def _make_folder(fs: Any, folder: str) -> None:
    if "file" in _protocols(fs):
        make_folder(folder)
    else:
        fs.makedirs(folder, exist_ok=True)


def _protocols(fs: Any) -> set[str]:
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)


def of_spark(error: Exception, path: str) -> Exception:
    """The error for what Spark has raised while it wrote to a path: OSError if it tells of the store, else itself."""
    found = _OF_HADOOP.search(str(error))
    if found is None:
        return error
    return OSError(
        f"Spark cannot write to the store: {path}: {found[0]}\n"
        "hint: Spark's own file systems write the data: use a scheme that Spark has one for (s3a:// for S3), and let "
        "the executors write there"
    )
