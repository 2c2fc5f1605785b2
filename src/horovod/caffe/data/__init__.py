# SPDX-License-Identifier: Apache-2.0
"""Where the data layers' records come from, and what is done to them."""
