# SPDX-License-Identifier: Apache-2.0
"""The parts that all estimators share: parameters, stores, backends, and the way of a DataFrame to the ranks."""

from horovod.core.missing import watch

watch(__name__)
