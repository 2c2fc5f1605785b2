# SPDX-License-Identifier: Apache-2.0
"""horovod.run: a Python function as a job."""
