# SPDX-License-Identifier: Apache-2.0
"""Hosts of a cluster on this machine, as far as software can tell: each has an own network, processes and name.

    with Cluster(2, shared=[tmp_path]) as (one, two):
        one.run("ssh", two.name, "hostname")            # CompletedProcess; popen and command likewise
        two.link(False)                                 # pulls its cable
        two.power_off()                                 # silence: no FIN, no RST

A host is a process in network, mount, UTS, IPC and PID namespaces of its own, with a private /dev/shm, /run, /tmp,
/etc/hosts and ~/.ssh, and a real sshd. Cables (veth pairs) lead to a bridge in one more network namespace. Nothing has
a name outside of the namespaces, so that clusters cannot meet. Processor, clock and all other files are shared.

Everything hangs on the pipes of this process: when it ends, however it ends, the hosts end, and the kernel removes
interfaces, rules and mounts. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from support.extent import SLACK_S
from support.patience import wait_until

__all__ = ["Cluster", "Host", "MakeCluster", "lacking"]

_SCRIPTS = Path(__file__).with_name("scripts")
_NETWORK = "10.77.0"
_SECOND_NETWORK = "10.78.0"
_IPV6_NETWORK = "fd77:"
_UNSHARE = ["unshare", "--fork", "--kill-child=KILL", "--net"]
_HOST_SPACES = ["--mount", "--uts", "--ipc", "--pid", "--mount-proc", "--propagation", "private"]
_TOOLS = ("unshare", "nsenter", "setpriv", "ip", "tc", "nft", "ssh", "ssh-keygen", "ping", "ps")
_SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))

_SSHD_CONFIG = """\
Port 22
HostKey {ssh}/host_key
AuthorizedKeysFile {ssh}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
MaxStartups 300
PidFile /run/sshd.pid
"""


def lacking() -> str | None:
    """Why this machine cannot have such hosts; None if it can."""
    if os.geteuid() != 0:
        return "namespaces for hosts need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None] + ([] if _SSHD else ["sshd"])
    if missing:
        return f"hosts need {', '.join(missing)}"
    probe = "ip link add one type veth peer name two && mount -t tmpfs tmpfs /dev/shm && nft list tables"
    tried = subprocess.run([*_UNSHARE, *_HOST_SPACES, "sh", "-c", probe], capture_output=True, text=True)
    return f"no namespaces on this machine: {tried.stderr.strip()}" if tried.returncode else None


class Host:
    """One host of a cluster."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"host{index}"
        self.address = f"{_NETWORK}.{10 + index}"
        self.second_address = f"{_SECOND_NETWORK}.{10 + index}"
        self.ipv6 = f"{_IPV6_NETWORK}:{10 + index:x}"
        self._cluster: Cluster
        self._process: subprocess.Popen[str]
        self._pid_space = ""
        self._bad_cable: subprocess.Popen[str] | None = None

    def command(self, *words: str, directory: str | os.PathLike[str] = "/") -> list[str]:
        """What runs these words on this host. It is killed with the process that runs it."""
        there = ["sh", "-c", 'cd "$0" && exec "$@"', os.fspath(directory), *words]
        return [*self._enter("net", "mount", "uts", "ipc", "pid"), "setpriv", "--pdeathsig", "KILL", "--", *there]

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs it to its end; stdout and stderr are kept as text."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(self.command(*words), capture_output=True, text=True, **options)

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.command(*words), **options)

    def processes(self) -> dict[int, str]:
        """The processes of this host by their pids here outside, with their commands; not its first one, nor sshd."""
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/pid") == self._pid_space:
                    command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    if command and "sshd" not in command.split()[0] and "cluster_host.sh" not in command:
                        found[int(entry)] = command
        return found

    def assert_empty(self, within_s: float = 3.0 + SLACK_S) -> None:
        """Nothing that was started here runs any more, or lies in shared memory."""
        wait_until(lambda: not self.processes(), lambda: f"left behind on {self.name}: {self.processes()}", within_s)
        if self.is_on():
            left = self.run("sh", "-c", "ls /dev/shm; ls /tmp | grep ^hvd-").stdout
            assert left == "", f"left behind on {self.name}: {left}"

    def link(self, up: bool) -> None:
        """Plugs the cable in or pulls it, at the switch: the host only notices that nothing comes any more."""
        self._cluster.on_switch("ip", "link", "set", f"to{self.index}", "up" if up else "down")

    def rate(self, megabits: float) -> None:
        """Limits what the cable carries, in each direction."""
        shape = ["root", "tbf", "rate", f"{int(megabits * 1e6)}bit", "burst", "256k", "latency", "20ms"]
        _done([*self._enter("net"), "tc", "qdisc", "replace", "dev", "eth0", *shape])
        self._cluster.on_switch("tc", "qdisc", "replace", "dev", f"to{self.index}", *shape)

    def worsen(self, delay_s: float = 0.0, lost: float = 0.0) -> None:
        """From now on the cable takes so long in each direction, and loses this share of the packets.

        The first call replaces the cable: call it with nothing before anything is connected that has to last.
        """
        if self._bad_cable is None:
            port, far = f"to{self.index}", f"far{self.index}"
            self._cluster.on_switch("ip", "link", "del", port)
            script = str(_SCRIPTS / "bad_cable.py")
            self._bad_cable = _piped([*self._cluster.enter_switch(), sys.executable, script, port, far])
            _expect(self._bad_cable, "ready")
            self._cluster.switch_batch(
                f"link set {far} netns {self.pid} name eth0", f"link set {port} master bridge0", f"link set {port} up"
            )
            self._raise("eth0", self.address)
        _tell(self._bad_cable, f"{delay_s} {lost}")
        _expect(self._bad_cable, "set")

    def hide(self, folder: Path) -> None:
        """From now on this folder is empty here."""
        self.run("mount", "-t", "tmpfs", "tmpfs", str(folder), check=True)

    def put(self, source: Path, path: Path) -> None:
        """From now on this file is `source` here."""
        self.run("mount", "--bind", str(source), str(path), check=True)

    def wall_off(self, address: str, verdict: str = "reject with tcp reset") -> None:
        """Refuses connections from here to this address, but to sshd; those that come from there go on."""
        rule = f"ip daddr {address} tcp dport > 1023 tcp flags & (syn | ack) == syn {verdict}"
        chain = f"chain output {{ type filter hook output priority 0\n{rule}\n}}"
        _done([*self._enter("net"), "nft", "-f", "-"], f"table ip walls {{ {chain}\n}}\n")

    def reset(self, port: int, seconds: float) -> None:
        """Breaks all connections from here to this port, and refuses new ones for a moment."""
        chain = "chain output { type filter hook output priority 0\n" + f"tcp dport {port} reject with tcp reset\n}}"
        _done([*self._enter("net"), "nft", "-f", "-"], f"table ip resets {{ {chain}\n}}\n")
        time.sleep(seconds)
        _done([*self._enter("net"), "nft", "delete", "table", "ip", "resets"])

    def power_off(self) -> None:
        """The host is gone at once. Its peers hear nothing: no FIN, no RST."""
        self.link(False)
        self._process.kill()
        self._process.wait()

    def is_on(self) -> bool:
        """Whether nobody has powered it off."""
        return self._process.poll() is None

    # for Cluster

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, cluster: Cluster, shared: Sequence[str]) -> None:
        self._cluster = cluster
        script = str(_SCRIPTS / "cluster_host.sh")
        assert _SSHD is not None
        words = [*_UNSHARE, *_HOST_SPACES, "bash", script, self.name, str(cluster.folder), _SSHD, *shared]
        self._process = _piped(words)

    def plug(self) -> None:
        _expect(self._process, "ready")
        self._pid_space = os.readlink(f"/proc/{self._process.pid}/ns/pid_for_children")
        self.connect("eth0", f"to{self.index}", self.address)
        _tell(self._process, "go")

    def connect(self, interface: str, port: str, address: str) -> None:
        """Lays a cable to a port of the switch."""
        self._cluster.switch_batch(
            f"link add {port} type veth peer name {interface} netns {self._process.pid}",
            f"link set {port} master bridge0",
            f"link set {port} up",
        )
        self._raise(interface, address)

    def _raise(self, interface: str, address: str) -> None:
        self.batch(f"addr add {address}/24 dev {interface}", f"link set {interface} up")

    def batch(self, *lines: str) -> None:
        """Of `ip`."""
        _done([*self._enter("net"), "ip", "-batch", "-"], "\n".join(lines) + "\n")

    def wait_until_up(self) -> None:
        _expect(self._process, "up")

    def end(self) -> None:
        _end(self._process)
        if self._bad_cable is not None:
            _end(self._bad_cable)

    def _enter(self, *spaces: str) -> list[str]:
        names = {"mount": "mnt", "pid": "pid_for_children"}
        own = f"/proc/{self._process.pid}/ns"
        return ["nsenter", *(f"--{space}={own}/{names.get(space, space)}" for space in spaces), "--"]


