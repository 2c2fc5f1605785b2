# SPDX-License-Identifier: Apache-2.0
"""Horovod 0.28.1's importable names, with parameters and defaults, against ours; and that old import places only
re-export. horovod_surface.json has the facts: by module and name the parameters as Python writes them. "as in" and a
module is a list of names that are as in that one, which comes before."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import horovod
from horovod.common import exceptions, util
from horovod.core import missing


def read_surface() -> dict[str, dict[str, dict[str, Any]]]:
    surface: dict[str, dict[str, dict[str, Any]]] = {}
    for module, names in json.loads(Path(__file__).with_name("horovod_surface.json").read_text()).items():
        surface[module] = own = {}
        for name, entry in names.items():
            same = surface[name.removeprefix("as in ")] if name.startswith("as in ") else None
            own.update({name: entry} if same is None else {each: same[each] for each in entry})
    return surface


SURFACE = read_surface()
# Names that are to come. One that has come is to be taken out of here; then every module must have it.
PENDING: set[str] = set()
# Names of Horovod's that will not come, and why.
LEFT_OUT = dict.fromkeys(
    ("MPI_LIB", "MPI_MXNET_LIB_CTYPES", "dll_path"), "the compiled extension, which there is none of"
)
# Parameters that differ on purpose (docs/differences.md).
DIFFERENT = {"horovod.keras": ["horovod.keras.allreduce: average=None, expected True"]}
OLD_PLACES = [
    "horovod._keras",
    "horovod.common",
    "horovod.common.elastic",
    "horovod.common.exceptions",
    "horovod.common.process_sets",
    "horovod.runner",
    "horovod.runner.elastic",
    "horovod.runner.elastic.worker",
    "horovod.tensorflow.functions",
    "horovod.tensorflow.mpi_ops",
    "horovod.torch.elastic.sampler",
    "horovod.torch.elastic.state",
    "horovod.torch.functions",
    "horovod.torch.mpi_ops",
]
# What is in these is for old scripts alone.
OLD_PLACES_WITH_CODE = [
    "horovod._keras.elastic",
    "horovod.common.basics",
    "horovod.common.util",
    "horovod.runner.__main__",
    "horovod.runner.elastic.constants",
    "horovod.runner.elastic.discovery",
    "horovod.runner.elastic.driver",
    "horovod.runner.elastic.registration",
    "horovod.runner.elastic.rendezvous",
    "horovod.runner.elastic.settings",
    "horovod.runner.launch",
]


def load(module: str) -> Any:
    framework = module.split(".")[1].lstrip("_") if module.count(".") else ""
    if framework in ("torch", "tensorflow", "keras", "jax", "mxnet"):
        pytest.importorskip(framework, reason=f"not run: {framework} is not installed")
    return importlib.import_module(module)


def differences(seen: Any, parameters: str, module: str = "") -> list[str]:
    """What a call written for Horovod would meet: parameters that are missing, elsewhere, or have another default.
    `module` is in the package whose names stand in the defaults."""
    package = sys.modules.get(".".join(module.split(".")[:2]))
    known = {name: getattr(package, name, None) for name in ("Average", "Compression", "global_process_set")}
    expected = inspect.signature(eval(f"lambda {parameters}: None", known)).parameters
    ours = {name: item for name, item in inspect.signature(seen).parameters.items() if name != "self"}
    wrong = []
    for position, (name, item) in enumerate(expected.items()):
        if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD):
            continue  # what a wrapper hands on
        mine = ours.get(name)
        if mine is None:
            if not any(other.kind is other.VAR_KEYWORD for other in ours.values()):
                wrong.append(f"{name} is missing")
        elif list(ours).index(name) != position:
            wrong.append(f"{name} is number {list(ours).index(name)}, expected {position}")
        elif item.default is not item.empty and mine.default != item.default:
            wrong.append(f"{name}={mine.default!r}, expected {item.default!r}")
    if any(item.kind is item.VAR_POSITIONAL for item in expected.values()):
        return wrong
    wrong += [
        f"{name} has no default"
        for name, item in ours.items()
        if name not in expected and item.default is item.empty and item.kind in (item.KEYWORD_ONLY, 0, 1)
    ]
    return wrong


def compared(module: str, name: str, owner: Any, entry: dict[str, Any]) -> list[str]:
    if name in LEFT_OUT:
        return [f"{module}.{name} exists, but LEFT_OUT says that it does not"] if hasattr(owner, name) else []
    if f"{module}.{name}" in PENDING:
        return [f"{module}.{name} has come: take it out of PENDING"] if hasattr(owner, name) else []
    if not hasattr(owner, name):
        return [f"{module}.{name} is missing"]
    value = getattr(owner, name)
    wrong = []
    if "function" in entry and not isinstance(value, property):
        wrong += differences(value, entry["function"], module)
    elif "constant" in entry:
        wrong += [] if value == entry["constant"] else [f"is {value!r}, expected {entry['constant']!r}"]
    for attribute in entry.get("attributes", ()):
        wrong += [] if hasattr(value, attribute) else [f"has no attribute {attribute}"]
    found = [f"{module}.{name}: {text}" for text in wrong]
    for method, parameters in entry.get("class", {}).items():
        found += compared(f"{module}.{name}", method, value, {"function": parameters})
    return found


# For environments of their own: tests/frameworks/mxnet/test_mxnet_surface.py, tests/schedulers.
NEED_PYSPARK = ("torch", "keras", "lightning", "common.params", "common.estimator", "common.serialization")
ELSEWHERE = ("horovod.mxnet", "horovod.ray", *(f"horovod.spark.{name}" for name in NEED_PYSPARK))


@pytest.mark.parametrize("module", [module for module in SURFACE if not module.startswith(ELSEWHERE)])
def test_a_module_has_horovods_names_parameters_and_defaults(module: str) -> None:
    owner = load(module)
    assert len(SURFACE[module]) > 0
    wrong = [text for name, entry in SURFACE[module].items() for text in compared(module, name, owner, entry)]
    assert wrong == DIFFERENT.get(module, [])


def of_torch() -> Any:
    from horovod.torch.optimizer import _DistributedOptimizer

    return _DistributedOptimizer


def of_torch_with_adasum() -> Any:
    from horovod.torch.adasum_optimizer import AdasumOptimizer

    return type("DistributedAdasum", (AdasumOptimizer, importlib.import_module("torch").optim.SGD), {})


def of_tensorflow_1() -> Any:
    from horovod.tensorflow.optimizer import _DistributedV1Optimizer

    return _DistributedV1Optimizer


def a_tape() -> Any:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    return type(hvd.DistributedGradientTape(tf.GradientTape()))


def of_keras() -> Any:
    import keras

    from horovod.keras import DistributedOptimizer

    return type(DistributedOptimizer(keras.optimizers.SGD()))


@pytest.mark.parametrize(
    ("module", "function", "made", "without"),
    [
        ("horovod.torch", "DistributedOptimizer", of_torch, ()),
        ("horovod.torch", "DistributedOptimizer", of_torch_with_adasum, ()),
        ("horovod.tensorflow", "DistributedOptimizer", of_tensorflow_1, ()),
        ("horovod.tensorflow", "DistributedGradientTape", a_tape, ()),
        ("horovod.tensorflow", "PartialDistributedGradientTape", a_tape, ()),
        # Optimizers of Keras 3 compute no gradients.
        ("horovod.keras", "DistributedOptimizer", of_keras, ("compute_gradients", "get_gradients")),
        ("horovod.keras", "PartialDistributedOptimizer", of_keras, ("compute_gradients", "get_gradients")),
    ],
)
def test_what_is_wrapped_has_horovods_methods(module: str, function: str, made: Any, without: tuple[str, ...]) -> None:
    load(module)
    owner = made()
    methods = SURFACE[module][function]["returns"]
    wrong = [
        text
        for name, parameters in methods.items()
        if name not in without
        for text in compared(f"{module}.{function}", name, owner, {"function": parameters})
    ]
    assert wrong == []
    assert not any(hasattr(owner, name) for name in without)


def test_the_check_itself_sees_what_is_wrong() -> None:
    def seen(tensor: Any, name: Any = None, op: Any = 1, extra: Any = ...) -> None: ...

    assert differences(seen, "tensor, name=None") == []
    assert differences(seen, "tensor, name=None, average=None") == ["average is missing"]
    assert differences(seen, "tensor, op=1, name=None") == [
        "op is number 2, expected 1",
        "name is number 1, expected 2",
    ]
    assert differences(seen, "tensor, name=5") == ["name=None, expected 5"]
    assert differences(lambda tensor, more: None, "tensor") == ["more has no default"]
    assert differences(lambda tensor, more: None, "tensor, *args") == []


@pytest.mark.parametrize("module", OLD_PLACES)
def test_an_old_place_only_re_exports(module: str) -> None:
    parts = module.split(".")[1:]
    path = Path(horovod.__file__).parent.joinpath(*parts)
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    for node in tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_all = isinstance(node, (ast.Assign, ast.AugAssign)) and ast.unparse(node).startswith("__all__ ")
        is_watch = ast.unparse(node) == "watch(__name__)"  # its modules are attributes
        known = is_text or is_all or is_watch or isinstance(node, ast.ImportFrom)
        assert known, f"{module}:{node.lineno}: {ast.unparse(node)}"
    loaded = load(module)
    assert all(hasattr(loaded, name) for name in getattr(loaded, "__all__", ()))
    assert "re-exports only" in (loaded.__doc__ or "")


def test_every_old_place_is_in_that_test() -> None:
    root = Path(horovod.__file__).parent
    files = [path for folder in ("_keras", "common", "runner") for path in (root / folder).rglob("*.py")]
    files += [
        path
        for folder in ("torch", "tensorflow")
        for path in (root / folder).rglob("*.py")
        if "re-exports only" in path.read_text()
    ]
    names = [".".join(("horovod", *path.relative_to(root).with_suffix("").parts)) for path in files]
    assert sorted(name.removesuffix(".__init__") for name in names) == sorted(OLD_PLACES + OLD_PLACES_WITH_CODE)


# By package: modules that a script reaches as attributes of it, once Horovod has loaded it.
ATTRIBUTES = {
    "horovod": "runner.elastic.driver runner.launch common.basics common.elastic common.exceptions common.process_sets "
    "common.util data.data_loader_base core elastic.worker",
    "horovod.torch": "compression elastic.sampler elastic.state functions mpi_ops optimizer sync_batch_norm",
    "horovod.tensorflow": "compression elastic functions gradient_aggregation gradient_aggregation_eager mpi_ops "
    "sync_batch_norm util keras.callbacks keras.elastic data.compute_service",
    "horovod.keras": "callbacks elastic",
    "horovod.mxnet": "compression functions mpi_ops",
    "horovod.jax": "elastic ops",
}


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(name, marks=[pytest.mark.slow("imports it")] if "." in name else [])
        for name in ATTRIBUTES
        if name not in ELSEWHERE
    ],
)
def test_modules_are_attributes_of_their_package(package: str) -> None:
    """In a process of its own: another test may have imported them in this one."""
    load(package)
    names = " ".join(f"{package}.{name}" for name in ATTRIBUTES[package].split())
    code = (
        f"import sys, {package}, horovod\n"
        f"for name in {names!r}.split(): assert eval(name) is sys.modules[name], name\n"
        "assert callable(horovod.run) and not hasattr(horovod, 'nowhere')\n"
        f"assert not hasattr({package}, '__wrapped__') and not hasattr({package}, 'no_such_thing')\n"
    )
    if package == "horovod":
        code += "assert not {'torch', 'tensorflow', 'keras', 'jax', 'mxnet', 'pyspark', 'ray'} & set(sys.modules)\n"
        code += "assert callable(horovod.runner.run)\n"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_module_that_cannot_be_loaded_says_why_as_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "horovod.ray", raising=False)
    monkeypatch.delattr(horovod, "ray", raising=False)
    assert not hasattr(horovod, "ray")
    with pytest.raises(AttributeError, match="^module 'horovod' has no attribute 'ray', as it cannot be imported: hor"):
        _ = horovod.ray


def test_a_name_that_horovod_does_not_have_is_missing_as_any_other() -> None:
    assert not hasattr(load("horovod.spark"), "nowhere")
    with pytest.raises(ImportError, match="No module named 'horovod.nowhere'"):
        exec("import horovod.nowhere")


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "horovod.ray", raising=False)
    with pytest.raises(ImportError, match=r"^horovod.ray needs Ray\nhint: pip install 'ray\[train\]'$"):
        importlib.import_module("horovod.ray")


@pytest.mark.parametrize("package, name", [("horovod", "init"), ("horovod.core", "DistributedOptimizer")])
def test_without_a_framework_the_error_says_which_package_to_import(package: str, name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'\nhint: import a framework's package, .*torch"):
        getattr(load(package), name)


@pytest.mark.parametrize("package", [name for name in missing.ELSEWHERE if name != "horovod.mxnet"])
def test_a_name_of_another_package_says_where_it_is(package: str) -> None:
    owner = load(package)
    for name, place in missing.ELSEWHERE[package].items():
        assert not hasattr(owner, name)
        with pytest.raises(AttributeError, match=f"{package}' has no attribute '{name}'\nhint: use {place}$"):
            getattr(owner, name)
        for statement in (f"import {package}.{name}", f"from {package} import {name}"):
            with pytest.raises(ImportError, match=f"there is no {package}.{name}\nhint: use {place}$"):
                exec(statement)
        framework = place.split(".")[1]
        if framework == "core" or importlib.util.find_spec(framework):
            pkgutil.resolve_name(place)
    with pytest.raises(AttributeError, match="^[^\n]* has no attribute 'nowhere'$"):
        _ = owner.nowhere if package != "horovod" else load("horovod.core").nowhere


def test_before_init_the_queries_about_the_build_answer() -> None:
    """In a process of its own: another test may have called init in this one."""
    code = (
        "import sys; sys.modules['mpi4py'] = None  # as if it was not installed\n"
        "import horovod.common.basics as b, horovod.common.util as u; hvd = b.HorovodBasics('anything')\n"
        "assert not hvd.is_initialized()\n"
        "assert (hvd.gloo_built(), hvd.gloo_enabled(), u.gloo_built(verbose=True)) == (True, True, True)\n"
        "for name in ('mpi_built', 'mpi_enabled', 'ddl_built', 'ccl_built', 'rocm_built'):\n"
        "    assert getattr(hvd, name)() is False, name\n"
        "assert (hvd.nccl_built(), u.nccl_built()) == (0, 0) and isinstance(hvd.cuda_built(), bool)\n"
        "for name in ('mpi_threads_supported', 'is_homogeneous', 'rank', 'local_size', 'cross_size'):\n"
        "    try: getattr(hvd, name)()\n"
        "    except ValueError as error: assert 'has not been initialized' in str(error)\n"
        "    else: raise AssertionError(name)\n"
        "hvd.init(); assert (hvd.rank(), hvd.size(), hvd.mpi_threads_supported()) == (0, 1, False); hvd.shutdown()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gpu_available_asks_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="not run: torch is not installed")
    for is_there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=is_there: answer)
        assert util.gpu_available("torch") == util.gpu_available("horovod.torch") == is_there


def test_the_old_helpers_do_what_their_names_say() -> None:
    assert util.is_iterable([]) and not util.is_iterable(3)
    assert [util.num_rank_is_power_2(n) for n in (0, 1, 2, 3, 4, 6, 8)] == [False, True, True, False, True, False, True]
    assert util.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert util.is_version_greater_equal_than("2.13.0+cpu", "2.9") and util.is_version_greater_equal_than("1.0", "1")
    assert not util.is_version_greater_equal_than("2.9", "2.13")
    with pytest.raises(ValueError, match="'next'"):
        util.is_version_greater_equal_than("next", "1")
    before = dict(os.environ)
    with pytest.raises(KeyError, match="seen"), util.env(PATH=None, HOROVOD_OF_A_TEST="1"):
        assert os.environ["HOROVOD_OF_A_TEST"] == "1" and "PATH" not in os.environ
        raise KeyError("seen")
    assert dict(os.environ) == before
    assert not util.extension_available("caffe2") and not util.gpu_available("caffe2")
    with pytest.raises(ImportError, match=r"horovod\.caffe2 does not exist"):
        util.check_extension("horovod.caffe2", "HOROVOD_WITH_CAFFE2", __file__)
    with pytest.raises(exceptions.HorovodVersionMismatchError, match="was built for json 0"):
        util.check_installed_version("json", "0", ImportError("no symbol"))
    with pytest.warns(UserWarning, match="was built for json 0"):
        util.check_installed_version("json", "0")
    assert Path(util.get_extension_full_path(__file__, "mpi_lib_v2")).exists()
    assert util.get_average_backwards_compatibility_fun(None)(None, None) == 0
