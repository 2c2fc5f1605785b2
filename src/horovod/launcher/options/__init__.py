# SPDX-License-Identifier: Apache-2.0
"""The command line: flags, the configuration file, lists of hosts, and what is checked before anything starts."""
