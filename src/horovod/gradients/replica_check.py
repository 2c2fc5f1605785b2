# SPDX-License-Identifier: Apache-2.0
"""Compares the ranks' parameters, optimizer state and options (before a step: step 1 of a gradient's way).

A forgotten broadcast_parameters, a learning rate that one rank alone changes, or faulty memory makes training wrong
without an error. Checksums travel, by allreduces: a rank that has joined gives zeros, and does not count. If the first
message, of two numbers for each rank, shows no difference, there is no other.
"""

from __future__ import annotations

import collections
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from horovod.core import context as contexts
from horovod.core.arrays import collectives
from horovod.core.exceptions import InvalidRequestError, MismatchError
from horovod.core.objects import difference_of_keys
from horovod.core.process_sets import ProcessSet
from horovod.core.tracebacks import warn
from horovod.core.wording import counted, quoted, shown
from horovod.gradients.among_ranks import Steps, listed, of_all, texts_of_all

__all__ = [
    "Part",
    "ReplicaCheck",
    "check_replicas",
    "checksum",
    "chosen",
    "nested",
    "numbered",
    "of_array",
    "of_value",
    "variables_of",
]

_SAMPLE = 16384  # of a large parameter so many elements are looked at, unless all are
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CALL = "check_replicas"


class Part(NamedTuple):
    """Something that must be equal on all ranks, such as a tensor.

    `kind`: for example dtype and shape. `label`: what texts call it, if its name says little; it may differ.
    """

    name: str
    kind: str
    checksum: int
    label: str = ""


def of_value(name: str, value: Any) -> Part:
    """An object, equal to others with the same repr."""
    return Part(name, "", zlib.crc32(repr(value).encode(errors="surrogatepass")))


def of_array(name: str, array: np.ndarray[Any, Any], *, whole: bool = True, label: str = "") -> Part:
    """An array of any dtype, by its bytes: a NaN is equal to a NaN with the same bits, and 0.0 differs from -0.0."""
    kind = f"{array.dtype} {list(array.shape)}"
    if array.dtype.hasobject:  # strings
        return Part(name, kind, zlib.crc32(repr(array.tolist()).encode(errors="surrogatepass")), label)
    flat = np.ascontiguousarray(chosen(array.reshape(-1), whole=whole))
    return Part(name, kind, checksum(flat.view(np.uint8)), label)


