# SPDX-License-Identifier: Apache-2.0
"""HorovodStrategy: Lightning's Trainer on the ranks that a launcher of Horovod has started.

The optimizers of the LightningModule become DistributedOptimizers, whose hooks average the gradients during backward.
Everything else is an operation of horovod.torch. torch.distributed is not used, and metrics of torchmetrics do not
need it. While a rank handles an exception, its peers run other code: barriers and collectives that callbacks or
Lightning call then do not wait for them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import horovod.torch as hvd
from horovod.core.wording import counted
from horovod.torch.lightning.batch_norm import SyncedBatchNorm
from horovod.torch.wrapping import Wrapped

__all__ = ["register", "strategy_of"]

_OPS = {
    "mean": hvd.Average,
    "avg": hvd.Average,
    "sum": hvd.Sum,
    "min": hvd.Min,
    "max": hvd.Max,
    "product": hvd.Product,
    "band": hvd.BitAnd,
    "bor": hvd.BitOr,
    "bxor": hvd.BitXor,
}


class _Strategy:
    """Mixed in before ParallelStrategy of the Lightning in use."""

    strategy_name = "horovod"
    is_distributed = True  # a DistributedSampler is put into data loaders, and self.log(sync_dist=True) reduces

    # Of Lightning's classes.
    accelerator: Any
    precision_plugin: Any
    parallel_devices: Any
    lightning_module: Any
    model: Any
    optimizers: Any
    lr_scheduler_configs: Any
    _lightning_optimizers: Any
    _layer_sync: Any

    def __init__(
        self,
        compression: Any = hvd.Compression.none,
        op: int = hvd.Average,
        gradient_predivide_factor: float = 1.0,
        sparse_as_dense: bool = False,
        **of_lightning: Any,
    ) -> None:
        """The first four are those of hvd.DistributedOptimizer; the others, such as checkpoint_io, are Lightning's."""
        super().__init__(**of_lightning)
        self._options = {
            "compression": compression,
            "op": op,
            "gradient_predivide_factor": gradient_predivide_factor,
            "sparse_as_dense": sparse_as_dense,
        }
        self._nodes_asked = 1
        self._unwrap = contextlib.ExitStack()

    # The world.

    def set_world_ranks(self) -> None:
        """Called by Trainer(...): starts Horovod, unless the script has, and checks what the Trainer was told."""
        if not hvd.is_initialized():
            hvd.init()
        importlib.import_module("lightning_utilities.core.rank_zero").rank_zero_only.rank = hvd.rank()
        devices = len(self.parallel_devices or ())
        on_cpu = devices == 0 or self.parallel_devices[0].type == "cpu"
        if devices not in (1, hvd.local_size()) and (on_cpu or devices < hvd.local_size()):
            raise ValueError(
                f"the Trainer has {counted(devices, 'device')}, and this host {counted(hvd.local_size(), 'rank')}\n"
                "hint: leave `devices` out; the launcher says how many ranks there are"
            )
        if self._nodes_asked not in (1, hvd.cross_size()):
            raise ValueError(
                f"the Trainer has num_nodes={self._nodes_asked}, and the job {counted(hvd.cross_size(), 'host')}\n"
                "hint: leave `num_nodes` out; the launcher says where the ranks are"
            )

    @property
    def num_nodes(self) -> int:
        return hvd.cross_size() if hvd.is_initialized() else self._nodes_asked

    @num_nodes.setter
    def num_nodes(self, value: int) -> None:
        self._nodes_asked = value

    @property
    def global_rank(self) -> int:
        return int(hvd.rank())

    @property
    def local_rank(self) -> int:
        return hvd.local_rank()

    @property
    def node_rank(self) -> int:
        return hvd.cross_rank()

    @property
    def world_size(self) -> int:
        return int(hvd.size())

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    @property
    def root_device(self) -> torch.device:
        """The device of this rank; of a host's GPUs the one with the rank's number, unless it sees only one."""
        devices = self.parallel_devices
        if devices[0].type == "cuda" and len(devices) == 1 < torch.cuda.device_count():
            return torch.device("cuda", hvd.local_rank())  # devices=1 means one for each rank
        return devices[hvd.local_rank() if len(devices) > 1 and devices[0].type != "cpu" else 0]

    # Collectives.

    @property
    def _alone(self) -> bool:
        """True while this rank handles an exception."""
        trainer = getattr(self.lightning_module, "_trainer", None)
        return trainer is not None and trainer.state.status == "interrupted"

    def barrier(self, name: str | None = None) -> None:
        if not self._alone:
            hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return obj if self._alone else hvd.broadcast_object(obj, src, name="lightning.broadcast")

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean, sum, ... of all ranks' tensors; anything else is returned as it is. `group`: a hvd.ProcessSet."""
        if not isinstance(tensor, Tensor) or self._alone:
            return tensor
        # A name, or torch.distributed's ReduceOp.
        op = _OPS[str(reduce_op or "sum").rpartition(".")[2].lower()]
        return hvd.allreduce(tensor, op=op, process_set=_process_set(group))

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        return bool(self.reduce(torch.tensor(int(decision)), reduce_op="min" if all else "max"))

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """All ranks' tensors of one shape, as (ranks, *shape)."""
        if self._alone:
            return tensor
        process_set = _process_set(group)
        with contextlib.nullcontext() if sync_grads else torch.no_grad():
            gathered = hvd.allgather(tensor.unsqueeze(0), process_set=process_set)
        if gathered.requires_grad:
            # Its gradient is the average over the ranks; here it is the sum, as in Lightning's other strategies.
            gathered.register_hook(lambda gradient: gradient * process_set.size())
        return gathered

    # The model and its optimizers.

    def model_to_device(self) -> None:
        self.model.to(self.root_device)

    def setup(self, trainer: Any) -> None:
        """Called before fit, validate, test and predict. Replaces Lightning's own, which differs between versions."""
        is_fit = trainer.state.fn == "fit"
        self.accelerator.setup(trainer)
        if hasattr(self.precision_plugin, "convert_module"):
            self.model = self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        self._make_equal(is_fit)
        if is_fit:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        for optimizer in self.optimizers if is_fit else ():
            if optimizer.state:
                optimizer.load_state_dict(optimizer.state_dict())  # moves the state to the parameters' device

    def _make_equal(self, is_fit: bool) -> None:
        """Gives all ranks the parameters and buffers of rank 0, and layers and metrics that work over all ranks."""
        self._unwrap.close()
        if self._layer_sync is not None and is_fit:
            synced = SyncedBatchNorm() if type(self._layer_sync).__name__ == "TorchSyncBatchNorm" else self._layer_sync
            self.model = synced.apply(self.model)
            self._unwrap.callback(lambda: setattr(self, "model", synced.revert(self.model)))
        hvd.broadcast_parameters([*self.model.named_parameters(), *self.model.named_buffers()], root_rank=0)
        for module in self.model.modules():
            if hasattr(module, "dist_sync_fn") and hasattr(module, "distributed_available_fn"):
                _sync_metric(module)

    def setup_optimizers(self, trainer: Any) -> None:
        super().setup_optimizers(trainer)  # type: ignore[misc]
        self.optimizers = [self._distributed(optimizer) for optimizer in self.optimizers]

    def _distributed(self, optimizer: Any) -> Any:
        if isinstance(optimizer, Wrapped):
            return optimizer  # configure_optimizers did it
        parameters = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        named = [(name, each) for name, each in self.lightning_module.named_parameters() if each in parameters]
        names = named if len(named) == len(parameters) else None
        wrapped = hvd.DistributedOptimizer(optimizer, names, **self._options)
        self._unwrap.callback(wrapped._hvd_retire)  # the next fit makes others, perhaps of another Trainer
        for config in self.lr_scheduler_configs:
            if getattr(config.scheduler, "optimizer", None) is optimizer:
                _move(config.scheduler, optimizer, wrapped)
                self._unwrap.callback(setattr, config.scheduler, "optimizer", optimizer)
        return wrapped

    def setup_precision_plugin(self) -> None:
        super().setup_precision_plugin()  # type: ignore[misc]
        for wrapper, optimizer in zip(self._lightning_optimizers, self.optimizers, strict=True):
            # The method of the class would register the hooks for the wrapper of Lightning.
            wrapper.add_param_group = optimizer.add_param_group

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate."""
        with contextlib.ExitStack() as stack:
            for optimizer in self.optimizers:
                stack.enter_context(optimizer.no_sync())
            yield

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """The optimizer's step on averaged gradients: all are averaged before they are unscaled and clipped."""

        def reduced() -> Any:
            result = closure()
            optimizer.synchronize()
            if isinstance(optimizer, torch.optim.LBFGS):
                result = self.reduce(result)  # by it the ranks decide how far they go
            return result

        return super().optimizer_step(optimizer, reduced, model, **kwargs)  # type: ignore[misc]

    def teardown(self) -> None:
        self._unwrap.close()
        super().teardown()  # type: ignore[misc]


