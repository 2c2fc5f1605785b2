# SPDX-License-Identifier: Apache-2.0
"""Where a path leads, found step by step from folder to folder: links and files of other users are refused.

In a folder where others can write, such as /tmp, another user may put a link at a path that a job writes to. Followed,
it would replace a file of this user, or give away what is written. Linux can refuse such links itself
(fs.protected_symlinks), but not everywhere. Imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pwd
import stat
from collections.abc import Iterator

__all__ = ["ForeignPathError", "Place", "about", "check_own", "make_folder", "owner", "place_of"]

Path = str | os.PathLike[str]
_MOST_LINKS = 40  # as in Linux
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class ForeignPathError(PermissionError):
    """The path leads over a link, or to a file, of another user. `strerror` says what to do, in the same line."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(errno.EPERM, text, path)

    def __reduce__(self) -> tuple[type[ForeignPathError], tuple[str, str]]:
        return type(self), (str(self.strerror), str(self.filename))


@contextlib.contextmanager
def about(path: str) -> Iterator[None]:
    """OSErrors of the block name this path, and no part of it."""
    try:
        yield
    except ForeignPathError:
        raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


@dataclasses.dataclass(frozen=True)
class Place:
    """A name in an open folder.

    `status`: of what is there, which is not a link; None if nothing is. `path`: as it was given. `of_kernel`: the name
    is a link of /proc to an open file, which only the kernel can follow.
    """

    folder: int
    name: str
    path: str
    status: os.stat_result | None
    of_kernel: bool = False

    @property
    def is_file(self) -> bool:
        """True if a new file can take this place: nothing is there, or an ordinary file."""
        return not self.of_kernel and (self.status is None or stat.S_ISREG(self.status.st_mode))

    def open(self, flags: int) -> int:
        """A descriptor of the file itself. Raises OSError."""
        follows = 0 if self.of_kernel else os.O_NOFOLLOW
        opened = os.open(self.name, flags | follows | os.O_CLOEXEC, 0o666, dir_fd=self.folder)
        try:
            status = os.fstat(opened)
            if stat.S_ISREG(status.st_mode) and not self.of_kernel:
                check_own(self.folder, self.name, status, self.path)
                if status.st_nlink > 1 and _is_everybodys(os.fstat(self.folder)):
                    said = f"{_path(self.folder, self.name)} has other names (hard links), in a folder of all users"
                    raise ForeignPathError(f"{said}: give a path in a folder of your own", self.path)
        except BaseException:
            os.close(opened)
            raise
        return opened


@contextlib.contextmanager
def place_of(path: Path) -> Iterator[Place]:
    """The place that a path leads to, over links of this user and of root. Raises OSError, which names the path.

    A link of another user is followed only if it is on the way to the last name, in a folder where that user alone
    can write.
    """
    given = os.fspath(path)
    with about(given):
        found = _walked(given, make_folders=False)
        try:
            yield found
        finally:
            os.close(found.folder)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Makes a folder, and those that it is in, unless they exist. Raises OSError, which names the path."""
    given = os.fspath(path)
    with about(given):
        found = _walked(given, make_folders=True, mode=mode)
        try:
            try:
                if found.status is None:
                    os.mkdir(found.name, mode, dir_fd=found.folder)
            except FileExistsError:  # another process of the job has made it
                os.close(os.open(found.name, _FOLDER | os.O_NOFOLLOW, dir_fd=found.folder))
            if found.status is not None and not stat.S_ISDIR(found.status.st_mode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), given)
        finally:
            os.close(found.folder)


def check_own(folder: int, name: str, status: os.stat_result, path: str) -> None:
    """Raises ForeignPathError for another user's file or folder in a folder where all users can write."""
    if _is_everybodys(os.fstat(folder)) and status.st_uid not in (0, os.geteuid()):
        said = f"{_path(folder, name)} belongs to user {owner(status)}, and all users can write in its folder"
        raise ForeignPathError(f"{said}: give a path in a folder of your own", path)


def owner(status: os.stat_result) -> str:
    """`1001 (alice)`."""
    with contextlib.suppress(KeyError):
        return f"{status.st_uid} ({pwd.getpwuid(status.st_uid).pw_name})"
    return str(status.st_uid)


def _walked(given: str, *, make_folders: bool, mode: int = 0o777) -> Place:
    """The caller closes the folder."""
    if not given:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), given)
    left = _steps(given)
    folder = os.open("/" if given.startswith("/") else ".", _FOLDER)
    links = 0
    try:
        while True:
            name = left.pop() if left else "."
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                if left and not make_folders:
                    raise
                if not left:
                    return Place(folder, name, given, None)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, mode, dir_fd=folder)
                folder = _entered(folder, name)
                continue
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), given)
                if status.st_dev == os.stat("/proc").st_dev:  # made by the kernel, of processes that we may look into
                    if not left:
                        return Place(folder, name, given, os.stat(name, dir_fd=folder), of_kernel=True)
                    folder = _entered(folder, name, 0)
                    continue
                target = _target(folder, name, given, is_last=not left)
                left += _steps(target)
                if target.startswith("/"):
                    folder = _entered(folder, "/")
            elif not left:
                check_own(folder, name, status, given)
                return Place(folder, name, given, status)
            else:
                check_own(folder, name, status, given)
                folder = _entered(folder, name)
    except BaseException:
        os.close(folder)
        raise


def _steps(path: str) -> list[str]:
    """The names of a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _entered(folder: int, name: str, flags: int = os.O_NOFOLLOW) -> int:
    """The folder of that name in an open folder, which is closed. Raises OSError, and leaves it open."""
    inner = os.open(name, _FOLDER | flags, dir_fd=folder)
    os.close(folder)
    return inner


def _target(folder: int, name: str, given: str, *, is_last: bool) -> str:
    """Where a link leads. Raises ForeignPathError if it is not to be followed."""
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        status, around = os.fstat(link), os.fstat(folder)
        own = (0, os.geteuid())
        is_shared = around.st_mode & 0o022 != 0
        if not (
            status.st_uid in own
            or (not is_shared and around.st_uid in own)
            or (not is_shared and around.st_uid == status.st_uid and not is_last)
        ):
            said = f"the link {_path(folder, name)} belongs to user {owner(status)}, so it is not followed"
            raise ForeignPathError(f"{said}: give the path that it leads to, or one in a folder of your own", given)
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _is_everybodys(status: os.stat_result) -> bool:
    return status.st_mode & stat.S_IWOTH != 0


def _path(folder: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    return name
