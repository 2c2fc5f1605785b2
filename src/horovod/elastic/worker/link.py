# SPDX-License-Identifier: Apache-2.0
"""A worker's session with the driver (session.py): one connection for life, and what init does in an elastic job.

A thread hears what the driver says. What this worker says is repeated until the launcher has it; the numbers of words
make sure that each counts once (world/rendezvous_store.py). If the launcher is gone, its agent ends this process.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from horovod.core import basics, context
from horovod.core.exceptions import (
    HorovodInternalError,
    InvalidRequestError,
    NotInitializedError,
    StartError,
    named,
    text_of,
)
from horovod.core.wording import on_one_line
from horovod.elastic.messages import (
    NO_STATE,
    AskStack,
    Done,
    Finished,
    Lost,
    Message,
    Raised,
    Ready,
    Stack,
    StateId,
    Stop,
    Update,
    WorldRecord,
)
from horovod.elastic.words import Report, packed, unpacked_message
from horovod.elastic.worker import session as sessions
from horovod.settings import Settings
from horovod.world.bootstrap import Assignment
from horovod.world.channel import ChannelError
from horovod.world.planned import Planned
from horovod.world.rendezvous import NoAnswerError, Rendezvous
from horovod.world.secret import read_secret

__all__ = ["DriverSession", "init"]

_log = logging.getLogger("horovod")

_LISTEN_S = 60.0  # then it asks again
_RETRY_S = 0.2
_ERROR_CHARACTERS = 500
# Also this package, if it runs from its sources.
_INSTALLED = re.compile(r"/(site|dist)-packages/|^" + re.escape(os.path.dirname(os.path.dirname(__file__)) + os.sep))
_STACK_FRAMES, _STACK_CHARACTERS = 12, 8000
# A start that fails for a reason of this process' own would fail again. But what the ranks disagree about is told to
# all of them.
_OWN_FAULTS = {"start-resources", "start-secret", "start-settings"}
_TRIES = 3


def init(settings: Settings, enter: basics.Enter) -> None:
    """Does hvd.init() in an elastic job: the first workers enter the first world, one that joins later none."""
    context.let_grow()
    session = sessions.current()
    if session is not None:  # the script has shut its world down by itself
        if session.is_done:
            raise InvalidRequestError(
                "hvd.init() after hvd.shutdown(): the training of this elastic job has ended, and with it its last "
                "world\nhint: call hvd.shutdown() after the last operation only"
            )
        session.join(orderly=False)
        return
    if settings.joins:
        sessions.begin(DriverSession(settings, enter))
        context.enter(Planned(settings))
    else:
        session = DriverSession(settings, enter)
        sessions.begin(session)
        session.join(orderly=False)


class DriverSession:
    """See session.Session."""

    def __init__(self, settings: Settings, enter: basics.Enter) -> None:
        """`enter` makes this process a member of a generation; it raises StartError."""
        assert settings.worker is not None and settings.rendezvous_port is not None
        self.world: WorldRecord | None = None
        self.cuts = 0
        self.held: StateId = NO_STATE
        self._unreached: set[int] = set()  # ranks of `world`
        self._worker = settings.worker
        self._training = threading.get_ident()
        self._enter = enter
        secret = read_secret(settings.secret_file)
        self._launcher = Rendezvous(settings.rendezvous_address, settings.rendezvous_port, secret, "the launcher")
        self._has_been_in = False  # in any world
        self._said = 0
        self._saying = threading.Lock()
        self._news = threading.Condition()  # guards what follows
        self._next: WorldRecord | None = None  # the newest world that this worker has been told of
        self._lost = 0  # the newest generation that is dead
        self._verdict: Stop | Done | None = None
        self._update: tuple[int, Update] | None = None  # with its generation, until it has been passed on
        self._hears: Callable[[int, int], None] | None = None
        self._is_joining = False
        self._closed = False
        threading.Thread(target=self._listen, name="horovod-elastic", daemon=True).start()
        atexit.register(self._close)

    @property
    def place(self) -> tuple[int, int]:
        return context.rank(), context.size()

    @property
    def is_done(self) -> bool:
        return isinstance(self._verdict, Done)

    def join(self, orderly: bool, why: str = "") -> WorldRecord:
        with self._news:
            self._is_joining = True
        left = self.world.generation if self.world else 0
        why = "" if self._lost >= left else why
        if basics.is_initialized():
            context.current().was_told = True  # of what has failed in this world: training goes on in another one
        basics.shutdown()
        failures = 0
        while True:
            self._say(Ready(self._worker, left, self.held, orderly, self._unreached_workers(), why))
            world = self._next_world(left)
            self.world, self.cuts, self._unreached = world, 0, set()
            numbers = [member.number for member in world.members]
            try:
                own = Assignment(world.generation, numbers.index(self._worker), len(numbers), self._unreached)
                self._enter(own)
                break
            except (StartError, HorovodInternalError) as error:
                failures += not sessions.is_loss(error)
                if self._gives_up(error, failures):
                    raise
                _log.warning("horovod: warning: generation %d did not form: %s", world.generation, text_of(error))
                left, orderly, why = world.generation, False, sessions.reason_of(error)
        self._has_been_in = True
        with self._news:
            self._is_joining = False
            self._pass_on()
            if self._lost == world.generation:
                _abort(world.generation)
        return world

    def finish(self) -> bool:
        world = self.world
        assert world is not None
        self._say(Finished(self._worker, world.generation, self.held))
        with self._news:
            self._news.wait_for(lambda: self._verdict is not None or self._is_over(world.generation))
            if self.is_done:
                return True
            self._leave_if_stopped()
            return False

    def raised(self, error: Exception) -> None:
        frames = list(traceback.extract_tb(error.__traceback__))
        frames = [frame for frame in frames if not _INSTALLED.search(frame.filename)] or frames  # the script's own line
        where = f" at {on_one_line(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
        text = named(error)[:_ERROR_CHARACTERS]
        self._say(Raised(self._worker, self.held, text + where))

    @contextlib.contextmanager
    def telling(self, heard: Callable[[int, int], None]) -> Iterator[None]:
        with self._news:
            self._hears = heard
            self._pass_on()
        try:
            yield
        finally:
            with self._news:
                self._hears = None

    def _unreached_workers(self) -> tuple[int, ...]:
        return () if self.world is None else tuple(self.world.members[rank].number for rank in sorted(self._unreached))

    def _gives_up(self, error: StartError | HorovodInternalError, failures: int) -> bool:
        """True if another try makes no sense. A worker with the state gives up late: another rank may be the reason."""
        is_own = isinstance(error, StartError) and error.code in _OWN_FAULTS and not error.of_peer
        if self._has_been_in:
            return is_own and failures >= _TRIES
        return is_own or failures >= _TRIES

    def _is_over(self, generation: int) -> bool:
        """True if the others go on in another world. The caller holds the lock."""
        return self._lost >= generation or (self._next is not None and self._next.generation > generation)

    def _next_world(self, left: int) -> WorldRecord:
        with self._news:
            self._news.wait_for(
                lambda: self._verdict is not None or (self._next is not None and self._next.generation > left)
            )
            self._leave_if_stopped()
            assert self._next is not None
            return self._next

    def _leave_if_stopped(self) -> None:
        if self._verdict is not None:
            raise sessions.Stopped(0)

    def _say(self, word: Report) -> None:
        with self._saying:
            self._said += 1
            while True:
                try:
                    self._launcher.say(self._worker, self._said, packed(word))
                    return
                except ChannelError as error:
                    if self._closed:
                        return
                    self._forget_silent(error)
                    _log.info("%s; trying again", error)
                    time.sleep(_RETRY_S)

    # the thread that listens

    def _listen(self) -> None:
        try:
            self._hear_all()
        except Exception:
            if self._closed:
                return  # an interpreter that ends starts no threads
            # Deaf, this worker would be waited for, and wait itself, without end. Its end is a loss like any other.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _hear_all(self) -> None:
        got = 0
        while not self._closed:
            try:
                words = self._launcher.hear(self._worker, got, _LISTEN_S)
            except ChannelError as error:
                self._forget_silent(error)
                time.sleep(_RETRY_S)
                continue
            for word in words:
                got += 1
                message = unpacked_message(word)
                if isinstance(message, AskStack):
                    self._say(Stack(self._worker, _stack_of(self._training)))
                else:
                    self._hear(message)

    def _forget_silent(self, error: ChannelError) -> None:
        """Closes a connection without answers: a device between two machines may drop it and tell neither side."""
        if isinstance(error, NoAnswerError):
            self._launcher.close()

    def _hear(self, message: Message) -> None:
        with self._news:
            match message:
                case WorldRecord():
                    self._next, self._update = message, None
                case Lost(generation):
                    self._lost = max(self._lost, generation)
                    if not self._is_joining:
                        _abort(generation)
                case Update():
                    self._update = (self._next.generation if self._next else 0), message
                    self._pass_on()
                case Stop() | Done():
                    self._verdict = message
            self._news.notify_all()

    def _pass_on(self) -> None:
        """Tells the state of an update of the world that this worker is in. The caller holds the lock."""
        if self._update is None or self._hears is None or self._is_joining or self.world is None:
            return
        generation, update = self._update
        if generation == self.world.generation:
            self._update = None
            self._hears(update.number, update.flags)

    def _close(self) -> None:
        self._closed = True
        self._launcher.close()


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    return (
        "".join(traceback.format_stack(frame)[-_STACK_FRAMES:]).rstrip()[-_STACK_CHARACTERS:]
        if frame
        else "no place: its training thread has ended"
    )


def _abort(generation: int) -> None:
    """Wakes whatever waits in that generation's operations."""
    try:
        running = context.current()
    except NotInitializedError:  # the thread that trains has left it
        return
    if running.running and running.world.generation == generation:
        running.abort("another worker was lost")


basics.set_elastic_init(init)
