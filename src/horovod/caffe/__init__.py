# SPDX-License-Identifier: Apache-2.0
"""Caffe's prototxt files, trained data-parallel on PyTorch.

    mpirun -n 4 caffe train --solver=solver.prototxt
    horovodrun -np 4 caffe train --solver=solver.prototxt

The files are those of BVLC Caffe 1.0 and Intel Caffe; nothing of Caffe itself is needed. In Python:

    from horovod.caffe import Net, Solver

    Solver("solver.prototxt").solve()
    outputs = Net("deploy.prototxt").forward({"data": images})
"""

from horovod.caffe.errors import CaffeError
from horovod.caffe.net import TEST, TRAIN, Net
from horovod.caffe.solver import Solver

__all__ = ["TEST", "TRAIN", "CaffeError", "Net", "Solver"]
