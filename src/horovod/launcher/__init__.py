# SPDX-License-Identifier: Apache-2.0
"""horovodrun: places ranks on hosts, lets them find each other, and ends the job as one."""
