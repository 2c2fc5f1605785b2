# SPDX-License-Identifier: Apache-2.0
"""Horovod on Spark: estimators, and the jobs that they run."""
