# SPDX-License-Identifier: Apache-2.0
"""Old import names of what Keras' packages share; re-exports only."""

from horovod.core.missing import watch

watch(__name__)