class Cluster:
    """`count` hosts on one switch, from `with` to its end. The folders `shared` exist on all of them."""

    def __init__(self, count: int, shared: Iterable[str | os.PathLike[str]] = ()) -> None:
        self.hosts = [Host(index) for index in range(count)]
        self.folder = Path()
        self._shared = [os.fspath(folder) for folder in shared]
        self._switch: subprocess.Popen[str]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> list[Host]:
        with self._stack:
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
            self._make_files()
            self._switch = _piped([*_UNSHARE, "sh", "-c", "echo ready; read -r _"])
            self._stack.callback(_end, self._switch)
            for host in self.hosts:
                host.begin(self, self._shared)
                self._stack.callback(host.end)
            _expect(self._switch, "ready")
            self.switch_batch("link add bridge0 type bridge forward_delay 0", "link set bridge0 up", "link set lo up")
            for host in self.hosts:
                host.plug()
            for host in self.hosts:
                host.wait_until_up()
            self._stack = self._stack.pop_all()
        return self.hosts

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def trust(self) -> None:
        """ssh asks nobody about the keys of these hosts."""
        (self.folder / "ssh" / "config").write_text("StrictHostKeyChecking accept-new\nLogLevel ERROR\n")

    def second_network(self) -> None:
        """A second interface for each host, eth1."""
        for host in self.hosts:
            host.connect("eth1", f"also{host.index}", host.second_address)

    def add_ipv6(self, *alone: Host) -> None:
        """To all hosts; `alone`: these have no IPv4 any more. A name means all that its host has."""
        names = ["127.0.0.1 localhost\n"]
        for host in self.hosts:
            names.append(f"{host.ipv6} {host.name}\n")
            if host in alone:
                host.batch(f"addr del {host.address}/24 dev eth0", f"addr add {host.ipv6}/64 dev eth0 nodad")
            else:
                host.batch(f"addr add {host.ipv6}/64 dev eth0 nodad")
                names.append(f"{host.address} {host.name}\n")
        (self.folder / "hosts").write_text("".join(names))

    def second_sshd(self, host: Host, port: int, key: Path) -> None:
        """Another sshd, which takes `key` alone; its private part is made there."""
        _done(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)])
        text = _SSHD_CONFIG.format(ssh=self.folder / "ssh").replace("Port 22", f"Port {port}")
        text = text.replace(str(self.folder / "ssh" / "authorized_keys"), f"{key}.pub").replace(
            "sshd.pid", "second.pid"
        )
        key.with_name("sshd_config").write_text(text)
        assert _SSHD is not None
        host.run(_SSHD, "-f", str(key.with_name("sshd_config")), "-E", "/run/second.log", check=True)
        host.run("sh", "-c", "until [ -s /run/second.pid ]; do sleep 0.02; done", check=True)  # it listens then

    def pids(self) -> list[int]:
        """A process of each of its namespaces."""
        return [self._switch.pid, *(host.pid for host in self.hosts)]

    def on_switch(self, *words: str, text: str = "") -> None:
        """Runs a command where the switch is."""
        _done([*self.enter_switch(), *words], text)

    def enter_switch(self) -> list[str]:
        """What a command begins with that runs where the switch is."""
        return ["nsenter", f"--net=/proc/{self._switch.pid}/ns/net", "--"]

    def switch_batch(self, *lines: str) -> None:
        self.on_switch("ip", "-batch", "-", text="\n".join(lines) + "\n")

    def cut(self, one: Host, other: Host) -> None:
        """From now on these two hear nothing of each other."""
        self.spoil(one, other, "drop")

    def spoil(self, one: Host, other: Host, rule: str) -> None:
        """From now on this rule of nft, which drops some packets, is applied to those between these two."""
        pairs = ((one, other), (other, one))
        rules = "".join(f"iifname to{a.index} oifname to{b.index} {rule}\n" for a, b in pairs)
        chain = f"chain forward {{ type filter hook forward priority 0\n{rules}}}"
        self.on_switch("nft", "-f", "-", text=f"table bridge cut{one.index}x{other.index} {{ {chain}\n}}\n")

    def _make_files(self) -> None:
        ssh = self.folder / "ssh"
        ssh.mkdir(mode=0o700)
        for name in ("id_ed25519", "host_key"):
            _done(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / name)])
        shutil.copy(ssh / "id_ed25519.pub", ssh / "authorized_keys")
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
        (self.folder / "sshd_config").write_text(_SSHD_CONFIG.format(ssh=ssh))


MakeCluster = Callable[[int], Cluster]  # the fixture `cluster`


@contextlib.contextmanager
def _shown(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    except (AssertionError, BrokenPipeError) as error:
        _end(process)
        assert process.stderr is not None
        raise RuntimeError(f"{' '.join(process.args)}: {error}: {process.stderr.read()}") from error  # type: ignore[arg-type]


def _piped(words: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    with _shown(process):
        said = process.stdout.readline().strip()
        assert said == word, f"expected {word!r}, got {said!r}"


def _tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    with _shown(process):
        process.stdin.write(word + "\n")
        process.stdin.flush()


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.wait()


def _done(words: list[str], text: str = "") -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
