# SPDX-License-Identifier: Apache-2.0
"""Finding the world: how processes learn which ranks there are, and open authenticated links to them.

bootstrap.py runs it. Imports of the core its errors, its texts and the native library's interface, nothing else.
"""
