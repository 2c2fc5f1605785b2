# SPDX-License-Identifier: Apache-2.0
"""Old import names; re-exports only."""
