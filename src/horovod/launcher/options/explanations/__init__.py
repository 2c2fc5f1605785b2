# SPDX-License-Identifier: Apache-2.0
"""The text of each error code, for `horovodrun --explain`."""

from horovod.launcher.options.explanations.table import EXPLANATIONS, Explanation, explain, list_of_codes

__all__ = ["EXPLANATIONS", "Explanation", "explain", "list_of_codes"]
