# SPDX-License-Identifier: Apache-2.0
"""KerasState and the callbacks of elastic training, on every backend of Keras 3 and with tf-keras, in worlds of real
ranks that end and begin again."""

from __future__ import annotations

import importlib
import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from support.elastic.elastic_session import same_ranks
from support.extent import later
from support.keras_worlds import Either, library
from support.world import World

from horovod.core import barrier
from horovod.core.exceptions import HorovodInternalError, MismatchError

keras = pytest.importorskip("keras", reason="not run: keras is not installed")
import horovod.keras as hvd
from horovod.keras.elastic_state import KerasState

STEPS, EPOCHS = 4, 3


class Ours:
    """The parts under test, for Keras 3 or for tf-keras."""

    def __init__(self, legacy: bool = False) -> None:
        self.keras, _, package = library("new" if legacy else "")
        self.callbacks = importlib.import_module(f"{package.__name__}.elastic_callbacks")
        self.KerasState: Any = importlib.import_module(f"{package.__name__}.elastic_state").KerasState

    def built(self, seed: int = 0, **options: Any) -> Any:
        """A model with buffers and random layers, and an optimizer whose slots are not made yet."""
        package = (
            importlib.import_module("horovod.tensorflow.keras") if options else hvd
        )  # Keras 3's own has no options
        layers = self.keras.layers
        self.keras.utils.set_random_seed(seed)
        model = self.keras.Sequential([layers.Dense(4), layers.BatchNormalization(), layers.Dense(1)])
        model.build((None, 6))
        optimizer = self.keras.optimizers.Adam(0.01 * (seed + 1))
        model.compile(optimizer=package.DistributedOptimizer(optimizer, **options), loss="mse")
        return model

    def numbers(self, model: Any) -> list[Any]:
        variables = [*model.variables, *model.optimizer.variables]
        return [np.asarray(variable.numpy()).tolist() for variable in [*variables, model.optimizer.learning_rate]]

    def counting(self, state: Any) -> list[Any]:
        return [
            self.callbacks.CommitStateCallback(state),
            self.callbacks.UpdateBatchStateCallback(state),
            self.callbacks.UpdateEpochStateCallback(state),
        ]


def same_batches(count: int = STEPS) -> tuple[Any, Any]:
    """Batches that are all alike, so that weights depend on their number only."""
    inputs = np.random.default_rng(hvd.rank()).standard_normal((8, 6)).astype(np.float32)
    return np.tile(inputs, (count, 1)), np.tile(inputs.sum(axis=1, keepdims=True), (count, 1))


def state_is_synced_saved_and_restored(legacy: bool) -> Any:
    ours = Ours(legacy)
    model = ours.built(hvd.rank())
    state = ours.KerasState(model, epoch=hvd.rank(), history=[hvd.rank()])
    assert state.model is model and state.optimizer is model.optimizer
    slots = len(ours.numbers(model))
    state.sync()
    synced = ours.numbers(model)
    facts = synced, state.epoch, list(state.history)
    inputs, targets = same_batches()
    model.fit(inputs, targets, batch_size=8, epochs=1, shuffle=False, verbose=0)
    state.epoch, state.history[0] = 9, 9
    assert ours.numbers(model) != synced and len(ours.numbers(model)) == slots, "all slots were there before"
    for _ in range(2):
        state.restore()
        assert (ours.numbers(model), state.epoch, state.history) == facts
        model.fit(inputs, targets, batch_size=8, epochs=1, shuffle=False, verbose=0)
    state.commit()
    trained = ours.numbers(model)
    state.restore()
    assert ours.numbers(model) == trained != synced
    with pytest.raises(ValueError, match=r"KerasState: the model is not built, .*\nhint: model\.build"):
        ours.KerasState(ours.keras.Sequential([ours.keras.layers.Dense(1)]))
    return facts


def test_a_sync_gives_all_ranks_rank_0s_state_with_slots_and_saves_it(either: Either) -> None:
    first, second = either.world.run(state_is_synced_saved_and_restored, either.legacy)
    assert first == second and first[1:] == (0, [0])


