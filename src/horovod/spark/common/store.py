# SPDX-License-Identifier: Apache-2.0
"""Stores: where an estimator keeps the training data, checkpoints and logs. Any file system that fsspec knows."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from horovod.settings import current_environment
from horovod.spark.common.access import check_access, file_system, files_in, refuse_odd_path, write_file

__all__ = ["AbstractFilesystemStore", "DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]

MANIFEST = "_horovod.json"
_TRIES = 3


class RemoteStore:
    """A store as ranks see it: paths as plain attributes, a local folder to write to, and its upload."""

    def __init__(self, store: Store, run_id: str, dataset_idx: int | None) -> None:
        self.train_data_path = store.get_train_data_path(dataset_idx)
        self.val_data_path = store.get_val_data_path(dataset_idx)
        self.test_data_path = store.get_test_data_path(dataset_idx)
        self.saving_runs = store.saving_runs()
        self.runs_path = store.get_runs_path()
        self.run_path = store.get_run_path(run_id)
        self.checkpoint_path = store.get_checkpoint_path(run_id)
        self.logs_path = store.get_logs_path(run_id)
        self.checkpoint_filename = store.get_checkpoint_filename()
        self.logs_subdir = store.get_logs_subdir()
        self.get_local_output_dir = store.get_local_output_dir_fn(run_id)
        self.sync = store.sync_fn(run_id)


class Store:
    """The interface of a store. `Store.create(prefix)` makes the one that a path or URL needs."""

    def is_parquet_dataset(self, path: str) -> bool:
        """True if there are Parquet files in the folder."""
        raise NotImplementedError

    def get_parquet_dataset(self, path: str) -> Any:
        """The folder as a pyarrow.parquet.ParquetDataset."""
        raise NotImplementedError

    def get_train_data_path(self, idx: int | None = None) -> str:
        """The folder of the training data with this index."""
        raise NotImplementedError

    def get_val_data_path(self, idx: int | None = None) -> str:
        """The folder of the validation data with this index."""
        raise NotImplementedError

    def get_test_data_path(self, idx: int | None = None) -> str:
        """The folder of the test data with this index."""
        raise NotImplementedError

    def saving_runs(self) -> bool:
        """True if checkpoints and logs are kept."""
        raise NotImplementedError

    def get_runs_path(self) -> str:
        """The folder of all runs."""
        raise NotImplementedError

    def get_run_path(self, run_id: str) -> str:
        """The folder of a run."""
        raise NotImplementedError

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """The folder of a run's checkpoint; None if runs are not saved."""
        raise NotImplementedError

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """The files of a run that end in the suffix, sorted."""
        raise NotImplementedError

    def get_logs_path(self, run_id: str) -> str | None:
        """The folder of a run's logs; None if runs are not saved."""
        raise NotImplementedError

    def get_checkpoint_filename(self) -> str:
        """The name of a checkpoint in its folder."""
        raise NotImplementedError

    def get_logs_subdir(self) -> str:
        """The name of the logs' folder in that of the run."""
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        """True if there is a file or folder of this path."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """The content of a file."""
        raise NotImplementedError

    def write_text(self, path: str, text: str) -> None:
        """Writes a text file; its folder is made."""
        raise NotImplementedError

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], Any]:
        """A function that gives a local folder, as a context manager."""
        raise NotImplementedError

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that uploads a local folder to that of the run."""
        raise NotImplementedError

    def to_remote(self, run_id: str, dataset_idx: int | None) -> RemoteStore:
        """The store as ranks see it; it can be pickled."""
        return RemoteStore(self, run_id, dataset_idx)

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """The store of a path or URL: HDFSStore for hdfs://, DBFSLocalStore on Databricks, else FilesystemStore."""
        if HDFSStore.matches(prefix_path):
            return HDFSStore(prefix_path, *args, **kwargs)
        if current_environment().get("DATABRICKS_RUNTIME_VERSION") and DBFSLocalStore.matches_dbfs(prefix_path):
            return DBFSLocalStore(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)


