# SPDX-License-Identifier: Apache-2.0
"""What a rank tells of itself while it runs: arrivals, rates of its links, where its threads are, its status."""
