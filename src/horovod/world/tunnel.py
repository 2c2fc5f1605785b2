# SPDX-License-Identifier: Apache-2.0
"""Authenticated ways to servers that cannot authenticate by themselves. Serves TensorFlow's data service.

A server of gRPC listens on all interfaces, and takes every connection. A process that has such a server, or calls one,
has one child, the carrier:

    client -> unix socket -> carrier -> TCP, proves the key -> the server's carrier -> 127.0.0.1 -> server

- The unix sockets are in a folder that only this user can enter. Its name differs in each process, but an address must
  be the same in all: it is /proc/self/fd/1000/NAME, and descriptor 1000 of each process is its folder.
- The kernel drops what comes to the server's port, unless it comes from a port of 127.0.0.1 that the carrier has bound.
  Before the server listens, a second socket (`Guard`) of the same port takes all connections, and drops them.

The carrier is a process, because TensorFlow keeps Python's lock while a server starts and stops. It ends with its
parent, and removes the folder. It also ends a parent whose server does not start or stop in time (`limited`): no thread
of the parent could.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import resource
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from horovod.core.exceptions import HorovodInternalError
from horovod.core.wording import tell
from horovod.world.channel import Channel, ChannelError, Listener, authenticate_client
from horovod.world.forks import close_in_forked_child
from horovod.world.interpreter import python_command
from horovod.world.rendezvous import Rendezvous

__all__ = ["Guard", "Tunnel", "process_tunnel"]

_FOLDER_DESCRIPTOR = 1000
_MESSAGE_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
_LOOKUP_S = 60.0
_CONNECT_S = 10.0
_ANSWER_S = 120.0  # more than the carrier may need for a lookup
_PAUSE_S = 0.05
_SO_ATTACH_FILTER = 26
_SO_ATTACH_REUSEPORT_CBPF = 51


class Guard:
    """Keeps strangers from a port from before its server listens there. Use as a context around the server's start.

    Raises HorovodInternalError if the kernel has no socket filters: then the server must not start.
    """

    def __init__(self) -> None:
        self._socket = _any_interface()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(("", 0))
        self.port: int = self._socket.getsockname()[1]
        try:
            _allow([self._socket], ())
            # Of all sockets with this port, connections go to the first that listens: this one.
            _attach(self._socket, _SO_ATTACH_REUSEPORT_CBPF, [(0x06, 0, 0, 0)])
        except OSError as error:
            self._socket.close()
            raise HorovodInternalError(
                f"this system cannot filter a socket's connections ({error.strerror}), so the data service would be "
                "open to all users\nhint: run it on a Linux kernel without a sandbox such as gVisor"
            ) from error
        self._socket.listen(1)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def guarded(self) -> list[socket.socket]:
        """The sockets at which the server listens now, which take no connection until a carrier has them."""
        found = [one for one in _listening_at(self.port) if not self._is(one)]
        if not found:
            raise HorovodInternalError(f"no server of this process listens at port {self.port}")
        _allow(found, ())
        return found

    def _is(self, other: socket.socket) -> bool:
        return os.fstat(other.fileno()).st_ino == os.fstat(self._socket.fileno()).st_ino


class Tunnel:
    """This process' carrier. Any thread may call; calls block until the carrier has answered, or is ended for that."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._folder = tempfile.mkdtemp(prefix="horovod-tunnel-")
        _keep_folder(self._folder)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_ANSWER_S)
        close_in_forked_child(self._control)
        self._lock = threading.Lock()
        self._limits = itertools.count()
        command = [*python_command("horovod.world.tunnel"), str(theirs.fileno()), self._folder, str(self.owner)]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )

    def open(self, registry: tuple[str, int], key: bytes, names: Sequence[str]) -> None:
        """Makes sockets that lead to these servers, which may come later. Repeated calls do nothing."""
        self._ask({"op": "open", "registry": registry, "key": _text(key), "names": list(names)})

    def find(self, name: str) -> None:
        """Waits for the server's address, so that the first call to it does not ask the registry."""
        self._ask({"op": "find", "name": name})

    def listen(self, host: str, key: bytes, name: str) -> str:
        """Begins to take connections for a server of this process. Returns the address, for the registry."""
        return str(self._ask({"op": "listen", "host": host, "key": _text(key), "name": name}))

    def serve(self, name: str, port: int, listening: Sequence[socket.socket]) -> None:
        """Lets the connections go on to the server. Closes this process' copies of its sockets."""
        self._ask({"op": "serve", "name": name, "port": port}, [one.fileno() for one in listening])
        for one in listening:
            one.close()

    def close(self, name: str) -> None:
        """Ends `listen` and its connections."""
        self._ask({"op": "close", "name": name})

    @contextlib.contextmanager
    def limited(self, seconds: float, word: str) -> Iterator[None]:
        """Within it, this process has a time limit: then the carrier prints `word`, and ends it by SIGABRT."""
        number = next(self._limits)
        self._ask({"op": "limit", "number": number, "seconds": seconds, "word": word})
        try:
            yield
        finally:
            self._ask({"op": "lift", "number": number})

    @staticmethod
    def address(name: str) -> str:
        """The address of this server for gRPC, in every process with a tunnel to it."""
        return f"unix:/proc/self/fd/{_FOLDER_DESCRIPTOR}/{name}"

    def _ask(self, message: dict[str, Any], descriptors: Iterable[int] = ()) -> Any:
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(message).encode()], list(descriptors))
                answer = json.loads(self._control.recv(_MESSAGE_BYTES) or b"null")
            except TimeoutError as error:  # a late answer would be taken for the next one
                self._process.kill()
                self._process.wait()
                shutil.rmtree(self._folder, ignore_errors=True)
                raise HorovodInternalError(
                    f"the process that carries the data service's connections did not {message['op']} within "
                    f"{self._control.gettimeout():g} s; it was ended"
                ) from error
            except OSError:
                answer = None
        if answer is None:
            raise HorovodInternalError("the process that carries the data service's connections has ended")
        if "error" in answer:
            raise HorovodInternalError(answer["error"])
        return answer["result"]


