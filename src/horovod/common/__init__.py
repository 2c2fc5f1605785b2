# SPDX-License-Identifier: Apache-2.0
"""Old import names; re-exports only."""

from horovod.core.missing import watch

watch(__name__)
