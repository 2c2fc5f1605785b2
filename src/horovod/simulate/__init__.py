# SPDX-License-Identifier: Apache-2.0
"""How far a job scales: forecasts for hosts that are not there, and the published results that test them.

`python -m horovod.simulate`. Not used while a job trains. Needs NumPy and no framework, and starts no rank.
"""
