# SPDX-License-Identifier: Apache-2.0
"""Elastic training: jobs that lose and gain workers. Its parts; scripts use `horovod.torch.elastic` and its siblings.

membership.py  what the launcher decides: a pure function from events to orders
job.py         the state of that function, and what can be asked of it
messages.py    what the launcher and its workers tell each other, and the orders to the launcher
ranks.py       who gets which rank
session.py     what a worker needs of the driver
worker.py      the wrapper around a training function
state.py       what training continues from
decorator.py   `run`: the wrapper, for frameworks that raise errors of their own, too
handlers.py    states whose values are changed in place
variables.py   values that are lists of variables
keras_state.py a model of Keras and its optimizer
sampler.py     which items each rank gets
discovery.py   which hosts there are
cooldown.py    how long a host is left alone after a failure
notices.py     what Horovod calls the notices that hosts have changed
driver.py      feeds membership.py, carries its orders out, and runs the timers
link.py        a worker's session with the driver
words.py       what both say, as JSON
"""
