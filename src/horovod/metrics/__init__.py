# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: each rank's counters, served over HTTP and written to a file.

exporter.py is what a generation starts; nothing of this folder is loaded if no setting asks for it. docs/monitoring.md
lists the series.
"""
