# SPDX-License-Identifier: Apache-2.0
"""Elastic training: jobs that lose and gain workers. Its parts; scripts use `horovod.torch.elastic` and its siblings.

decide/  pure functions of the launcher: which workers and hosts are used (membership, job, messages, ranks, cooldown)
drive/   runs in horovodrun: feeds the decisions with events and carries them out (driver, discovery)
worker/  runs in each worker: the wrapper around a training function, its session with the driver, and the sampler
state/   what training continues from, with the values that are changed in place

messages.py defines what both sides say, and words.py writes it as JSON.
"""

from horovod.core.missing import watch

watch(__name__)
