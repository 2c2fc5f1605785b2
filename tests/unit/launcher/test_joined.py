# SPDX-License-Identifier: Apache-2.0
"""Agents that come by themselves, as those of Spark's tasks do: at the placement, and a whole job without Spark."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.extent import SLACK_S
from support.patience import wait_until

import horovod.core as hvd
from horovod import __version__
from horovod.launcher.function.answers import answer_of, memory, read
from horovod.launcher.function.run_task import dumps
from horovod.launcher.function.supervised import Supervised
from horovod.launcher.placement import PlacementOptions
from horovod.launcher.placement.joined import JoinedPlacement
from horovod.settings import current_environment
from horovod.world.channel import Channel, ChannelError, authenticate_client
from horovod.world.interpreter import import_command
from horovod.world.secret import new_secret
from horovod.world.topology import places_of

SECRET = new_secret()
PURPOSE = "agent that comes by itself"
LIMIT_S = 30.0
OPTIONS = PlacementOptions()


class Told:
    """What a placement tells, in order."""

    def __init__(self) -> None:
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()

    def __call__(self, **event: Any) -> None:
        self.events.put(event)

    def next(self) -> tuple[str, int]:
        event = self.events.get(timeout=LIMIT_S)
        return event["event"], event["index"]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def placement(told: Told) -> Iterator[JoinedPlacement]:
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with contextlib.closing(JoinedPlacement(SECRET, "127.0.0.1", 64, told)) as one:
        yield one
    for thread in set(threading.enumerate()) - threads:  # it may be at its very end
        thread.join(LIMIT_S)
        assert not thread.is_alive(), thread
    assert len(os.listdir("/proc/self/fd")) == files


def come(placement: JoinedPlacement, said: Any) -> Channel:
    connection = socket.create_connection(("127.0.0.1", placement.port), timeout=LIMIT_S)
    channel = authenticate_client(connection, SECRET, PURPOSE, time.monotonic() + LIMIT_S, "the placement")
    channel.send(said)
    return channel


def agent(index: int, **more: Any) -> dict[str, Any]:
    return {"index": index, "hostname": "a", "machine": "m", "version": __version__, **more}


def answer(channel: Channel) -> str:
    over: str = channel.receive(time.monotonic() + LIMIT_S)["over"]
    return over


@pytest.mark.parametrize(
    "said",
    [
        None, [], "agent", {}, {"index": 0}, agent(-1), agent(True), agent(1.5), agent("0"), agent(0, hostname=3),
        agent(0, machine=None), agent(0, version=[]), agent(0, event="came"), agent(0, why=""),
        agent(0, more="x" * 99999),
    ],
    ids=lambda said: str(said)[:60],
)  # fmt: skip
def test_what_is_no_agent_is_sent_away(placement: JoinedPlacement, told: Told, said: Any) -> None:
    with contextlib.closing(come(placement, said)) as hostile, pytest.raises(ChannelError, match="closed|reset"):
        answer(hostile)
    with contextlib.closing(come(placement, agent(0))) as one:
        assert answer(one) == "" and told.next() == ("came", 0)


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.0\r\n\r\n", b"HVD1" + bytes(32), bytes(range(256)) * 16])
def test_a_stranger_is_sent_away(placement: JoinedPlacement, told: Told, data: bytes) -> None:
    stranger = socket.create_connection(("127.0.0.1", placement.port), timeout=LIMIT_S)
    with stranger, contextlib.suppress(OSError):  # it is hung up on at any moment
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(4096):
            pass
    with contextlib.closing(come(placement, agent(3))) as one:
        assert answer(one) == "" and told.next() == ("came", 3)


def test_one_agent_for_each_index(placement: JoinedPlacement, told: Told) -> None:
    with contextlib.closing(come(placement, agent(1))) as first:
        assert (answer(first), told.next()) == ("", ("came", 1))
        with contextlib.closing(come(placement, agent(64))) as far:
            assert (answer(far), told.next()) == ("the job has 64 agents", ("refused", 64))
        with contextlib.closing(come(placement, agent(1, attempt=1))) as second:
            assert (answer(second), told.next()) == ("agent 1 is here already", ("refused", 1))
        with contextlib.closing(come(placement, agent(2, version="0.0"))) as old:
            assert "has hvd 0.0" in answer(old) and told.next() == ("refused", 2)
        assert placement.choose({1: "task 1"})
        with contextlib.closing(come(placement, agent(2))) as late:
            assert (answer(late), told.next()) == ("the job has started", ("refused", 2))


def test_one_that_leaves_before_the_start_may_come_again(placement: JoinedPlacement, told: Told) -> None:
    first = come(placement, agent(0))
    assert (answer(first), told.next()) == ("", ("came", 0))
    first.connection.sendall(b"it has greeted")  # unread bytes do not hide that it goes
    first.close()
    with contextlib.closing(come(placement, agent(0, attempt=1))) as second:
        while (event := told.next()) == ("refused", 0):  # the end of the first may be a moment later than the second
            second = come(placement, agent(0, attempt=1))
        assert event == ("left", 0) and told.next() == ("came", 0) and answer(second) == ""
        assert not placement.choose({1: "task 0"})  # the first one's number
        assert placement.choose({2: "task 0"})
        carrier = placement.start_agent("task 0", {}, OPTIONS)
        second.connection.sendall(b"hello")
        assert os.read(carrier.stdout.fileno(), 99) == b"hello" and carrier.returncode is None
        assert carrier.wait() == 255
        for pipe in (carrier.stdin, carrier.stdout):
            pipe.close()
        assert second.connection.recv(9) == b""
        second.close()


def test_agents_of_an_elastic_job_come_and_go(placement: JoinedPlacement, told: Told) -> None:
    first = come(placement, agent(0, hostname="-a b"))
    assert (answer(first), told.next()) == ("", ("came", 0))
    placement.open()
    with contextlib.closing(come(placement, agent(0, attempt=1))) as again, contextlib.closing(first):
        assert (answer(again), told.next()) == ("", ("came", 0))
        assert placement.present() == ["a-b.task-0.0", "a.task-0.1"]
        carrier = placement.start_agent("a.task-0.1", {}, OPTIONS)
        assert placement.present() == ["a-b.task-0.0", "a.task-0.1"]
        first.close()
        while told.events.empty():
            placement.watch()
        assert told.next() == ("left", 0) and placement.present() == ["a.task-0.1"]
        with pytest.raises(OSError, match="it has left"):
            placement.start_agent("a-b.task-0.0", {}, OPTIONS)
        carrier.wait()
        assert placement.present() == []
        for pipe in (carrier.stdin, carrier.stdout):
            pipe.close()


def test_an_agent_that_goes_is_told_of_without_being_asked(placement: JoinedPlacement, told: Told) -> None:
    channel = come(placement, agent(5))
    assert told.next() == ("came", 5)
    channel.close()
    wait_until(lambda: placement.watch() or not told.events.empty())
    assert told.next() == ("left", 5)


def test_64_agents_come_within_two_seconds(placement: JoinedPlacement, told: Told) -> None:
    begun = time.monotonic()
    channels: list[Channel] = []
    threads = [threading.Thread(target=lambda at=at: channels.append(come(placement, agent(at)))) for at in range(64)]
    for thread in threads:
        thread.start()
    assert {told.next() for _ in threads} == {("came", at) for at in range(64)}
    assert placement.choose({number: f"task {number}" for number in range(1, 65)})
    carriers = [placement.start_agent(f"task {number}", {}, OPTIONS) for number in range(1, 65)]
    assert time.monotonic() - begun < 2.0 + SLACK_S
    for thread in threads:
        thread.join()
    for carrier in carriers:
        carrier.wait()
        carrier.stdin.close()
        carrier.stdout.close()
    for channel in channels:
        channel.close()


BRING = """
import os, socket, sys
from horovod.launcher.placement.joined import bring
said = {"index": int(sys.argv[2]), "hostname": socket.gethostname(), "machine": "m"}
os.chdir(sys.argv[3])
print(bring(["127.0.0.1"], int(sys.argv[1]), bytes.fromhex(sys.stdin.read()), said, dict(os.environ, OWN=sys.argv[2])))
"""


class Tap(threading.Thread):
    """Passes connections on to `port`, and keeps all bytes."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.seen = bytearray()

    def run(self) -> None:
        near, _ = self._listening.accept()
        far = socket.create_connection(("127.0.0.1", self._to))
        back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
        back.start()
        self._pass(near, far)
        back.join()
        for one in (near, far, self._listening):
            one.close()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def where(given: int) -> tuple[Any, ...]:
    hvd.init()
    environment = current_environment()
    print(f"agent of session {os.getsid(os.getppid())}")
    return given, hvd.rank(), hvd.local_size(), os.getcwd(), environment["OWN"], environment["OVER"]


