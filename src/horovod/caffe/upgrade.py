# SPDX-License-Identifier: Apache-2.0
"""Old nets and solvers in today's form: V1 layers, transformations inside data layers, inputs outside of layers."""

from __future__ import annotations

from typing import Any

from horovod.caffe.errors import CaffeError
from horovod.caffe.schema import message

__all__ = ["upgrade_net", "upgrade_solver"]

# V1's types are words in capitals; today's are these. The others are the same word, written Like.
_TYPES = {
    "ABSVAL": "AbsVal", "ARGMAX": "ArgMax", "BNLL": "BNLL", "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "DUMMY_DATA": "DummyData", "EUCLIDEAN_LOSS": "EuclideanLoss", "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output", "HINGE_LOSS": "HingeLoss", "IM2COL": "Im2col", "IMAGE_DATA": "ImageData",
    "INFOGAIN_LOSS": "InfogainLoss", "INNER_PRODUCT": "InnerProduct", "LRN": "LRN", "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss", "MVN": "MVN", "RELU": "ReLU",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss", "SOFTMAX_LOSS": "SoftmaxWithLoss", "TANH": "TanH",
    "WINDOW_DATA": "WindowData",
}  # fmt: skip
_SAME_FIELDS = ("name", "bottom", "top", "include", "exclude", "loss_weight", "blobs")
_TRANSFORMED = {"Data": "data_param", "ImageData": "image_data_param", "WindowData": "window_data_param"}
_TRANSFORMATIONS = ("scale", "mean_file", "crop_size", "mirror")
_SOLVER_TYPES = {
    "SGD": "SGD", "NESTEROV": "Nesterov", "ADAGRAD": "AdaGrad", "RMSPROP": "RMSProp", "ADADELTA": "AdaDelta",
    "ADAM": "Adam",
}  # fmt: skip


def upgrade_net(net: Any) -> None:
    """Changes the net in place. Raises CaffeError for a net that mixes old and new layers, or is too old."""
    if net.layers and net.layer:
        raise CaffeError("the net has both `layers` (the old form) and `layer`; expected one of them")
    for old in net.layers:
        _upgrade_layer(old, net.layer.add())
    del net.layers[:]
    _move_inputs(net)
    for layer in net.layer:
        _move_transformation(layer)
        if layer.type == "BatchNorm" and len(layer.param) == 3 and layer.blobs:
            del layer.param[:]  # old files gave the statistics rates, all zero


def _upgrade_layer(old: Any, new: Any) -> None:
    if not old.HasField("type"):
        raise CaffeError(
            f"layer {old.name!r} has no type: the form from before 2014 (`layers {{ layer {{ ... }} }}`) is not read\n"
            "hint: Caffe's own upgrade_net_proto_text turns such a file into one that is"
        )
    kind = message("V1LayerParameter").DESCRIPTOR.enum_types_by_name["LayerType"].values_by_number[old.type].name
    new.type = _TYPES.get(kind, kind.capitalize())
    for descriptor, value in old.ListFields():
        if descriptor.name in _SAME_FIELDS or descriptor.name.endswith("_param") and descriptor.message_type:
            # The numbers differ, the messages do not.
            target = getattr(new, descriptor.name)
            if isinstance(value, str):
                new.name = value
            elif hasattr(target, "extend"):
                target.extend(value)
            else:
                target.CopyFrom(value)
    for index in range(max(len(old.param), len(old.blobs_lr), len(old.weight_decay))):
        spec = new.param.add()
        if index < len(old.param):
            spec.name = old.param[index]
        if index < len(old.blob_share_mode):
            spec.share_mode = old.blob_share_mode[index]
        if index < len(old.blobs_lr):
            spec.lr_mult = old.blobs_lr[index]
        if index < len(old.weight_decay):
            spec.decay_mult = old.weight_decay[index]


def _move_inputs(net: Any) -> None:
    if not net.input:
        return
    shapes = [list(shape.dim) for shape in net.input_shape]
    if net.input_dim:
        if len(net.input_dim) != 4 * len(net.input):
            raise CaffeError(f"expected four input_dim for each of {len(net.input)} inputs, got {len(net.input_dim)}")
        shapes = [list(net.input_dim[start : start + 4]) for start in range(0, len(net.input_dim), 4)]
    # A file of weights may do without; a net that is made of such a file may not (layers/data.py).
    if shapes and len(shapes) != len(net.input):
        raise CaffeError(f"expected an input_shape for each of {len(net.input)} inputs, got {len(shapes)}")
    layers = list(net.layer)
    del net.layer[:]
    new = net.layer.add(name="input", type="Input", top=list(net.input))
    for shape in shapes:
        new.input_param.shape.add(dim=shape)
    net.layer.extend(layers)
    for field in ("input", "input_shape", "input_dim"):
        net.ClearField(field)


def _move_transformation(layer: Any) -> None:
    name = _TRANSFORMED.get(layer.type)
    if name is None:
        return
    parameter = getattr(layer, name)
    for field in _TRANSFORMATIONS:
        if parameter.HasField(field):
            setattr(layer.transform_param, field, getattr(parameter, field))
            parameter.ClearField(field)


def upgrade_solver(solver: Any) -> None:
    """Changes the solver in place: the enum solver_type becomes the string type."""
    if solver.HasField("solver_type"):
        if solver.HasField("type"):
            raise CaffeError("the solver has both `type` and the old `solver_type`; expected one of them")
        names = message("SolverParameter").DESCRIPTOR.enum_types_by_name["SolverType"].values_by_number
        solver.type = _SOLVER_TYPES[names[solver.solver_type].name]
        solver.ClearField("solver_type")