def chosen(flat: Any, *, whole: bool) -> Any:
    """The elements that are compared, of an array or tensor of one dimension."""
    return flat if whole else flat[:: max(1, len(flat) // _SAMPLE)]


def checksum(data: np.ndarray[Any, Any]) -> int:
    """Return the CRC-32 of these bytes."""
    return zlib.crc32(data.data)


def numbered(
    variables: Iterable[Any], array_of: Callable[[Any], Any], *, what: str = "variable", whole: bool = True
) -> Iterator[Part]:
    """Variables that the ranks know by their places: their names may have counters that differ."""
    for number, variable in enumerate(variables):
        name = f"{what} {number}"
        label = getattr(variable, "path", None) or getattr(variable, "name", "")
        yield of_array(name, np.asarray(array_of(variable)), whole=whole, label=f"{name}: {label}" if label else "")


def variables_of(model: Any) -> Sequence[Any]:
    """The trainable variables of a model of TensorFlow or Keras, or the list that was given. Raises ValueError."""
    variables = getattr(model, "trainable_variables", model)
    if not isinstance(variables, (list, tuple)):
        raise InvalidRequestError(
            f"{_CALL}: expected a model or a list of variables, got {shown(model)}\nhint: give the model"
        )
    return variables


def nested(name: str, value: Any, of_tensor: Callable[[str, Any], Part | None]) -> Iterator[Part]:
    """Tensors, numbers and strings in dicts and sequences; other objects are left out."""
    part = of_tensor(name, value)
    if part is not None:
        yield part
    elif isinstance(value, _PLAIN):
        yield of_value(name, value)
    elif isinstance(value, (np.ndarray, np.generic)):
        yield of_array(name, np.asarray(value))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from nested(f"{key} of {name}", item, of_tensor)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from nested(f"{index} of {name}", item, of_tensor)


def check_replicas(describe: Callable[[], Iterable[Part]], process_set: ProcessSet) -> None:
    """Does the check for the frameworks' functions of this name. Raises MismatchError on all ranks that take part."""
    if not process_set.has_peers():
        return
    contexts.current().settle()
    try:
        parts = list(describe())
    except contexts.LOCAL_ERRORS as error:
        collectives.refuse("allreduce", f"{_CALL}.total", error, process_set)  # what the others wait in
    text, _ = _difference(parts, _CALL, process_set)
    if text:
        raise MismatchError(
            f"{_CALL}: {text}\nhint: broadcast parameters and optimizer state, or go back to a checkpoint; if no line "
            "of the script changes them on some ranks alone, suspect the memory or the GPU of the ranks that differ"
        )


def _difference(parts: Sequence[Part], name: str, process_set: ProcessSet) -> tuple[str, int]:
    """How the ranks differ, or "" if they do not; and the first rank that takes part. `name`: of the messages."""
    order = sorted(range(len(parts)), key=lambda place: parts[place].name)
    structure = [[parts[place].name, parts[place].kind] for place in order]
    sums = [parts[place].checksum for place in order]
    own = [zlib.crc32(json.dumps(value).encode()) + 1 for value in (structure, sums)]  # 0 is a rank that has joined
    totals = of_all(own, f"{name}.total", process_set)
    present = [int(place) for place in np.flatnonzero(totals[:, 0])]
    ranks = [(process_set.ranks or [])[place] for place in present]
    if len({tuple(row) for row in totals[present]}) < 2:
        return "", ranks[0]
    kinds = [int(total) for total in totals[present, 0]]
    if len(set(kinds)) > 1:
        structures = texts_of_all(json.dumps(structure), f"{name}.structure", process_set)
        usual = _most_common(kinds)
        odd = next(place for place, kind in enumerate(kinds) if kind != kinds[usual])
        found = [dict(json.loads(structures[present[place]])) for place in (usual, odd)]
        return f"the ranks have different parts: {_of_structures(ranks[usual], ranks[odd], *found)}", ranks[0]
    each = of_all(sums, f"{name}.each", process_set)[present]
    differs = np.flatnonzero((each != each[0]).any(axis=0))
    first = min(differs, key=lambda column: order[column])
    others = f", and {counted(len(differs) - 1, 'other')} after it" if len(differs) > 1 else ""
    part = parts[order[first]]
    unlike = _unlike(ranks, [int(value) for value in each[:, first]])
    return f"the ranks differ in {quoted(part.label or part.name)}{others}; {unlike}", ranks[0]


def _of_structures(usual: int, odd: int, expected: dict[str, str], got: dict[str, str]) -> str:
    lacking = difference_of_keys(usual, set(expected), odd, set(got))
    kinds = (
        f"{quoted(name)} is {kind} on rank {usual} and {got[name]} on rank {odd}"
        for name, kind in expected.items()
        if got.get(name) != kind
    )
    return lacking or next(kinds, f"rank {usual} and rank {odd} have a name several times")


def _unlike(ranks: list[int], values: list[int]) -> str:
    usual = _most_common(values)
    alike = values.count(values[usual])
    odd = [rank for rank, value in zip(ranks, values, strict=True) if value != values[usual]]
    if 2 * alike > len(ranks):
        return f"{listed(odd)} {'are' if len(odd) > 1 else 'is'} unlike the other {counted(alike, 'rank')}"
    return f"rank {ranks[usual]} is unlike {listed(odd)}"


def _most_common(values: Sequence[int]) -> int:
    """The place of the value that most ranks have; the first of several."""
    counts = collections.Counter(values)
    return max(range(len(values)), key=lambda place: (counts[values[place]], -place))


class ReplicaCheck:
    """The checks of one optimizer. `name`: different for optimizers whose steps may be at one time, equal on all ranks.

    `first`: the step, counted from 0, before which ranks have to be equal. After a new init, such as one of an elastic
    job, that step is checked again. So is the next step after a join, which leaves ranks with old weights. `is_whole`:
    whether all elements are to be compared, and the optimizer's state; valid once `is_due` has said so.
    """

    def __init__(self, name: str, process_set: ProcessSet, first: int = 0) -> None:
        self._first = first
        self._name = name
        self._process_set = process_set
        self._steps = Steps(process_set)
        self._step = 0
        self.is_whole = False

    def is_due(self) -> bool:
        """Counts a step. Whether compare() is to be called before it; the same on all ranks."""
        step = self._steps.begin()
        self._steps.end()
        if step is None or self._steps.settings.profile:  # with profile, the ranks train apart
            return False
        self._step = step + 1
        self.is_whole, every = self._steps.settings.replica_check_whole, self._steps.settings.replica_check_steps
        in_turn = every > 1 and step > 0 and step % every == 0
        is_joined = self._steps.is_after_join and step == 0
        return every > 0 and (step == self._first or is_joined or in_turn)

    def compare(self, parts: Iterable[Part]) -> None:
        """Raises MismatchError, or warns on one rank, if the ranks' parts differ."""
        text, speaker = _difference(list(parts), f"replica_check.{self._name}", self._process_set)
        if not text:
            return
        text = (
            f"before step {self._step} of {self._name}, {text}\n"
            "hint: broadcast parameters and optimizer state before training and after a join, and change options such "
            "as the learning rate on all ranks; HOROVOD_REPLICA_CHECK_STEPS=0 turns this check off"
        )
        if self._steps.settings.replica_check == "error":
            raise MismatchError(text)
        if contexts.rank() == speaker:
            warn(text)
