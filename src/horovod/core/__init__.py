# SPDX-License-Identifier: Apache-2.0
"""What an operation means, once for all frameworks; imports no framework."""