def test_seeds_of_random_layers_are_restored_but_stay_each_ranks_own(world: World) -> None:
    def run() -> tuple[Any, Any, Any]:
        keras.utils.set_random_seed(hvd.rank())
        model = keras.Sequential([keras.Input((50,)), keras.layers.Dense(50), keras.layers.GaussianNoise(0.5)])
        state = KerasState(model, None)
        state.sync()

        def noisy() -> Any:
            return np.asarray(keras.ops.convert_to_numpy(model(np.ones((1, 50), np.float32), training=True))).tolist()

        first, second = noisy(), noisy()
        state.restore()
        return first, second, noisy()

    outcomes = world.run(run)
    assert all(first == again != second for first, second, again in outcomes)
    assert outcomes[0][0] != outcomes[1][0]


def ranks_whose_models_differ() -> str:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2 + hvd.rank())])
    try:
        KerasState(model).sync()
    except MismatchError as error:
        return str(error)
    return ""


def test_ranks_whose_models_differ_are_told(tensorflow: World) -> None:
    assert all("rank 0 and rank 1 differ" in text for text in tensorflow.run(ranks_whose_models_differ))


def fit_in_all_orders(legacy: bool) -> list[Any]:
    """What is committed, in each order of the callbacks: (epoch, batch) in the state, and the weights' own count."""
    ours, seen = Ours(legacy), []
    model = ours.built()
    inputs, targets = same_batches()
    for order in itertools.permutations(range(3)):
        state = ours.KerasState(model, epoch=0, batch=0)
        committed: list[Any] = []
        before = int(model.optimizer.iterations.numpy())

        def commit(state: Any = state, committed: list[Any] = committed, before: int = before) -> None:
            state.save()
            committed.append((state.epoch, state.batch, int(model.optimizer.iterations.numpy()) - before))

        state.commit = commit
        callbacks = [ours.counting(state)[place] for place in order]
        model.fit(inputs, targets, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        seen.append(committed)
    return seen


def expected_commits() -> list[Any]:
    one = [(0, batch, batch) for batch in range(1, STEPS)] + [(1, 0, STEPS)]
    return one + [(epoch + 1, batch, done + STEPS) for epoch, batch, done in one]


def test_counters_and_weights_of_a_commit_are_of_one_moment_in_any_order_of_callbacks(either: Either) -> None:
    for seen in either.world.run(fit_in_all_orders, either.legacy):
        assert seen == [expected_commits()] * 6


def fit_with(events: dict[int, str], legacy: bool, options: dict[str, Any]) -> Any:
    """Trains EPOCHS x STEPS batches. `events`: by the number of the batch, counted over all worlds.

    Returns the numbers of the model, the counters, how each world was left, (epoch, batches) of each fit's epochs.
    """
    from horovod.elastic.worker.decorator import run

    ours = Ours(legacy)
    events = dict(events)
    model = ours.built(hvd.rank())
    state = ours.KerasState(model, epoch=0, batch=0)
    epochs: list[tuple[int, int]] = []

    class Events(ours.keras.callbacks.Callback):
        trained = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.batches = 0

        def on_batch_begin(self, batch: int, logs: Any = None) -> None:
            event = events.pop(Events.trained, "")
            if event == "loss" and hvd.rank() == 1:
                raise HorovodInternalError("as if another rank had died")
            if event == "update":
                assert session.heard is not None
                session.heard(Events.trained + 1, 2)

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            Events.trained += 1
            self.batches += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            epochs.append((state.epoch, self.batches))
            if options.get("lost_at_epoch_end") == state.epoch and "epoch end" not in events:
                events["epoch end"] = ""
                raise HorovodInternalError("while validating, say")

    @run
    def train(state: Any) -> None:
        inputs, targets = same_batches()
        callbacks = [Events(), *ours.counting(state)]
        callbacks[1].batches_per_commit = options.get("every", 1)
        model.fit(
            inputs,
            targets,
            batch_size=8,
            epochs=EPOCHS - state.epoch,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
            validation_data=(inputs, targets),
        )

    with same_ranks() as session:
        train(state)
        barrier()
        return ours.numbers(model), (state.epoch, state.batch), [entry[0] for entry in session.log], epochs


EVENTS = {2: "loss", 5: "update", 8: "loss"}


@pytest.mark.slow("trains with Keras")
@pytest.mark.parametrize("every", [later(1), 2])
def test_a_fit_that_is_interrupted_trains_as_many_batches_as_one_that_is_not(either: Either, every: int) -> None:
    plain = either.world.run(fit_with, {}, either.legacy, {})
    disturbed = either.world.run(fit_with, EVENTS, either.legacy, {"every": every})
    assert [outcome[2] for outcome in plain] == [[], []]
    assert [outcome[2] for outcome in disturbed] == [[False, True, False]] * 2
    assert all(outcome[1] == (EPOCHS, 0) for outcome in plain + disturbed)
    assert plain[0][0] == disturbed[0][0], "bit for bit"


@pytest.mark.slow("trains with Keras")
def test_a_loss_at_the_end_of_an_epoch_takes_back_to_its_last_commit_only(tensorflow: World) -> None:
    """The commit of an epoch's last batch is that of the epoch's end: so nothing is left to be resumed behind it."""
    plain = tensorflow.run(fit_with, {}, False, {})
    disturbed = tensorflow.run(fit_with, {}, False, {"lost_at_epoch_end": 1})
    assert [outcome[2] for outcome in disturbed] == [[False]] * 2
    assert disturbed[0][3] == [(0, STEPS), (1, STEPS), (1, 1), (2, STEPS)], "(epoch, batches)"
    assert plain[0][:2] == disturbed[0][:2]


def weights_after_passes(interrupted: bool) -> Any:
    """Of a step that sums two passes; if interrupted, another world began after a first one over other data."""
    ours = Ours()
    model = ours.built(backward_passes_per_step=2)
    state = ours.KerasState(model)
    inputs, targets = same_batches(1)
    if interrupted:
        model.train_on_batch(inputs * 3, targets * 5)
        state.restore()
        state.on_reset()
    for _ in range(2):
        model.train_on_batch(inputs, targets)
    return [np.asarray(weight.numpy()).tolist() for weight in model.trainable_weights], ours.numbers(model)[-2]


@pytest.mark.slow("trains with Keras")
def test_passes_of_a_step_that_was_interrupted_begin_anew(tensorflow: World) -> None:
    assert tensorflow.run(weights_after_passes, True) == tensorflow.run(weights_after_passes, False)


def fit_with_files(stopped_by_another: bool) -> Any:
    """A resumed fit over a dataset that is read by threads, and must be told when an epoch ends."""
    ours = Ours()
    model = ours.built()

    class Files(keras.utils.PyDataset):
        ends = 0

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return np.ones((2, 6), np.float32), np.ones((2, 1), np.float32)

        def on_epoch_end(self) -> None:
            self.ends += 1

    class Counting(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            epochs.append(0)

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            epochs[-1] += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if stopped_by_another:
                self.model.stop_training = True

    epochs: list[int] = []
    state = ours.KerasState(model, epoch=1, batch=3)
    callbacks = [Counting(), *ours.counting(state)]
    model.fit(Files(workers=2), epochs=3, verbose=0, callbacks=callbacks)
    return epochs, state.epoch, state.batch


def test_an_epoch_is_resumed_whatever_the_data_are(world: World) -> None:
    assert world.run(fit_with_files, False) == [([1, 4, 4], 4, 0)] * 2


def test_who_stops_the_training_in_a_resumed_epoch_is_heard(tensorflow: World) -> None:
    assert tensorflow.run(fit_with_files, True) == [([1], 2, 0)] * 2


def fit_without_a_known_length() -> Any:
    ours = Ours()
    model = ours.built()

    def batches() -> Any:
        for _ in range(4):
            yield np.ones((2, 6), np.float32), np.ones((2, 1), np.float32)

    state = ours.KerasState(model, epoch=0, batch=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(batches(), epochs=1, verbose=0, callbacks=ours.counting(state))
    return [str(one.message) for one in caught if "steps_per_epoch=..." in str(one.message)], state.epoch, state.batch


def test_data_of_unknown_length_are_trained_as_a_whole_with_a_warning(tensorflow: World) -> None:
    (first, *rest), (others, *also) = tensorflow.run(fit_without_a_known_length)
    assert len(first) == 1 and first[0].startswith("3 batches of this epoch are done, but the number")
    assert others == [] and rest == also == [1, 0]


@pytest.mark.parametrize(
    "module", ["horovod.keras.elastic", "horovod.tensorflow.elastic", "horovod.tensorflow.keras.elastic"]
)
def test_the_modules_have_horovods_names(tensorflow: World, module: str) -> None:
    def run(module: str) -> list[str]:
        package, _, name = module.rpartition(".")
        loaded = getattr(importlib.import_module(package), name)
        return sorted(name for name in loaded.__all__ if callable(getattr(loaded, name)))

    callbacks = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
    expected = (
        ["TensorFlowKerasState", "TensorFlowState", "run"] if module == "horovod.tensorflow.elastic" else callbacks
    )
    assert tensorflow.run(run, module) == [expected] * 2
