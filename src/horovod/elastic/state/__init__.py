# SPDX-License-Identifier: Apache-2.0
"""The states that training continues from, and handlers for values that are changed in place."""
