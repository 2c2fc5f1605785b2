# SPDX-License-Identifier: Apache-2.0
"""Caffe's tools for data sets and logs: `python -m horovod.caffe.tools.convert_imageset` and so on."""
