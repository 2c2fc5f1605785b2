# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for the forms of a column, and its constants."""

ARRAY = "array"
CUSTOM_SPARSE = "custom_sparse_format"
DENSE_VECTOR = "dense_vector"
MIXED_SPARSE_DENSE_VECTOR = "mixed_sparse_dense_vector"
NOCHANGE = "nochange"
SPARSE_VECTOR = "sparse_vector"

BYTES_PER_GIB = 1073741824
METRIC_PRINT_FREQUENCY = 100
PETASTORM_HDFS_DRIVER = "libhdfs"
TOTAL_BUFFER_MEMORY_CAP_GIB = 4