_tunnel: Tunnel | None = None
_making = threading.Lock()


def process_tunnel() -> Tunnel:
    """The tunnel of this process, started if needed."""
    global _tunnel
    with _making:
        if _tunnel is None or _tunnel.owner != os.getpid():
            _tunnel = Tunnel()
        return _tunnel


def _keep_folder(folder: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= _FOLDER_DESCRIPTOR:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _FOLDER_DESCRIPTOR + 24), hard))
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        if fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FOLDER_DESCRIPTOR) != _FOLDER_DESCRIPTOR:
            raise HorovodInternalError(
                f"descriptor {_FOLDER_DESCRIPTOR} of this process is in use; the data service needs it\n"
                "hint: open fewer files before the first dataset is sent to the data service"
            )
    finally:
        os.close(descriptor)


class _Carrier:
    """The child. One thread for each direction of a connection; they copy inside the kernel."""

    def __init__(self, folder: str, parent: int) -> None:
        self._folder = folder
        self._parent = parent
        self._limits: dict[int, threading.Timer] = {}
        self._opened: dict[str, _Way] = {}
        self._listeners: dict[str, Listener] = {}
        self._servers: dict[str, _Server] = {}

    def run(self, control: socket.socket) -> None:
        """Until the parent ends, even if an operation is under way then."""
        _start(self._answer, control)
        gone = select.poll()
        gone.register(control, 0)
        gone.poll()
        shutil.rmtree(self._folder)

    def _answer(self, control: socket.socket) -> None:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 64)
            except ConnectionResetError:  # the parent has ended, and has not read an answer
                return
            if not data:
                return
            message = json.loads(data)
            operation = getattr(self, f"_do_{message.pop('op')}")
            try:
                answer = {"result": operation(**message, descriptors=descriptors)}
            except Exception as error:  # told to the parent, which raises it
                answer = {"error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent has ended
                control.send(json.dumps(answer).encode())

    def _do_open(self, registry: tuple[str, int], key: str, names: list[str], descriptors: list[int]) -> None:
        rendezvous = Rendezvous(registry[0], registry[1], base64.b64decode(key), "the compute service")
        for name in names:
            if name not in self._opened:
                listening = socket.socket(socket.AF_UNIX)
                listening.bind(os.path.join(self._folder, name))
                listening.listen(128)
                self._opened[name] = _Way(listening, rendezvous, base64.b64decode(key), name)

    def _do_find(self, name: str, descriptors: list[int]) -> None:
        self._opened[name].address()

    def _do_listen(self, host: str, key: str, name: str, descriptors: list[int]) -> str:
        server = self._servers[name] = _Server()
        listening = socket.create_server((host, 0), backlog=1024)
        self._listeners[name] = Listener(listening, base64.b64decode(key), _purpose(name), server.carry)
        return f"{host}:{listening.getsockname()[1]}"

    def _do_serve(self, name: str, port: int, descriptors: list[int]) -> None:
        self._servers[name].open(port, [socket.socket(fileno=one) for one in descriptors])

    def _do_close(self, name: str, descriptors: list[int]) -> None:
        self._servers.pop(name).close()
        self._listeners.pop(name).close()

    def _do_limit(self, number: int, seconds: float, word: str, descriptors: list[int]) -> None:
        timer = self._limits[number] = threading.Timer(seconds, self._end_parent, [word])
        timer.daemon = True
        timer.start()

    def _do_lift(self, number: int, descriptors: list[int]) -> None:
        self._limits.pop(number).cancel()

    def _end_parent(self, word: str) -> None:
        tell(word)
        if os.getppid() == self._parent:
            os.kill(self._parent, signal.SIGABRT)


class _Way:
    """From a unix socket to a server, whose address the registry knows."""

    def __init__(self, listening: socket.socket, rendezvous: Rendezvous, key: bytes, name: str) -> None:
        self._listening = listening
        self._rendezvous = rendezvous
        self._key = key
        self._name = name
        self._address: tuple[str, int] | None = None
        _start(self._accept)

    def address(self) -> tuple[str, int]:
        """Waits until it is known. Raises ChannelError or ValueError."""
        if self._address is None:
            known = self._rendezvous.get(f"address/{self._name}", _LOOKUP_S)
            if known is None:
                raise ChannelError(f"{self._name} did not register within {_LOOKUP_S:g} s")
            host, _, port = str(known).rpartition(":")
            self._address = host, int(port)
        return self._address

    def _accept(self) -> None:
        while True:
            try:
                local, _ = self._listening.accept()
                _start(self._forward, local)
            except (OSError, RuntimeError):  # too many descriptors or threads: later connections may find room
                threading.Event().wait(_PAUSE_S)

    def _forward(self, local: socket.socket) -> None:
        with local:
            try:
                address = self.address()
                remote = socket.create_connection(address, _CONNECT_S)
                deadline = time.monotonic() + _CONNECT_S
                channel = authenticate_client(remote, self._key, _purpose(self._name), deadline, f"{address}")
            except (OSError, ValueError):  # gRPC finds its connection closed, tries again, and reports it at last
                return
            with contextlib.closing(channel):
                _carry(local, channel)


class _Server:
    """A server of the parent: connects to it from ports that it takes connections from."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._lock = threading.Lock()
        self._inner: dict[int, socket.socket] = {}  # by the port from which it connects
        self._listening: list[socket.socket] = []
        self._port = 0
        self._is_closed = False

    def open(self, port: int, listening: list[socket.socket]) -> None:
        self._port, self._listening = port, listening
        self._is_open.set()

    def close(self) -> None:
        """Ends all `carry`, whatever the server does."""
        with self._lock:
            self._is_closed = True
            for one in self._listening:
                one.close()
            self._listening = []
            for one in self._inner.values():
                _shut(one)
        self._is_open.set()

    def carry(self, channel: Channel) -> None:
        """Until either side closes."""
        self._is_open.wait()
        with socket.socket() as inner:
            inner.bind(("127.0.0.1", 0))
            port = inner.getsockname()[1]
            try:
                with self._lock:
                    if self._is_closed:
                        return
                    self._inner[port] = inner
                    _allow(self._listening, self._inner)
                inner.settimeout(_CONNECT_S)
                inner.connect(("127.0.0.1", self._port))
                inner.settimeout(None)
                _carry(inner, channel)
            except OSError as error:
                raise ChannelError(f"the server at port {self._port}: {error}") from error
            finally:
                with self._lock:
                    self._inner.pop(port, None)
                    _allow(self._listening, self._inner)


def _carry(local: socket.socket, channel: Channel) -> None:
    remote = channel.connection
    remote.settimeout(None)
    back = _start(_copy, remote, local)
    _copy(local, remote)
    back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    reading, writing = os.pipe()
    try:
        while count := os.splice(source.fileno(), writing, _CHUNK_BYTES):
            while count:
                count -= os.splice(reading, target.fileno(), count)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # either end has gone: so does the other
        for one in (source, target):
            _shut(one)
    finally:
        os.close(reading)
        os.close(writing)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is not connected
        one.shutdown(socket.SHUT_RDWR)


def _any_interface() -> socket.socket:
    # As gRPC: one socket for IPv6 and IPv4 if the machine has IPv6.
    try:
        both = socket.socket(socket.AF_INET6)
    except OSError:
        return socket.socket(socket.AF_INET)
    both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return both


def _listening_at(port: int) -> list[socket.socket]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed meanwhile
            continue
        if (
            one.family in (socket.AF_INET, socket.AF_INET6)
            and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            and one.getsockname()[1] == port
        ):
            found.append(one)
        else:
            one.close()
    return found


def _allow(listening: Iterable[socket.socket], ports: Iterable[int]) -> None:
    """Lets these sockets take packets from these ports of 127.0.0.1, and drop all others."""
    drop, keep = (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)
    program = [
        (0x28, 0, 0, 0xFFFFF000),  # the protocol
        (0x15, 1, 0, 0x0800),  # IPv4
        drop,
        (0x20, 0, 0, 0xFFF0000C),  # the sender's address
        (0x15, 1, 0, 0x7F000001),
        drop,
        (0x28, 0, 0, 0),  # its port
    ]
    for port in ports:
        program += [(0x15, 0, 1, port), keep]
    for one in listening:
        _attach(one, _SO_ATTACH_FILTER, [*program, drop])


def _attach(one: socket.socket, option: int, program: list[tuple[int, int, int, int]]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    one.setsockopt(socket.SOL_SOCKET, option, struct.pack("HP", len(program), ctypes.addressof(code)))


def _purpose(name: str) -> str:
    return f"tunnel to {name}"


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _start(run: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=run, args=arguments, name="horovod-tunnel", daemon=True)
    thread.start()
    return thread


if __name__ == "__main__":
    _Carrier(sys.argv[2], int(sys.argv[3])).run(socket.socket(fileno=int(sys.argv[1])))
