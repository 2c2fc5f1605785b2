# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.trace`: what a timeline says, as text, JSON or a page."""
