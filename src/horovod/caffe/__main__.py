# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.caffe` is the command `caffe`."""

from horovod.caffe.cli import main

raise SystemExit(main())
