# SPDX-License-Identifier: Apache-2.0
"""What training continues from: states, and handlers for values that are changed in place."""
