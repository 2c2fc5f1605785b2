# SPDX-License-Identifier: Apache-2.0
"""A worker of an elastic job: its session with the driver, and the wrapper around its training function."""
