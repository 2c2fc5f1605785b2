# SPDX-License-Identifier: Apache-2.0
"""Which workers are in which world: pure functions of a state and events."""
