# SPDX-License-Identifier: Apache-2.0
"""Old import names of elastic training's parts; re-exports only."""

from horovod.core.missing import watch

watch(__name__)
