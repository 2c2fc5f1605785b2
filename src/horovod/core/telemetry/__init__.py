# SPDX-License-Identifier: Apache-2.0
"""A rank's facts while it runs: arrivals, rates of its links, where its threads are, its status."""