def _process_set(group: Any) -> hvd.ProcessSet:
    if group is None or group is torch.distributed.group.WORLD:
        return hvd.global_process_set
    if not isinstance(group, hvd.ProcessSet):
        raise ValueError(f"group is a {type(group).__name__}: expected a hvd.ProcessSet, or None for all ranks")
    return group


def _sync_metric(metric: Any) -> None:
    """Lets a metric of torchmetrics combine its state by Horovod, unless it has another way."""
    if metric.dist_sync_fn is None and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        metric.dist_sync_fn = _gather
        metric.distributed_available_fn = hvd.is_initialized


def _gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """By rank its tensor, of any shape."""
    process_set = _process_set(group)
    shapes = hvd.allgather_object(tuple(tensor.shape), process_set=process_set)
    flat = hvd.allgather(tensor.detach().reshape(-1), process_set=process_set)
    sizes = [functools.reduce(int.__mul__, shape, 1) for shape in shapes]
    return [part.reshape(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


def _move(scheduler: Any, optimizer: Any, wrapped: Any) -> None:
    """Gives a scheduler the wrapped optimizer; otherwise LearningRateMonitor finds one without a scheduler.

    torch's scheduler has put a `step` into the optimizer, and warns if it does not find it there.
    """
    scheduler.optimizer = wrapped
    reference = weakref.ref(wrapped)

    def step(*args: Any, **kwargs: Any) -> Any:
        itself: Any = reference()
        itself._opt_called = True
        return type(itself).step(itself, *args, **kwargs)

    vars(step).update(vars(vars(optimizer).get("step", step)))
    wrapped.step = step


class _OldAccelerator:
    """Accelerator("horovod") of Lightning 1, which says what to write."""

    def __init__(self) -> None:
        raise ValueError(
            'Trainer(accelerator="horovod") was for Lightning 1\nhint: write Trainer(strategy="horovod"); '
            'accelerator="cpu" or "gpu" overrides Lightning\'s choice'
        )

    @staticmethod
    def is_available() -> bool:
        return False


@functools.cache
def strategy_of(package: str) -> Any:
    """The class HorovodStrategy for a Lightning, by its import name."""
    parallel = importlib.import_module(f"{package}.strategies").ParallelStrategy
    names = {"__module__": "horovod.torch.lightning", "__doc__": "Lightning's Trainer on the ranks of Horovod."}
    return type("HorovodStrategy", (_Strategy, parallel), names)


def register(lightning: ModuleType) -> None:
    """Registers the strategy in an imported Lightning."""
    name, version = lightning.__name__, lightning.__version__
    if tuple(map(int, version.split(".")[:2])) < (2, 1):  # 2.0 reduces what is logged only with torch.distributed
        raise ImportError(
            f"horovod.torch.lightning needs Lightning 2.1 or newer, found {name} {version}\n"
            "hint: pip install 'lightning>=2.1'"
        )
    strategy = strategy_of(name)
    sys.modules[f"{name}.strategies"].StrategyRegistry.register(
        "horovod", strategy, description="Horovod's ranks", override=True
    )
    sys.modules[f"{name}.accelerators"].AcceleratorRegistry.register("horovod", _OldAccelerator, override=True)
