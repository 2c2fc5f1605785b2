# SPDX-License-Identifier: Apache-2.0
"""The driver of an elastic job: feeds elastic/decide with events and has its orders carried out."""
