# SPDX-License-Identifier: Apache-2.0
"""How every file and folder is opened for writing: links and files of other users are not followed. See places.py."""