class Text:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def test_a_job_of_agents_that_come_by_themselves(tmp_path: Path) -> None:
    """Each rank has the environment and the folder of its agent, with the job's variables over it. The secret does not
    travel."""
    environment = {**current_environment(), "OMP_NUM_THREADS": "1", "OVER": "of the agent"}
    with contextlib.ExitStack() as stack:
        paths = memory(stack, ["task", "0", "1", "conclusion"])
        Path(paths[0]).write_bytes(dumps({"path": sys.path, "call": dumps((where, (7,), {}), "func")}, "func"))
        output = Text()
        job = Supervised(
            output, output, secret=SECRET, size=2, interface="lo", task=paths[0], answers=paths[1:3],
            conclusion=paths[3], environment={"OVER": "of the job"}, python="", verbose=1, timestamps=False,
            start_timeout_s=LIMIT_S, elastic=None,
        )  # fmt: skip
        (listens,) = job.events()
        tap = Tap(listens["port"])
        tap.start()
        agents = []
        for index, port in enumerate((tap.port, listens["port"])):
            directory = tmp_path / str(index)
            directory.mkdir()
            command = [*import_command("horovod.launcher.placement.joined", BRING), str(port), str(index), directory]
            agents.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert agents[-1].stdin is not None
            agents[-1].stdin.write(SECRET.hex())
            agents[-1].stdin.close()
            agents[-1].stdin = None
        came: list[dict[str, Any]] = []
        while len(came) < 2:
            came += job.events()
        came.sort(key=lambda one: -one["index"])  # rank 0 is that of agent 1
        names = [f"task {one['index']}" for one in came]
        job.order(
            "start", agents={one["number"]: name for one, name in zip(came, names, strict=True)}, names=names,
            places=places_of(came), environments={},
        )  # fmt: skip
        while not job.ended:
            job.events()
        code = job.wait()
        answers = [answer_of(rank, path) for rank, path in enumerate(paths[1:3])]
        assert code == 0 and None not in answers, (output.text, read(paths[3]))
        values = [one.value for one in answers if one is not None]
    assert values == [
        (7, 0, 2, str(tmp_path / "1"), "1", "of the job"),
        (7, 1, 2, str(tmp_path / "0"), "0", "of the job"),
    ]
    sessions = {line.rpartition(" ")[2] for line in output.text.splitlines() if "agent of session" in line}
    assert len(sessions) == 2 and str(os.getsid(0)) not in sessions
    assert [one.communicate(timeout=LIMIT_S)[0] for one in agents] == ["\n", "\n"]  # they have joined
    tap.join(LIMIT_S)
    assert b"horovod's agent" in tap.seen and b'"prepare"' in tap.seen
    assert SECRET not in tap.seen and SECRET.hex().encode() not in tap.seen
