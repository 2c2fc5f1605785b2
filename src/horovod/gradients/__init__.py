# SPDX-License-Identifier: Apache-2.0
"""How gradients are reduced, once for all frameworks (steps 1 and 2 of a gradient's way).

Imports no framework.
"""
