# SPDX-License-Identifier: Apache-2.0
"""A job from start to end: its agents, its output, and why it ended."""
