# SPDX-License-Identifier: Apache-2.0
"""A rank of a test world: runs the functions that the test process sends until its pipe closes. See world.py."""

import faulthandler
import signal
import sys
import traceback
from multiprocessing.connection import Connection

import cloudpickle


def _dumped(error: BaseException) -> "BaseException | None":
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return None  # its text and traceback still travel
    return error


def run(descriptor: int) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    connection = Connection(descriptor)
    connection.send_bytes(b"ready")
    while True:
        try:
            payload = connection.recv_bytes()
        except EOFError:
            return  # the world was closed: leave in order, so that atexit handlers run
        try:
            function, arguments = cloudpickle.loads(payload)
            answer = ("value", function(*arguments), "")
            reply = cloudpickle.dumps(answer)
        except BaseException as error:
            reply = cloudpickle.dumps(("error", _dumped(error), traceback.format_exc()))
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise
        sys.stdout.flush()  # the test shows it with an error
        connection.send_bytes(reply)


if __name__ == "__main__":
    run(int(sys.argv[1]))
