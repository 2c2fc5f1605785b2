# SPDX-License-Identifier: Apache-2.0
"""What core/pickling.py adds to cloudpickle."""

import inspect
import sys

import cloudpickle

from horovod.core import pickling


def test_functions_keep_their_file() -> None:
    def outer() -> object:
        def inner() -> str:
            return "inner"

        return inner

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        copy = pickling.loads(pickling.dumps({"outer": outer}))["outer"]
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert copy is not outer and copy()() == "inner"
    for mine, its in ((outer, copy), (outer(), copy())):
        assert its.__code__.co_filename == __file__
        assert inspect.getsource(its) == inspect.getsource(mine)
