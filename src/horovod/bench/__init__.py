# SPDX-License-Identifier: Apache-2.0
"""Measurements that ship with the package: `python -m horovod.bench allreduce -np 2`."""