class AbstractFilesystemStore(Store):
    """A store on a file system of fsspec; `fs` opens it at its first use.

    PREFIX/intermediate_train_data, _val_data and _test_data hold the data, with `.INDEX` for an index. PREFIX/runs/RUN
    holds the checkpoint of a run, and its `logs`. Paths that are given take the place of these. Without `save_runs`,
    runs leave nothing. `storage_options` are those of fsspec; they travel to the ranks.
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.storage_options = dict(storage_options or {}) | kwargs
        self.prefix_path = self.get_full_path(prefix_path)
        self._train_path = self._given_or(train_path, "intermediate_train_data")
        self._val_path = self._given_or(val_path, "intermediate_val_data")
        self._test_path = self._given_or(test_path, "intermediate_test_data")
        self._runs_path = self._given_or(runs_path, "runs")
        self._save_runs = save_runs
        self._checkpoint_filename = checkpoint_filename or "checkpoint"
        self._fs: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_fs": None}

    def _given_or(self, path: str | None, name: str) -> str:
        return self.get_full_path(path) if path else f"{self.prefix_path.rstrip('/')}/{name}"

    @property
    def fs(self) -> Any:
        """The file system, as an fsspec object."""
        if self._fs is None:
            import fsspec

            url, options = self.prefix_path, self.storage_options
            self._fs = file_system(url, lambda: fsspec.core.url_to_fs(url, **options)[0])
        return self._fs

    def check_access(self) -> None:
        """Raises OSError, which names the path, unless this process can write, read and remove files there."""
        parents = [path.rpartition("/")[0] for path in (self._train_path, self._val_path)]
        folders = dict.fromkeys([*parents, *([self._runs_path] if self._save_runs else [])])
        check_access(self.fs, {url: self.get_localized_path(url) for url in folders})

    def get_full_path(self, path: str) -> str:
        """The path as a URL that fsspec, Arrow and Spark understand."""
        raise NotImplementedError

    def get_full_path_fn(self) -> Callable[[str], str]:
        """`get_full_path` as a function."""
        return self.get_full_path

    def get_localized_path(self, path: str) -> str:
        """The path inside the file system."""
        return str(self.fs._strip_protocol(path))

    def get_data_metadata_path(self, path: str) -> str:
        """The file that says what a folder of data holds."""
        return f"{path.rstrip('/')}/{MANIFEST}"

    def is_parquet_dataset(self, path: str) -> bool:
        """True if there are Parquet files in the folder."""
        return any(name.endswith(".parquet") for name in self._files(path))

    def _files(self, path: str) -> list[str]:
        return files_in(self.fs, path, self.get_localized_path(path))

    def get_parquet_dataset(self, path: str) -> Any:
        """The folder as a pyarrow.parquet.ParquetDataset."""
        from pyarrow import parquet

        return parquet.ParquetDataset(self.get_localized_path(path), filesystem=self.fs)

    def get_train_data_path(self, idx: int | None = None) -> str:
        """The folder of the training data with this index."""
        return _indexed(self._train_path, idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """The folder of the validation data with this index."""
        return _indexed(self._val_path, idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """The folder of the test data with this index."""
        return _indexed(self._test_path, idx)

    def saving_runs(self) -> bool:
        """True if checkpoints and logs are kept."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """The folder of all runs."""
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        """The folder of a run."""
        return f"{self._runs_path.rstrip('/')}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """The folder of a run's checkpoint, that of the run; None if runs are not saved."""
        return self.get_run_path(run_id) if self._save_runs else None

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """The files of a run that end in the suffix, sorted."""
        return [name for name in self._files(self.get_run_path(run_id)) if name.endswith(suffix)]

    def get_logs_path(self, run_id: str) -> str | None:
        """The folder of a run's logs; None if runs are not saved."""
        return f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}" if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        """The name of a checkpoint in its folder."""
        return self._checkpoint_filename

    def get_logs_subdir(self) -> str:
        """The name of the logs' folder in that of the run."""
        return "logs"

    def exists(self, path: str) -> bool:
        """True if there is a file or folder of this path."""
        self.fs.invalidate_cache()  # Spark may have written since a listing was kept
        return bool(self.fs.exists(self.get_localized_path(path)))

    def read(self, path: str) -> bytes:
        """The content of a file."""
        content: bytes = self.fs.cat_file(self.get_localized_path(path))
        return content

    def write_text(self, path: str, text: str) -> None:
        """Writes a text file; its folder is made."""
        write_file(self.fs, text.encode(), self.get_localized_path(path))

    def read_serialized_keras_model(self, ckpt_path: str, model: Any, custom_objects: Any) -> bytes:
        """The bytes of a Keras checkpoint: a whole model, in the format `.keras`."""
        return self.read(ckpt_path)

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], Any]:
        """A function that gives a temporary folder, as a context manager that removes it."""
        return _temporary_folder

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that uploads what is new in a local folder to that of the run."""
        return _Upload(self, self.get_run_path(run_id))


def _indexed(path: str, idx: int | None) -> str:
    return path if idx is None else f"{path}.{idx}"


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="horovod-run-") as folder:
        yield folder


class _Upload:
    """Uploads the files of a folder that have changed since its last call. A file gets its name when it is whole."""

    def __init__(self, store: AbstractFilesystemStore, target: str) -> None:
        self._store = store
        self._target = target
        self._sent: dict[str, tuple[int, int]] = {}

    def __call__(self, folder: str) -> None:
        fs = self._store.fs
        target = self._store.get_localized_path(self._target)
        for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            name = path.relative_to(folder).as_posix()
            state = path.stat()
            version = (state.st_mtime_ns, state.st_size)
            if self._sent.get(name) == version:
                continue
            for attempt in range(1, _TRIES + 1):
                try:
                    write_file(fs, str(path), f"{target}/{name}")
                    break
                except Exception as error:  # of any kind: each file system has its own
                    if attempt == _TRIES:
                        raise OSError(f"{self._target}/{name} was not written in {_TRIES} tries: {error}") from error
                    time.sleep(0.1 * attempt)
            self._sent[name] = version


class FilesystemStore(AbstractFilesystemStore):
    """A store at any URL of fsspec; a path without a scheme is one of the local file system."""

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(prefix_path, *args, **kwargs)

    def get_full_path(self, path: str) -> str:
        """The path as a URL: with file:// and the whole path if it has no scheme."""
        refuse_odd_path(path)
        return path if "://" in path else f"file://{os.path.abspath(path.removeprefix('file:'))}"

    def get_filesystem(self) -> Any:
        """The file system, as an fsspec object."""
        return self.fs

    def copy(self, lpath: str, rpath: str, recursive: bool = False, callback: Any = None, **kwargs: Any) -> None:
        """Copies a local file or folder to a path of the store."""
        more = {} if callback is None else {"callback": callback}
        self.fs.put(lpath, self.get_localized_path(rpath), recursive=recursive, **more, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """True for any path: this store takes all."""
        return True


class LocalStore(FilesystemStore):
    """A store on the local file system, or one that driver and executors have mounted at one path."""


class HDFSStore(AbstractFilesystemStore):
    """A store in HDFS: hdfs://host:port/path, hdfs:///path or /path. Arrow needs libhdfs and a Hadoop client."""

    FS_PREFIX = "hdfs://"
    URL_PATTERN = "^(?:(.+://))?(?:([^/:]+))?(?:[:]([0-9]+))?(?:(.+))?$"

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if driver != "libhdfs":
            raise ValueError(f"driver is {driver!r}: expected 'libhdfs', the only one of Arrow")
        scheme, url_host, url_port, _ = self.parse_url(prefix_path)
        self._host = host or url_host or "default"
        self._port = port or url_port or 0
        self._options = {"user": user, "kerb_ticket": kerb_ticket, "extra_conf": extra_conf}
        self._authority = f"{url_host or ''}{f':{url_port}' if url_port else ''}" if scheme else ""
        super().__init__(prefix_path, *args, **kwargs)
        self.storage_options |= {"host": self._host, "port": self._port}
        self.storage_options |= {name: value for name, value in self._options.items() if value is not None}

    def parse_url(self, url: str) -> tuple[str | None, str | None, int | None, str]:
        """The scheme, host, port and path of a URL. Raises ValueError for another scheme, or without a path."""
        found = re.match(self.URL_PATTERN, url)
        scheme, host, port, path = found.groups() if found else (None, None, None, None)
        if scheme not in (None, self.FS_PREFIX):
            raise ValueError(f"{url} begins with {scheme}: expected {self.FS_PREFIX}")
        if not path or not path.startswith("/"):
            raise ValueError(f"{url} has no path: expected hdfs://host:port/path, hdfs:///path or /path")
        return scheme, host, int(port) if port else None, path

    def get_full_path(self, path: str) -> str:
        """The path as a URL that begins with hdfs://."""
        return path if self.matches(path) else f"{self.FS_PREFIX}{self._authority}{path}"

    def get_localized_path(self, path: str) -> str:
        """The path without scheme, host and port."""
        return self.parse_url(path)[3]

    @property
    def fs(self) -> Any:
        """The file system, as an fsspec object."""
        if self._fs is None:
            import fsspec

            self._fs = file_system(self.prefix_path, lambda: fsspec.filesystem("hdfs", **self.storage_options))
        return self._fs

    @classmethod
    def matches(cls, path: str) -> bool:
        """True for hdfs://."""
        return path.startswith(cls.FS_PREFIX)


class DBFSLocalStore(FilesystemStore):
    """A store in DBFS, the file system of Databricks, through its mount /dbfs."""

    DBFS_PATH_FORMAT_ERROR = (
        "{} is not a path of DBFS: expected one that starts with /dbfs/, dbfs:/, file:/dbfs/ or file:///dbfs/"
    )

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("checkpoint_filename", "checkpoint.tf")
        super().__init__(prefix_path, *args, **kwargs)

    @classmethod
    def matches_dbfs(cls, path: str) -> bool:
        """True for a path of DBFS, in any of its forms."""
        return re.match(r"dbfs:/(?!/)|/dbfs/|file:/dbfs/|file:///dbfs/", path) is not None

    @staticmethod
    def normalize_path(path: str) -> str:
        """The path as /dbfs/...; ValueError if it is not one of DBFS."""
        if not DBFSLocalStore.matches_dbfs(path):
            raise ValueError(DBFSLocalStore.DBFS_PATH_FORMAT_ERROR.format(path))
        return re.sub(r"^(dbfs:/|/dbfs/|file:/dbfs/|file:///dbfs/)", "/dbfs/", path)

    def get_full_path(self, path: str) -> str:
        """The path as file:///dbfs/..."""
        return f"file://{self.normalize_path(path)}"

    def get_localized_path(self, path: str) -> str:
        """The path as /dbfs/..."""
        return self.normalize_path(path)

    def exists(self, path: str) -> bool:
        """True if there is a file or folder of this path."""
        return os.path.exists(self.get_localized_path(path))
