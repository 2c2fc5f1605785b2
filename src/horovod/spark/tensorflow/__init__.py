# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's data service on Spark."""
