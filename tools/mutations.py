#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The test of the tests: breaks the code on purpose, one small change at a time, and sees whether the tests notice.

    python tools/mutations.py [--only NAME] [--share K/N] [--list]

Works in a scratch copy of the tracked files as they stand, which is removed at the end; builds the native library
there, and each mutation starts from that build, so that only what it breaks is compiled. The copy must pass the same
tests first, unbroken. A mutation is caught when each of its tests fails or runs into its time limit (it is ended then,
and the table says so). Exit code 1 when a test notices nothing, 2 when the table does not fit the code any more. Needs
cmake, ninja, what the Python tests need in this interpreter, and .venv-mxnet for those of MXNet.

One test at a time: any failure counts as caught, and side by side they would fail for each other's sake. Tests of jobs
compare what is in /dev/shm before and after, some wait for an amount of time, and a mutation may take all memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

UNBROKEN_LIMIT_S = 1800.0  # beside other work
# More, if the unbroken copy needs long for this test: a broken one that is only slow must not pass for one that hangs.
MUTATION_LIMIT_S = 90.0
TIMES_UNBROKEN = 4
BUILD_LIMIT_S = 900.0
LIBRARIES = ("horovod", "horovod_tensorflow")  # what the Python tests load


@dataclasses.dataclass(frozen=True)
class Test:
    """A native test program with the part of the names to run, or (with `native` false) pytest's arguments.

    `environment`: the virtual environment that pytest runs in, if not this interpreter's.
    """

    arguments: tuple[str, ...]
    native: bool
    environment: str = ""

    def __str__(self) -> str:
        return " ".join(self.arguments)


def native(program: str, names: str) -> Test:
    return Test((program, names), native=True)


def python(*arguments: str) -> Test:
    return Test(arguments, native=False)


def with_mxnet(*arguments: str) -> Test:
    return Test(arguments, native=False, environment=".venv-mxnet")


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    text: str  # stands in the file exactly once
    replacement: str
    why: str
    tests: tuple[Test, ...]
    also: tuple[tuple[str, str, str], ...] = ()  # further file, text and replacement, if one edit is not enough
    # Built with -fsanitize=this, and caught only if the output holds the report: such a test may pass otherwise.
    sanitizer: str = ""
    report: str = ""

    def edits(self) -> tuple[tuple[str, str, str], ...]:
        return ((self.file, self.text, self.replacement), *self.also)


MEMBERSHIP = "tests/unit/test_membership_model.py::test_every_order_of_events_ends_well"
KERAS_ELASTIC = "tests/frameworks/test_keras_elastic.py::"
CONTRACT = "tests/contract/test_results.py::test_results_are_those_of_the_reference"

MUTATIONS = (
    # kernels
    Mutation(
        "fold-order",
        "native/reduction/kernel_body.h",
        "F::widen(unit_of(j), next);",
        "F::widen(unit_of(n - j), next);",
        "the fold runs from the last rank to the first: right to a tolerance, other bits",
        (native("kernels_test", "every_type"),),
    ),
    Mutation(
        "narrow-kernels-everywhere",
        "native/reduction/kernels.cc",
        "static const WideSets found = wide_sets();",
        "static const WideSets found;",
        "the wide instruction sets are not found: the same bits, but later",
        (python("tests/unit/test_instruction_sets.py::test_the_library_finds_the_instruction_sets_that_linux_lists"),),
    ),
    Mutation(
        "halves-in-halves",
        "native/reduction/kernel_body.h",
        "next[v] * prescale : next[v]);\n    }\n",
        "next[v] * prescale : next[v]);\n    }\n"
        "    if (F::kElementBytes == 2) {\n"
        "      const U8 rounded = F::narrow(accumulator);\n"
        "      std::byte bytes[kUnitBytes];\n"
        "      std::memcpy(bytes, &rounded, sizeof bytes);\n"
        "      F::widen(bytes, accumulator);\n"
        "    }\n",
        "halves are rounded after every addition instead of once",
        (native("kernels_test", "every_type"),),
    ),
    # collectives
    Mutation(
        "two-shot-shares-swapped",
        "native/collectives/slot_allreduce.cc",
        "const std::byte* const result = ring_.result_slot(owner, chunk(k));",
        "const std::byte* const result = ring_.result_slot(peer(ring_.size() - step), chunk(k));",
        "with three members and more, two of the result's shares are swapped",
        (native("communicator_test", "random_operations_among_threads"),),
    ),
    Mutation(
        "tcp-input-left-out",
        "native/collectives/mesh_allreduce.cc",
        "fold_(reduction_, sources_, count, output);",
        "fold_(reduction_, {sources_.data(), sources_.size() - 1}, count, output);",
        "the last rank's input is not part of large sums over TCP",
        (native("communicator_test", "random_operations_among_threads"),),
    ),
    Mutation(
        "carriers-carry-the-same",
        "native/communicators/hierarchical/allreduce.cc",
        "part(k, inner_.inside.member())",
        "part(k, 0)",
        "all members of a host carry the first one's part of a large batch",
        (native("pieces_test", "large_allreduces"),),
    ),
    Mutation(
        "piece-finished-early",
        "native/collectives/mesh_allreduce.cc",
        "return folded_ > k && missing_results_[static_cast<size_t>(k)] == 0 &&",
        "return folded_ > k &&",
        "a piece counts as finished before the other hosts' results of it have come",
        (native("pieces_test", "parts_are_shared"),),
    ),
    Mutation(
        "result-left-behind",
        "native/collectives/mesh_allreduce.cc",
        "mesh_.have_left(link(k), results_end_[static_cast<size_t>(k)]);",
        "true;",
        "a piece counts as finished although this rank's result of it has not left: two hosts wait in a circle",
        (native("communicator_test", "mpi_carries"),),
    ),
    Mutation(
        "root-sends-all-again",
        "native/collectives/mesh_copy.cc",
        "if (chunks + size - 2 < chunks * steps) {",
        "if (false) {",
        "of a large broadcast over four hosts, the root's host sends everything twice",
        (python("tests/cluster/test_bytes.py"),),
    ),
    # engine
    Mutation(
        "join-overtakes",
        "native/engine/calls.cc",
        "if (later_.calls.empty()) {",
        "if (true) {",
        "a rank says that it has joined before it has told what it completed last",
        (native("engine_join_test", "never_overtakes"),),
    ),
    Mutation(
        "average-is-a-sum",
        "native/execution/execute.cc",
        "reduction.divisor = members;",
        "",
        "Average drops its 1/size",
        (native("engine_test", "average_of_integers"),),
    ),
    Mutation(
        "prescale-ignored",
        "native/execution/execute.cc",
        "descriptor.op, descriptor.prescale, descriptor.postscale",
        "descriptor.op, 1.0, descriptor.postscale",
        "prescale_factor has no effect",
        (python(CONTRACT, "-k", "core-2-shm-float32"),),
    ),
    Mutation(
        "broadcast-from-rank-0",
        "native/execution/execute.cc",
        "submission.prepared->descriptor.root_rank",
        "0",
        "broadcast takes the wrong root",
        (native("engine_test", "broadcast_takes_the_root"),),
    ),
    Mutation(
        "look-before-announce",
        "native/wakeup/bells.h",
        "        seen_ = door.bell(who_).load();\n        state_ = State::kAnnounce;",
        "        seen_ = door.bell(who_).load();\n        state_ = State::kLook;",
        "a sleeper looks for work before it has said that it sleeps: a wake-up is lost now and then",
        (native("doorbell_model_test", "no_interleaving"),),
        also=(
            (
                "native/wakeup/bells.h",
                "        }\n        state_ = State::kLook;",
                "        }\n        state_ = State::kSleep;",
            ),
            ("native/wakeup/bells.h", "State::kWithdraw : State::kSleep;", "State::kWithdraw : State::kAnnounce;"),
        ),
    ),
    Mutation(
        "read-bell-after-look",
        "native/wakeup/bells.h",
        "        seen_ = door.bell(who_).load();\n        state_ = State::kAnnounce;",
        "        seen_ = door.bell(who_).load();\n        state_ = State::kSleep;",
        "a sleeper reads its bell after it has looked for work: it sleeps through a bell in between",
        (native("doorbell_model_test", "no_interleaving"),),
        also=(
            ("native/wakeup/bells.h", "State::kWithdraw : State::kSleep;", "State::kWithdraw : State::kReadBell;"),
            ("native/wakeup/bells.h", "State state_ = State::kReadBell;", "State state_ = State::kAnnounce;"),
        ),
    ),
    Mutation(
        "leave-without-look",
        "native/wakeup/bells.h",
        "static_cast<uint32_t>(Sleeper::kEngine));\n        state_ = State::kLook;",
        "static_cast<uint32_t>(Sleeper::kEngine));\n        state_ = State::kDone;",
        "a caller that leaves does not look for what has come since",
        (native("doorbell_model_test", "no_interleaving"),),
    ),
    # negotiation
    Mutation(
        "dtype-unchecked",
        "native/negotiation/wire.cc",
        "if (a != nullptr && a->dtype != b->dtype)",
        "if (false && a->dtype != b->dtype)",
        "ranks that disagree on the dtype are not told so",
        (
            native("negotiation_test", "dtype_is_named"),
            python(
                "tests/contract/test_errors.py::test_every_rank_is_told_who_disagrees_about_what",
                "-k",
                "core and 2-shm-dtype",
            ),
        ),
    ),
    Mutation(
        "announce-before-reset",
        "native/negotiation/publisher.h",
        "override { board_.begin_next_round(id); }",
        "override { (void)id; }",
        "READY is announced before the count is fresh",
        (native("negotiation_model_test", "two_ranks_of_one_host"),),
        also=(
            (
                "native/negotiation/publisher.cc",
                '  fault_point("append");',
                '  board_.begin_next_round(entry.id);\n  fault_point("append");',
            ),
        ),
    ),
    Mutation(
        "recall-ignored",
        "native/negotiation/tally.h",
        "if ((before & (kRecalledBit | kRetiredBit)) != 0) return {Arrived",
        "if (false) return {Arrived",
        "a rank is counted though its entry was recalled",
        (native("negotiation_model_test", "two_ranks_of_one_host"),),
    ),
    Mutation(
        "recall-answered-too-early",
        "native/negotiation/spread.cc",
        "  HVD_RETURN_IF_ERROR(say_pending());\n  send_up(FrameKind::kRecalled",
        "  send_up(FrameKind::kRecalled",
        "a leader keeps to itself what is complete, although rank 0 asks for it",
        (native("leader_test", "an_answer_to_a_recall"),),
    ),
    Mutation(
        "local-ready-across-hosts",
        "native/engine/lifecycle.cc",
        "  if (map_.spans_hosts()) {",
        "  if (false) {",
        "with several hosts each of them runs what is complete on it, whatever the others do",
        (native("engine_test", "names_in_another_order"),),
    ),
    Mutation(
        "followers-are-not-woken",
        "native/negotiation/log_writer.cc",
        "    waker_.ring_others();",
        "",
        "a leader writes into the log, and the host's other ranks sleep on",
        (native("simulate_test", "a_thousand_ranks"),),
    ),
    Mutation(
        "requests-not-merged",
        "native/negotiation/gathering.cc",
        "const Name name{request.set, request.name};",
        "if (now_ns > 0) return {std::move(request)};\n  const Name name{request.set, request.name};",
        "each rank's whole request travels to rank 0",
        (native("simulate_test", "a_thousand_ranks"),),
    ),
    Mutation(
        "joined-ranks-are-awaited",
        "native/negotiation/gathering.cc",
        "return !joined_.contains(rank) && ",
        "return ",
        "a host's requests wait for ranks that have joined until their time is up",
        (native("leader_test", "has_joined"),),
    ),
    Mutation(
        "counted-ranks-are-awaited",
        "native/negotiation/gathering.cc",
        "id == id_of_name_.end() ? 0 : counted_of_others(id->second);",
        "0;",
        "a host's requests wait for ranks that took the fast way until their time is up",
        (native("leader_test", "a_recalled_count"),),
    ),
    Mutation(
        "hosts-are-not-asked-who-waits",
        "native/liveness/stall.cc",
        "leader_.facts().ask_who_waits();",
        "",
        "a stall report knows of other hosts only what is late or complete there",
        (native("leader_test", "a_stall_report_names"),),
    ),
    Mutation(
        "leader-speaks-at-once",
        "native/negotiation/leader.cc",
        "if (pending.urgent || pending.bytes",
        "if (true || pending.bytes",
        "a leader sends a message for each tensor that is complete",
        (native("simulate_test", "a_thousand_ranks"),),
    ),
    Mutation(
        "other-hosts-wait-unseen",
        "native/negotiation/waiting.cc",
        "waiting_there_[static_cast<size_t>(host)] = std::move(waiting);",
        "",
        "a stall report names ranks of other hosts as missing that wait themselves",
        (native("leader_test", "rank_0_learns_who_waits"),),
    ),
    Mutation(
        "recall-dropped",
        "native/negotiation/coordinator/coordinator.cc",
        "if (entry->answers_missing > 0) effects->recalls.push_back(entry->id);",
        "",
        "a changed descriptor does not take the entry back to the slow way",
        (native("negotiation_model_test", "two_ranks_of_one_host"), native("engine_test", "ranks_that_disagree")),
    ),
    # join and Adasum
    Mutation(
        "join-forgets-what-was-counted",
        "native/negotiation/member.cc",
        "if (entry.counted_in.has_value()) join.counted",
        "if (entry.counted_in.has_value() && !entry.id) join.counted",
        "a call in flight when its rank joins counts twice: READY comes before the others have submitted",
        (
            native("engine_join_test", "what_was_in_flight"),
            native("negotiation_model_test", "three_ranks_of_one_host_that_join"),
        ),
    ),
    Mutation(
        "join-forgotten-after-one-round",
        "native/negotiation/coordinator/coordinator.cc",
        "entry->recalled = sets_[entry->set].joined > 0;",
        "entry->recalled = false;",
        "the coordinator takes an entry that stays recalled for one that is not",
        (native("negotiation_model_test", "three_ranks_of_one_host_that_join"),),
    ),
    Mutation(
        "recall-of-a-complete-round-dropped",
        "native/negotiation/tally.h",
        "next_round(before) | (before & kRecalledBit)",
        "next_round(before)",
        "a join that meets a round just complete leaves the entry on the fast way, where no rank decides",
        (native("negotiation_model_test", "three_ranks_of_one_host_that_join"),),
    ),
    Mutation(
        "slow-for-ever-after-join",
        "native/negotiation/log_writer.cc",
        "if (board_.is_recalled(id)) board_.reset(id, false);",
        "if (board_.is_recalled(id)) board_.reset(id, true);",
        "every call takes the slow way once all ranks have joined",
        (native("engine_join_test", "the_fast_way_is_back"),),
    ),
    Mutation(
        "zeros-for-every-operation",
        "native/negotiation/coordinator/coordinator.cc",
        "|| descriptor.kind == HVD_ALLREDUCE) return",
        "|| descriptor.kind != HVD_BARRIER) return",
        "an allgather is announced though a rank has joined that can give it nothing",
        (native("engine_join_test", "operations_that_need_every_rank"),),
    ),
    Mutation(
        "adasum-of-zeros",
        "native/collectives/adasum.cc",
        "return norm == 0 ? 1 : 1 - product / (2 * norm);",
        "return 1 - product / (2 * norm);",
        "a vector of zeros makes the result NaN",
        (native("adasum_test", "scales_and_special_values"),),
    ),
    Mutation(
        "adasum-over-the-batch",
        "native/collectives/adasum.cc",
        "const Products& of = whole[next++];",
        "const Products& of = whole[next++ / tensors_.size() * tensors_.size()];",
        "all tensors of a batch are combined by the norms of its first",
        (native("adasum_test", "neither_fusion"), python("tests/contract/test_adasum.py", "-k", "core-2-shm-float32")),
    ),
    Mutation(
        "adasum-leaves-the-loss-scaled",
        "src/horovod/torch/adasum_optimizer.py",
        "gradient.div_(self.grad_scale)",
        "pass",
        "under a GradScaler each rank's step is taken with gradients that are too large",
        (python("tests/frameworks/test_torch_adasum.py", "-k", "overflow"),),
    ),
    Mutation(
        "adasum-steps-twice",
        "src/horovod/torch/adasum_optimizer.py",
        "start if first_error is not None else start + deltas[index]",
        "start if first_error is not None else parameter + deltas[index]",
        "the combined step is taken on top of the rank's own",
        (python("tests/frameworks/test_torch_adasum.py", "-k", "adasum_of_all_ranks"),),
    ),
    # Python core and PyTorch
    Mutation(
        "one-gradient-not-awaited",
        "src/horovod/gradients/reducer.py",
        "for index, slot in enumerate(in_flight):",
        "for index, slot in enumerate(in_flight[:-1]):",
        "the last gradient is used before it is reduced",
        (python("tests/unit/test_gradient_reducer.py"),),
    ),
    Mutation(
        "written-gradient-unseen",
        "src/horovod/gradients/reducer.py",
        "return (slot.passes == 0 and changes == 0) or bool(slot.spent)",
        "return slot.passes == 0 or bool(slot.spent)",
        "a gradient that is written into the old tensor is not reduced",
        (python("tests/frameworks/test_torch_gradients_in_place.py"),),
    ),
    Mutation(
        "second-arrival-unseen",
        "src/horovod/gradients/reducer.py",
        "        if slot.operation is not None:\n            raise AssertionError(",
        "        if False:\n            raise AssertionError(",
        "a gradient is added to while it is being reduced",
        (python("tests/frameworks/test_torch_nested_backward.py", "-k", "share"),),
    ),
    Mutation(
        "nested-backward-ends-the-round",
        "src/horovod/torch/optimizer.py",
        "        if node is None:\n",
        "        if True:\n",
        "each checkpointed block has a round of its own",
        (python("tests/frameworks/test_torch_nested_backward.py", "-k", "one_round"),),
    ),
    Mutation(
        "unregistered-set-is-alone",
        "src/horovod/core/process_sets.py",
        "return contexts.current().place(_registered_number(self))[0] > 1",
        "return (self.size() or 1) > 1",
        "ranks of a set that is not registered train by themselves",
        (python("tests/frameworks/test_torch_process_sets.py", "-k", "not_registered"),),
    ),
    Mutation(
        "loaded-set-is-new",
        "src/horovod/core/process_sets.py",
        "return next((known for known in _registered() if known.ranks == wanted.ranks), wanted)",
        "return wanted",
        "a set that was unpickled is not the registered one",
        (python("tests/contract/test_copied_process_sets.py"),),
    ),
    Mutation(
        "hook-starts-nothing",
        "src/horovod/torch/optimizer.py",
        "self._hvd_reducer.ready(self._hvd_numbers[parameter])",
        "pass",
        "gradients are reduced by step() only, after clipping has seen them",
        (python("tests/frameworks/test_torch_optimizer.py::test_gradients_are_reduced_when_backward_returns"),),
    ),
    Mutation(
        "silence-is-not-missed",
        "native/liveness/monitor.cc",
        "if (frozen_ms_ == 0 || silent_ns < frozen_ms_ * kMs ||",
        "if (frozen_ms_ == 0 || silent_ns < frozen_ms_ * kMs * 1000 ||",
        "a stopped process is waited for without end",
        (native("monitor_test", "a_stopped_process_is_named_as_stopped"),),
    ),
    Mutation(
        "a-debugger-is-a-loss",
        "native/liveness/monitor.cc",
        "if (state == 't') {",
        "if (state == 'u') {",
        "attaching a debugger ends the job",
        (native("monitor_test", "a_process_that_a_debugger_holds_is_no_loss"),),
    ),
    Mutation(
        "a-pause-is-silence",
        "native/liveness/monitor.cc",
        "for (BeatWatch& watch : beats_) watch.silence.restart(now);",
        "",
        "a job that Ctrl-Z suspended is ended by fg",
        (native("monitor_test", "a_pause"),),
    ),
    Mutation(
        "newcomer-starts-at-zero",
        "src/horovod/world/rendezvous_store.py",
        "self._generation += 1",
        "self._generation += 0",
        "a process that calls init again meets its own former generation",
        (python("tests/unit/test_rendezvous_store.py"),),
    ),
    Mutation(
        "generation-that-is-over-is-entered",
        "src/horovod/world/rendezvous_store.py",
        "if generation != self._generation:",
        "if generation > self._generation:",
        "a worker that is late enters the next world under the rank that it had in the last one",
        (python("tests/unit/test_rendezvous_store.py"),),
    ),
    Mutation(
        "versions-are-not-compared",
        "src/horovod/world/meeting.py",
        "for keyword, variable in _EQUAL_SETTINGS:",
        "for keyword, variable in _EQUAL_SETTINGS[:-1]:",
        "ranks with two versions of Horovod start together",
        (python("tests/unit/test_meeting.py"),),
    ),
    Mutation(
        "deaf-rank-is-waited-for",
        "src/horovod/world/data_links.py",
        "for peer in unwatched:",
        "for peer in unwatched[1:]:",
        "who waits for a data link never learns that the other rank has closed its port",
        (python("tests/processes/test_data_links.py", "-k", "neither"),),
    ),
    Mutation(
        "silent-agent-is-waited-for",
        "src/horovod/launcher/job/agents.py",
        "if limit_s and now - agent.heard_s >= limit_s]",
        "if limit_s and agent.done and now - agent.heard_s >= limit_s]",
        "a stopped agent leaves the launcher silent",
        (python("tests/processes/test_job_end.py", "-k", "stopped_agent"),),
    ),
    Mutation(
        "file-wins-over-flags",
        "src/horovod/launcher/cli.py",
        """            **self._file.settings,
            **{keyword: value for keyword, value in flags.items() if value is not None},
""",
        """            **{keyword: value for keyword, value in flags.items() if value is not None},
            **self._file.settings,
""",
        "a configuration file changes what a flag has said",
        (python("tests/unit/test_config_file.py"),),
    ),
    Mutation(
        "opposite-key-is-taken-as-it-stands",
        "src/horovod/launcher/options/config_file.py",
        "not parsed if opposite else parsed",
        "parsed",
        "`stall_check: {enabled: true}` in a configuration file turns the check off",
        (python("tests/unit/test_config_file.py"),),
    ),
    Mutation(
        "allocation-wins-over-hosts",
        "src/horovod/launcher/options/host_list.py",
        "    if hosts:\n        origin",
        "    if hosts and allocation is None:\n        origin",
        "-H is ignored inside a batch system's job",
        (python("tests/unit/test_allocations.py"),),
    ),
    Mutation(
        "zeros-of-node-numbers-are-lost",
        "src/horovod/launcher/allocations/slurm.py",
        'f"{number:0{len(match[1])}d}"',
        'f"{number}"',
        "Slurm's node[01-04] become node1 to node4, which do not exist",
        (python("tests/unit/test_allocations.py"),),
    ),
    Mutation(
        "launcher-ends-with-its-terminal",
        "src/horovod/launcher/job/supervision.py",
        "with contextlib.suppress(OSError):",
        "with contextlib.suppress(BrokenPipeError):",
        "ranks are killed without a word if horovodrun's terminal is closed",
        (python("tests/processes/test_terminal.py", "-k", "terminal_is_closed"),),
    ),
    Mutation(
        "agent-takes-modules-beside-the-package",
        "src/horovod/world/interpreter.py",
        "sys.path.append({root!r})",
        "sys.path.insert(0, {root!r})",
        "an obsolete copy of a standard module in site-packages keeps every job from starting",
        (python("tests/unit/test_placement_commands.py", "-k", "standard_library"),),
    ),
    Mutation(
        "step-with-the-allocations-variables",
        "src/horovod/launcher/placement/slurm.py",
        "return {name: environment[name] for name in _KEPT if name in environment}",
        "return dict(environment)",
        "the job's environment, and SLURM_NTASKS with it, stands in the environment of each step",
        (python("tests/unit/test_placement_commands.py"),),
    ),
    Mutation(
        "kubectl-without-input",
        "src/horovod/launcher/placement/rsh_agent.py",
        'else ["-i"]',
        "else []",
        "kubectl exec does not hand the orders to the agent",
        (python("tests/unit/test_placement_commands.py"),),
    ),
    Mutation(
        "more-ranks-than-room",
        "src/horovod/launcher/options/room.py",
        "ranks > lowest.ranks",
        "ranks < 0",
        "a job that the system does not allow starts processes until it fails",
        (python("tests/unit/test_room.py"),),
    ),
    Mutation(
        "list-for-a-process-set",
        "src/horovod/core/requests.py",
        "            return self.get(key)\n        except TypeError:\n",
        "            return self.get(key)\n        except KeyError:\n",
        "an argument that has no hash is not named",
        (python("tests/contract/test_arguments.py", "-k", "core-1-auto-allgather"),),
    ),
    Mutation(
        "optimizers-unlike",
        "src/horovod/torch/state.py",
        "    if differing:\n        rank, text",
        "    if len(differing) > 99:\n        rank, text",
        "an optimizer gets the state of another kind of optimizer",
        (python("tests/frameworks/test_torch_state.py", "-k", "like_the_roots"),),
    ),
    Mutation(
        "hosts-that-are-not-ready-are-used",
        "src/horovod/launcher/job/roll_call.py",
        "problems = {host: found for host, found in self._problems.items() if found}",
        "problems: dict[str, list[tuple[str, str]]] = {}",
        "ranks start although a host cannot hold its own",
        (python("tests/unit/test_roll_call.py"),),
    ),
    Mutation(
        "another-version-is-good-enough",
        "src/horovod/launcher/job/roll_call.py",
        "if version == __version__:",
        "if version:",
        "an agent of another version gets orders that it may not understand",
        (python("tests/unit/test_roll_call.py"),),
    ),
    Mutation(
        "address-of-one-host-for-all",
        "src/horovod/launcher/job/roll_call.py",
        "if not any(one in why for why",
        "if not all(one in why for why",
        "the ranks meet at an address that some hosts cannot reach",
        (python("tests/unit/test_roll_call.py"),),
    ),
    Mutation(
        "zombies-hide-their-children",
        "src/horovod/launcher/host/processes.py",
        "        if fields:\n            lives",
        "        if fields and fields[0] not in _DEAD:\n            lives",
        "a process whose parent is just ending is left behind",
        (python("tests/unit/test_processes.py"),),
    ),
    Mutation(
        "stopped-leader-is-lost",
        "native/liveness/monitor.cc",
        "(frozen_ms_ == 0 && host_answers(watch->link.fd()))",
        "(frozen_ms_ == 1 && host_answers(watch->link.fd()))",
        "a rank of another host that is stopped on purpose is lost although the user switched this off",
        (native("monitor_test", "a_silent_far_leader_is_waited_for"),),
    ),
    Mutation(
        "words-of-a-shell-are-events",
        "src/horovod/launcher/job/agent_link.py",
        "_, greeting, rest = (self._before_greeting + data).partition(GREETING)",
        "greeting, rest = GREETING, self._before_greeting + data",
        "what the user's shell prints on another host ends the job",
        (python("tests/processes/test_ssh.py", "-k", "shell"),),
    ),
    Mutation(
        "old-lines-are-last-words",
        "src/horovod/launcher/job/failure.py",
        "end_s - line.time_s <= _RECENT_S]",
        "end_s - line.time_s <= 1e9]",
        "a killed rank's old warnings stand beside the cause",
        (python("tests/unit/test_failure.py"),),
    ),
    Mutation(
        "init-waits-for-the-dead",
        "src/horovod/world/rendezvous_store.py",
        "for _, _, wait in self._deadlines:",
        "for _, _, wait in ():",
        "ranks in init wait for one that has ended",
        (python("tests/unit/test_rendezvous_store.py"),),
    ),
    Mutation(
        "any-proof-is-good",
        "src/horovod/world/channel.py",
        'if not hmac.compare_digest(proof, _proof(secret, b"client", purpose, nonces)):',
        'if not hmac.compare_digest(proof, proof or _proof(secret, b"client", purpose, nonces)):',
        "a server accepts any client that knows the protocol",
        (python("tests/unit/test_channel.py"),),
    ),
    # ranks that other launchers start
    Mutation(
        "anybodys-offer-is-taken",
        "src/horovod/world/starters/folder.py",
        "or status.st_mode & 0o077:",
        "or status.st_mode & 0o022:",
        "a file with the job's secret that other users can read is used",
        (python("tests/unit/test_offers.py"),),
    ),
    Mutation(
        "stale-offer-is-believed",
        "src/horovod/world/starters/job.py",
        "            if reached:\n                return Job(",
        "            if reached or unreached:\n                return Job(",
        "a file that an ended job has left sends the ranks nowhere",
        (python("tests/unit/test_offers.py", "-k", "stale"),),
    ),
    Mutation(
        "failed-start-leaves-at-once",
        "src/horovod/world/starters/job.py",
        "self.server.wait_for_starts(_HEARD_S)",
        "pass",
        "rank 0 ends before the others have heard why the start failed",
        (python("tests/processes/test_started_by_others.py", "-k", "fails_tells and without"),),
    ),
    Mutation(
        "any-lists-are-groups",
        "src/horovod/world/agreed_sets.py",
        "one.by_comm and (not",
        "(not",
        "ranks that list different process sets train on",
        (python("tests/unit/test_meeting.py"),),
    ),
    Mutation(
        "left-is-lost",
        "src/horovod/launcher/job/failure.py",
        'cause.kind == "RANK_LEFT"',
        'cause.kind == "NEVER"',
        "the last words call a rank lost that has shut down too early",
        (python("tests/unit/test_failure.py"),),
    ),
    Mutation(
        "one-name-is-one-machine",
        "src/horovod/world/topology.py",
        'ranks_of.setdefault((here["hostname"], here["machine"]), []).append(rank)',
        'ranks_of.setdefault((here["hostname"], whereabouts[0]["machine"]), []).append(rank)',
        "two machines of one name are taken for one",
        (python("tests/unit/test_places.py"),),
    ),
    Mutation(
        "first-network-is-everybodys",
        "src/horovod/world/meeting.py",
        'if all(one in other["reached"] for other in where)]',
        "if all(one for other in where)]",
        "ranks are to meet at an address that some of them do not reach",
        (python("tests/unit/test_places.py"),),
    ),
    Mutation(
        "ends-in-init-are-not-noticed",
        "src/horovod/world/rendezvous_server.py",
        "if self._notices_ends and not self._closing and connection.starting is not None:",
        "if self._closing and connection.starting is not None:",
        "without horovodrun, ranks in init wait for one that has ended",
        (python("tests/unit/test_places.py", "-k", "notices"),),
    ),
    Mutation(
        "a-started-rank-still-starts",
        "src/horovod/world/rendezvous_server.py",
        "            connection.starting = None",
        "            pass",
        "a rank that has ended in order is taken for one that failed in init",
        (python("tests/unit/test_places.py", "-k", "engines"),),
    ),
    Mutation(
        "child-keeps-the-rendezvous",
        "src/horovod/world/forks.py",
        "        close_in_forked_child(connection)\n",
        "",
        "a child of rank 0 hides its end from the others",
        (python("tests/processes/test_started_by_others.py", "-k", "child"),),
    ),
    Mutation(
        "srun-wins-over-mpirun",
        "src/horovod/world/starters/__init__.py",
        "STARTERS = (torchrun.recognise, open_mpi.recognise, hydra.recognise, slurm.recognise)",
        "STARTERS = (slurm.recognise, torchrun.recognise, open_mpi.recognise, hydra.recognise)",
        "a rank of mpirun in an allocation takes itself for a task of srun",
        (python("tests/unit/test_launchers.py"),),
    ),
    # data through MPI, and a connection that is silent
    Mutation(
        "mpi-aborts-at-once",
        "src/horovod/world/mpi.py",
        "time.sleep(_GRACE_S + _TURN_S * min(MPI.COMM_WORLD.rank, _TURNS))",
        "time.sleep(_GRACE_S)",
        "after a failure on several hosts the mpirun of Open MPI may never end",
        (python("tests/unit/test_mpi_end.py", "-k", "one_after_the_other"),),
    ),
    Mutation(
        "mpi-wait-without-sleep",
        "native/communicators/mpi/patience.cc",
        "const bool sleeps = begin_ns - awake_since_ns_ >= awake_ns_;",
        "const bool sleeps = false;",
        "who waits for MPI keeps a core for itself, and other processes' monitors may not run for seconds",
        (native("mpi_test", "leaves_the_core"),),
    ),
    Mutation(
        "mpi-no-sleep-while-data-moves",
        "native/communicators/mpi/patience.cc",
        "awake_since_ns_ = std::min(now_ns(), slept_ns_ + kMovingNs);",
        "awake_since_ns_ = now_ns();",
        "a long allreduce over MPI keeps a core for itself, and other processes' monitors may not run for seconds",
        (native("mpi_test", "data_that_moves"),),
    ),
    Mutation(
        "mpi-thread-beside-operations",
        "native/communicators/mpi/progress.cc",
        "if (busy_ > 0 || over_) continue;",
        "if (busy_ > 1 || over_) continue;",
        "two threads call MPI at a time while an operation runs",
        (native("mpi_test", "the_thread_calls_mpi"),),
    ),
    Mutation(
        "mpi-thread-looks-all-the-time",
        "native/communicators/mpi/progress.cc",
        "pause = std::min(kLast, 2 * pause);",
        "pause = std::min(kFirst, 2 * pause);",
        "the thread that calls MPI wakes ten thousand times a second, also while an operation runs",
        (native("mpi_test", "the_thread_calls_mpi"),),
    ),
    Mutation(
        "mpi-memory-freed-early",
        "native/communicators/mpi/mesh.cc",
        "  keep_memory();\n",
        "",
        "memory is freed into which MPI may still write after an interrupt",
        (native("kept_memory_test", "not_freed"),),
    ),
    Mutation(
        "mpi-buffer-on-the-stack",
        "native/collectives/mesh_copy.cc",
        "Exchanged<std::byte> sent(1), received(1);",
        "std::array<std::byte, 1> sent{}, received{};",
        "after an interrupt MPI may write a barrier's byte into a stack that others use now",
        (native("kept_memory_test", "not_freed"),),
    ),
    Mutation(
        "mpi-result-over-its-input",
        "native/communicators/mpi/mesh.cc",
        "if (is_being_sent(peer, message)) return {};",
        "",
        "a result may come into memory that MPI is still sending from",
        (native("communicator_test", "mpi_carries"),),
    ),
    Mutation(
        "mpi-parts-shifted",
        "native/communicators/mpi/mesh.cc",
        "        next += part.size();\n",
        "",
        "of a fused batch, all tensors get the values of the first one",
        (native("communicator_test", "mpi_carries"),),
    ),
    Mutation(
        "mpi-between-unused",
        "native/communicators/hierarchical/hierarchical.cc",
        "if (members.topology.is_flat()) return between(members, parts, out);",
        "if (members.topology.is_flat()) return make_by_auto(members, parts, out);",
        "the data of hosts with one rank each goes over TCP although MPI is asked for",
        (native("communicator_test", "mpi_carries"),),
    ),
    Mutation(
        "mpi-abort-that-comes-back",
        "src/horovod/world/mpi.py",
        "os._exit(1)  # MPICH comes back if it cannot reach mpirun",
        "pass",
        "a rank on a host that is cut off waits in MPI_Finalize for ever",
        (python("tests/unit/test_mpi_end.py"),),
    ),
    Mutation(
        "silent-links-unchecked",
        "native/transport/tcp/mesh.cc",
        "if (!ready) HVD_RETURN_IF_ERROR(check_links());",
        "",
        "two hosts that do not hear each other wait for ever, if rank 0 hears both",
        (native("communicator_failure_test", "machine_is_silent"),),
    ),
    Mutation(
        "links-lost-too-early",
        "native/transport/tcp/mesh.cc",
        "last->silent_ms < std::max({limit_ms, kAskMs, kRoundTrips * last->round_trip_ms})",
        "last->silent_ms < 300",
        "a pause in which a peer sends nothing counts as the loss of its host",
        (native("communicator_failure_test", "machine_is_silent"),),
    ),
    Mutation(
        "all-peers-at-once",
        "native/transport/tcp/mesh.h",
        "return !leaves_machine_ || piece.turn < first_turn_ + kTurnsAtOnce;",
        "return !leaves_machine_ || piece.turn >= first_turn_;",
        "every host sends to all others at once, so a slow link is not kept busy",
        (native("mesh_test", "two_peers_are_sent_to"),),
    ),
    Mutation(
        "turns-on-one-machine",
        "native/transport/tcp/mesh.cc",
        "return address_in(here) != address_in(there);",
        "return true;",
        "ranks of one machine that use TCP wait for each other's turns",
        (native("mesh_test", "on_one_machine_all_peers"),),
    ),
    Mutation(
        "sockets-hold-megabytes",
        "native/transport/tcp/mesh.cc",
        "if (size_ > 2) setsockopt",
        "if (size_ < 2) setsockopt",
        "a turn is over before the network has carried it",
        (native("mesh_test", "holds_little"),),
    ),
    # scattering and process sets
    Mutation(
        "section-of-another",
        "native/collectives/slot_scatter.cc",
        "const std::byte* const section = ring.input_slot(m, chunk - 1) + ring.member() * section_bytes;",
        "const std::byte* const section = ring.input_slot(m, chunk - 1) + m * section_bytes;",
        "a member folds what the others meant for themselves",
        (native("communicator_test", "random_operations_among_threads"),),
    ),
    Mutation(
        "remainder-to-the-last",
        "native/negotiation/wire.h",
        "rows / members + (member < rows % members ? 1 : 0);",
        "rows / members + (members - 1 - member < rows % members ? 1 : 0);",
        "reducescatter gives the uneven rows to the last ranks",
        (native("engine_test", "reducescatter"),),
    ),
    Mutation(
        "sets-count-all-ranks-here",
        "native/negotiation/log_writer.cc",
        "set->second.members);",
        "static_cast<uint32_t>(map_.ranks_here.size()));",
        "a set's tally waits for ranks that are not its members",
        (
            native("engine_sets_test", "every_operation_works_over_a_set"),
            native("sets_model_test", "a_set_without_the_leader"),
        ),
    ),
    Mutation(
        "foreign-leader-sleeps",
        "native/negotiation/log_writer.cc",
        "return set == sets_.end() || !set->second.has_leader;",
        "return set == sets_.end();",
        "members are not woken by a leader that takes no part",
        (native("engine_sets_test", "what_nobody_waits_for"),),
    ),
    Mutation(
        "definitions-outlive-their-set",
        "native/negotiation/coordinator/coordinator.cc",
        "    const uint32_t id = entries_[index].id;\n",
        "    continue;\n    const uint32_t id = entries_[index].id;\n",
        "a set that comes back with a number finds the former one's definitions",
        (native("engine_sets_test", "sets_come_and_go"),),
    ),
    # names that come and go, what is seen of a run
    Mutation(
        "retires-in-flight",
        "native/negotiation/log_writer.cc",
        "if (board_.in_flight_since_ms(rank, id) != 0) return false;",
        "",
        "a name goes although a rank has arrived whose READY is still to come",
        (native("negotiation_model_test", "two_ranks_whose"),),
    ),
    Mutation(
        "number-back-unread",
        "native/negotiation/log_writer.cc",
        "!retired_.empty() && board_.all_have_read(retired_.front().end)",
        "!retired_here_.empty()",
        "a number comes back before all ranks have read that its name is gone",
        (native("negotiation_model_test", "two_ranks_whose"),),
    ),
    Mutation(
        "number-reused-at-once",
        "native/negotiation/coordinator/ids.cc",
        "  expect_answers(&ids_[id], Id::State::kRetired, nullptr);\n",
        "  ids_[id].state = Id::State::kFree;\n  free_ids_.push_back(id);\n",
        "a number means another name before all ranks have read that the first is gone",
        (native("negotiation_model_test", "two_ranks_whose"),),
    ),
    Mutation(
        "retired-forgets-nothing",
        "native/negotiation/member.cc",
        "  forget_if_idle(std::exchange(slot_of_id_[id], kNoSlot));",
        "  slot_of_id_[id] = kNoSlot;",
        "each rank keeps every name it has ever heard of",
        (python("tests/processes/test_names.py", "-k", "leaves_nothing_in_memory"),),
    ),
    Mutation(
        "stall-without-stacks",
        "native/liveness/stacks.cc",
        "telling_calls(*stack);",
        'telling_calls("");',
        "a stall report does not say where the missing ranks stand",
        (python("tests/processes/test_stall.py", "-k", "where_each_missing_rank_stands and shm"),),
    ),
    Mutation(
        "timeline-appends",
        "native/timeline/timeline.cc",
        "  const off_t end = end_of_events(fd_);\n  if (end < 0) {",
        "  const off_t end = lseek(fd_, 0, SEEK_END);\n  if (end < 0) {",
        "events stand behind the bracket that closes the timeline",
        (python("tests/processes/test_timeline.py", "-k", "phases_of_every_tensor and shm"),),
    ),
    # hostile bytes
    Mutation(
        "rows-unchecked",
        "native/execution/execute.cc",
        "return rows >= 0 && !__builtin_mul_overflow(rows, row_bytes, bytes) &&",
        "return !__builtin_mul_overflow(rows, row_bytes, bytes) &&",
        "a rank may give fewer than no rows",
        (native("hostile_test", "rows_that_no_memory_holds"),),
    ),
    Mutation(
        "abort-means-well",
        "native/negotiation/frames.cc",
        "code < HVD_INVALID_ARGUMENT || code > HVD_INTERNAL",
        "code > HVD_INTERNAL",
        "a cause that says all is well is taken, and ends nothing",
        (native("hostile_test", "rank_0_names_a_leader"),),
    ),
    Mutation(
        "anybody-may-leave-for-anybody",
        "native/negotiation/leader.cc",
        "if (!parse_leave(payload, world_size, &rank) || !lives_there(rank)) return false;",
        "if (!parse_leave(payload, world_size, &rank)) return false;",
        "a host may say that another host's rank leaves",
        (native("hostile_test", "rank_0_names_a_leader"),),
    ),
    Mutation(
        "refusal-not-told",
        "native/engine/share_memory.cc",
        "for (const auto* link : sharing.links) send_refusal(link->fd, cause);",
        "",
        "a rank that cannot share memory tells no peer why",
        (python("tests/processes/test_limits.py", "-k", "named_by_every_rank"),),
    ),
    Mutation(
        "one-proof-for-all-purposes",
        "src/horovod/world/channel.py",
        'b"\\0".join([b"horovod handshake 1", role, purpose.encode(), nonces])',
        'b"\\0".join([b"horovod handshake 1", role, nonces])',
        "a proof for one kind of connection is one for another",
        (python("tests/unit/test_channel.py", "-k", "purpose"),),
    ),
    # the PyTorch interface
    Mutation(
        "compiled-without-order",
        "src/horovod/torch/compiled.py",
        "        _register_effectful_op(operator, _EffectType.ORDERED)\n",
        "        pass\n",
        "a compiler may drop, fold and reorder collectives",
        (python("tests/frameworks/test_torch_compile.py", "-k", "no_pass"),),
    ),
    Mutation(
        "compiled-rows-of-a-neighbour",
        "src/horovod/torch/compiled.py",
        "tensor.shape[0] + members - 1 - index",
        "tensor.shape[0] + index",
        "a compiled reducescatter expects the rows of the rank at the other end",
        (python("tests/frameworks/test_torch_compile.py", "-k", "values_and_gradients"),),
    ),
    Mutation(
        "surface-default",
        "src/horovod/torch/optimizer.py",
        "    op: int = Average,\n",
        "    op: int = 1,\n",
        "a default is not Horovod's",
        (python("tests/unit/test_surface.py", "-k", "defaults"),),
    ),
    Mutation(
        "accumulation-averages-once-more",
        "src/horovod/gradients/reducer.py",
        "if slot.passes == self.passes_per_step:",
        "if slot.passes == 1:",
        "accumulated gradients are reduced at the first pass",
        (python("tests/frameworks/test_torch_optimizer_matrix.py", "-k", "options_of_training"),),
    ),
    Mutation(
        "every-step-is-new",
        "native/negotiation/member.cc",
        "entry->definition == call->descriptor;",
        "entry->definition == call->descriptor && call->sync;",
        "asynchronous operations ask the coordinator at every step",
        (python("tests/contract/test_steady_state.py", "-k", "fourth"),),
    ),
    Mutation(
        "rows-of-the-first-tensor",
        "native/execution/execute.cc",
        "= all[member * length + i];",
        "= all[member * length];",
        "all tensors of a grouped allgather are taken to have the first one's rows",
        (python("tests/contract/test_random_operations.py"),),
    ),
    # what only a long run, a large group or another day would show
    Mutation(
        "memory-of-foreign-sets-lost",
        "native/engine/process_sets.cc",
        "  if (shares_memory) set->area_offset = offset;  // the leader gives it back, member or not\n",
        "",
        "the memory of a set without rank 0 is never given back",
        (native("engine_sets_test", "the_memory_of_a_set_comes_back"),),
    ),
    Mutation(
        "stalled-since-the-first-step",
        "native/negotiation/coordinator/coordinator.cc",
        "  if (!entry->is_open()) entry->since = now;\n  last_event_ = now;\n  entry->host_ready[host] = true;\n",
        "  last_event_ = now;\n  entry->host_ready[host] = true;\n",
        "over TCP a tensor seen half way is said to have stalled since it was defined, and a stall limit ends the job",
        (native("negotiation_test", "since_its_own_first_arrival"),),
    ),
    Mutation(
        "adasum-products-of-another-piece",
        "native/collectives/adasum.cc",
        "Products& sum = whole[start + i % length];",
        "Products& sum = whole[i % length];",
        "of a batch whose norms take more than one exchange, tensors are combined by those of others",
        (native("adasum_test", "each_tensor_of_a_large_group"),),
    ),
    Mutation(
        "nohup-is-overruled",
        "src/horovod/launcher/job/terminal.py",
        "if before[number] is not signal.SIG_IGN:  # nohup",
        "if before[number] is not None:",
        "a job started under nohup ends with its terminal",
        (python("tests/processes/test_job_end.py", "-k", "nohup"),),
    ),
    Mutation(
        "late-answer-taken-for-the-next",
        "src/horovod/world/rendezvous.py",
        "take = self._takers.pop(number, None)",
        "take = self._takers.pop(min(self._takers, default=number), None)",
        "after a request that ran out of time each call gets the answer to the one before",
        (python("tests/unit/test_channel.py", "-k", "late or at_a_time"),),
    ),
    Mutation(
        "compiled-gather-uncopied",
        "src/horovod/torch/compiled.py",
        "return [result.clone() for result in _results[int(ticket)]]",
        "return list(_results[int(ticket)])",
        "what a compiled function computes in place of a gathered tensor is what backward gathers again",
        (python("tests/frameworks/test_torch_compile.py", "-k", "may_be_taken_again"),),
    ),
    Mutation(
        "tensorflow-splits-of-an-earlier-call",
        "native/shims/collective.cc",
        "  add(request.splits, sizeof(int64_t) * request.nsplits);\n",
        "",
        "an alltoall in a tf.function keeps the splits of its second call",
        (python("tests/frameworks/test_tensorflow_ops.py", "-k", "changing_splits"),),
    ),
    # TensorFlow and Keras
    Mutation(
        "tensorflow-gradients-in-program-order",
        "native/shims/tensorflow/ops.cc",
        "          !is_gradient,\n",
        "          true,\n",
        "gradients are stateful nodes: the one that is written first holds up all others",
        (
            python("tests/frameworks/test_tensorflow_traps.py", "-k", "stateful_but_for_gradients"),
            python("tests/frameworks/test_tensorflow_traps.py", "-k", "while_backward_still_runs"),
        ),
    ),
    Mutation(
        "end-heard-by-kernels-alone",
        "src/horovod/core/context.py",
        "code = self.library.hvd_end_seen(self.pointer, ctypes.addressof(status))",
        "code = native.OK",
        "the launcher does not learn which rank left the others waiting in TensorFlow's kernels",
        (python("tests/frameworks/test_tensorflow_failures.py", "-k", "graph"),),
    ),
    Mutation(
        "tensorflow-direct-calls-pruned",
        "native/shims/tensorflow/ops.cc",
        "if (signature.is_stateful) tf.OpDefinitionBuilderSetIsStateful(builder, true);",
        "",
        "TensorFlow prunes, merges and folds operations that were called directly",
        (python("tests/frameworks/test_tensorflow_traps.py", "-k", "neither_pruned_nor_folded"),),
    ),
    Mutation(
        "tensorflow-entry-of-a-removed-set",
        "native/shims/collective.cc",
        "if (code != HVD_INVALID_ARGUMENT || request.process_set == 0) return code;",
        "return code;",
        "an operation that TensorFlow has cached stays with a process set that was removed",
        (python("tests/frameworks/test_tensorflow_contract.py", "-k", "what_sets_refuse"),),
    ),
    Mutation(
        "tensorflow-calls-at-one-time",
        "src/horovod/tensorflow/shim.py",
        "    keep_order()\n",
        "",
        "two functions whose nodes have one name run at the same time",
        (python("tests/frameworks/test_tensorflow_order.py", "-k", "put_in_order or gradients-False"),),
    ),
    Mutation(
        "tensorflow-entries-kept",
        "native/shims/generation.h",
        "if (number == of) hvd_release_entry(context, entry);",
        "",
        "a node whose shapes change keeps every request that it has prepared",
        (python("tests/frameworks/test_tensorflow_traps.py", "-k", "leave_nothing"),),
    ),
    Mutation(
        "tensorflow-tape-popped-twice",
        "src/horovod/tensorflow/tape.py",
        "    other.__dict__ = tape.__dict__\n",
        "    other.__dict__ = dict(tape.__dict__)\n",
        "a tape that is wrapped while it records ends twice",
        (python("tests/frameworks/test_tensorflow_tape.py", "-k", "while_it_records"),),
    ),
    Mutation(
        "tensorflow-local-gradients-of-the-first-world",
        "src/horovod/tensorflow/gradient_list.py",
        "if tf.executing_eagerly() or not contexts.may_grow():",
        "if True:",
        "a job that has grown divides local gradients by the size that it had when it was traced",
        (python("tests/frameworks/test_tensorflow_elastic.py", "-k", "what_one_worker"),),
    ),
    Mutation(
        "xla-gradients-not-reduced",
        "src/horovod/tensorflow/autograd.py",
        "lambda gradients: _compiled(gradients, _name_of_gradient(name), attributes)",
        "lambda gradients: list(gradients)",
        "the gradient of an allreduce in a function that XLA compiles is this rank's own",
        (python("tests/frameworks/test_tensorflow_xla.py", "-k", "differentiated and inside"),),
    ),
    Mutation(
        "tensorflow-gradients-folded",
        "src/horovod/tensorflow/gradient_list.py",
        "anchor = ops.rank_op()",
        "anchor = tf.constant(0)",
        "a gradient that is a constant is reduced once, when the function is made",
        (python("tests/frameworks/test_tensorflow_traps.py", "-k", "gradient_of_a_constant"),),
    ),
    Mutation(
        "tensorflow-sparse-average-is-a-sum",
        "src/horovod/tensorflow/ops.py",
        "values = divide(values,",
        "values = (lambda left, right: left)(values,",
        "the average of sparse gradients is not divided",
        (
            python("tests/frameworks/test_tensorflow_ops.py", "-k", "sparse_tensors"),
            python("tests/frameworks/test_keras.py", "-k", "training_with_embeddings and tensorflow-Adagrad"),
        ),
    ),
    Mutation(
        "keras-starts-apart",
        "src/horovod/keras/callback_parts.py",
        '"BroadcastGlobalVariablesCallback.built")):\n            self._hvd_broadcast()',
        '"BroadcastGlobalVariablesCallback.built")):\n            self._hvd_done = True',
        "the ranks start from different weights",
        (python("tests/frameworks/test_keras.py", "-k", "training_equals_one_process and tensorflow-SGD"),),
    ),
    Mutation(
        "keras-scaled-loss-alone",
        "src/horovod/keras/distributed.py",
        "reduced = self._hvd_gradients(list(grads), self._trainable_variables)",
        "reduced = list(grads)",
        "with JAX and a scaled loss every rank trains alone",
        (python("tests/frameworks/test_keras.py", "-k", "mixed_precision and jax-mixed_float16"),),
    ),
    Mutation(
        "jax-calls-unordered",
        "src/horovod/jax/compiled.py",
        "order = [before[-1].results[-1]] if before else []",
        "order = []",
        "XLA may start the calls of a compiled function in any order",
        (python("tests/frameworks/test_jax_compiled.py", "-k", "take_values_of_the_one_before"),),
    ),
    Mutation(
        "jax-gradients-of-a-loop-unordered",
        "src/horovod/jax/ops.py",
        "ordered = has_tokens and not is_outermost(tensors)",
        "ordered = False",
        "the gradients of a loop have no order among what is around it",
        (python("tests/frameworks/test_jax_compiled.py", "-k", "has_no_effect"),),
    ),
    Mutation(
        "jax-traced-alone-unordered",
        "src/horovod/jax/traces.py",
        "return _ordered_forms[function] or function",
        "return function",
        "two calls of one inner function may take each other's place",
        (python("tests/frameworks/test_jax_compiled.py", "-k", "traced_alone"),),
    ),
    Mutation(
        "jax-wrong-call-tells-the-wrong-operation",
        "src/horovod/jax/traces.py",
        "    if first is not None:\n",
        "    if False:\n",
        "the peers wait in the first operation of a function whose second is wrong on one rank",
        (python("tests/frameworks/test_jax_compiled.py", "-k", "on_one_rank_fails"),),
    ),
    Mutation(
        "jax-gradients-with-effect",
        "src/horovod/jax/ops.py",
        "ordered = has_tokens and not is_outermost(tensors)",
        "ordered = True",
        "JAX starts every training step slowly",
        (python("tests/frameworks/test_jax_compiled.py", "-k", "has_no_effect"),),
    ),
    Mutation(
        "jax-leaves-early",
        "src/horovod/jax/shim.py",
        "    if context is None:\n        finish()\n",
        "",
        "a rank that is done leaves while its last step is under way",
        (python("tests/frameworks/test_jax_failures.py", "-k", "under_way"),),
    ),
    Mutation(
        "jax-joins-early",
        "src/horovod/jax/joining.py",
        "    finish()\n    return joining.join(device)",
        "    return joining.join(device)",
        "a rank joins while its last steps are under way, which fail, and the others get zeros for them",
        (python("tests/frameworks/test_jax_ops.py", "-k", "joins_once"),),
    ),
    Mutation(
        "jax-failures-stay",
        "src/horovod/jax/shim.py",
        "tokens.current_tokens.pop(effect, None) if",
        "tokens.current_tokens.get(effect, None) if",
        "after an operation has failed, all functions with operations fail that are compiled or called later",
        (
            python("tests/frameworks/test_jax_failures.py", "-k", "leaves_later_functions"),
            python("tests/frameworks/test_jax_elastic.py", "-k", "survives_losses"),
        ),
    ),
    Mutation(
        "jax-zeros-of-gradients",
        "src/horovod/jax/optimizer.py",
        "return tree_util.tree_map(jnp.zeros_like, updates), waiting",
        "return tree_util.tree_map(jnp.zeros_like, gradients), waiting",
        "passes that wait give updates of the gradients' dtype, which the optimizer's may not have",
        (python("tests/frameworks/test_jax_training.py", "-k", "whatever_the_dtypes"),),
    ),
    Mutation(
        "jax-rows-unchecked",
        "native/shims/jax/collective.cc",
        "if (result.rows[member] == expected) continue;",
        "continue;",
        "a compiled allgather takes other ranks' rows for its own shape",
        (python("tests/frameworks/test_jax_compiled.py", "-k", "shapes_that_need_all_ranks"),),
    ),
    Mutation(
        "jax-another-world",
        "native/shims/jax/requests.cc",
        "if (members == collective.members && member == collective.member) return true;",
        "return true;",
        "what was compiled for another number of ranks runs",
        (python("tests/frameworks/test_jax_ops.py", "-k", "another_number"),),
    ),
    Mutation(
        "jax-gradients-without-keys",
        "src/horovod/jax/compiled.py",
        "            **(_of_tree(keys) if keys and op != Adasum else {}),  # Adasum is of tensors that have elements\n",
        "",
        "ranks whose pytrees have other keys average tensors of other parameters, if their shapes are equal",
        (python("tests/frameworks/test_jax_compiled.py", "-k", "keys_of_the_pytree"),),
    ),
    Mutation(
        "jax-gradient-of-broadcast",
        "src/horovod/jax/autograd.py",
        "jnp.where(is_root, whole, jnp.zeros_like(whole))",
        "whole",
        "ranks that are not the root have a gradient of a broadcast",
        (python("tests/frameworks/test_jax_derivatives.py", "-k", "broadcast"),),
    ),
    Mutation(
        "jax-sync-batch-norm-one-row",
        "src/horovod/jax/sync_batch_norm.py",
        ".at[process_set.rank()].set(row)",
        ".at[0].set(row)",
        "the ranks' statistics are added into one row",
        (python("tests/frameworks/test_jax_training.py", "-k", "normalized"),),
    ),
    Mutation(
        "keras-momentum-stays",
        "src/horovod/keras/callback_parts.py",
        "velocity.assign(velocity * (after / before))",
        "velocity.assign(velocity * 1.0)",
        "momentum_correction does nothing when the learning rate changes",
        (python("tests/frameworks/test_keras.py", "-k", "momentum_follows and tensorflow-True"),),
    ),
    Mutation(
        "sync-batch-norm-variance-is-a-constant",
        "src/horovod/tensorflow/sync_batch_norm.py",
        "return weights * of_mean + 2 * distance * of_variance",
        "return weights * of_mean",
        "the input's gradient lacks what comes through the variance",
        (python("tests/frameworks/test_tensorflow_sync_batch_norm.py", "-k", "one_batch and keras3 and eager"),),
    ),
    Mutation(
        "adasum-start-shares-its-memory",
        "src/horovod/tensorflow/adasum_optimizer.py",
        'use_resource=hasattr(variable, "handle")',
        "use_resource=True",
        "in a graph of TensorFlow 1 a start moves with its variable, so that no variable moves",
        (python("tests/frameworks/test_tensorflow_adasum.py", "-k", "combine_their_steps and False-1"),),
    ),
    Mutation(
        "data-service-counts-any-worker",
        "src/horovod/tensorflow/data/registry.py",
        "first = dispatcher_id * self.workers_per_dispatcher",
        "first = 0",
        "a dispatcher is taken for complete when another one's workers are there",
        (python("tests/frameworks/test_tensorflow_data_service.py", "-k", "who_is_missing"),),
    ),
    Mutation(
        "data-service-open-to-strangers",
        "src/horovod/world/tunnel.py",
        "_attach(one, _SO_ATTACH_FILTER, [*program, drop])",
        "_attach(one, _SO_ATTACH_FILTER, [keep])",
        "any client of a server of TensorFlow's data service runs a dataset as the job's user",
        (python("tests/unit/test_tunnel.py", "-k", "has_the_key"),),
    ),
    Mutation(
        "gradients-of-gradients-detached",
        "src/horovod/torch/autograd.py",
        "return torch.is_grad_enabled() and any(gradient.requires_grad for gradient in gradients)",
        "return False",
        "a penalty on gradients does not reach through an operation",
        (python("tests/frameworks/test_torch_gradients.py", "-k", "penalty"),),
    ),
    Mutation(
        "lists-in-a-loop-without-order",
        "src/horovod/tensorflow/gradient_list.py",
        "        if tf.inside_function():",
        "        if False:",
        "the rounds of a loop meet under one name at once",
        (python("tests/frameworks/test_tensorflow_training.py", "-k", "in_a_loop"),),
    ),
    Mutation(
        "interrupted-call-lets-go-of-its-memory",
        "src/horovod/core/operations.py",
        "            register(Operation(context, handle, None, keep, None))",
        "            pass",
        "the engine writes into memory that an interrupted call has given back",
        (python("tests/processes/test_lost_ranks.py", "-k", "interrupt_of_a_blocking_call"),),
    ),
    Mutation(
        "tensorflow-gradients-of-one-node-share-a-name",
        "src/horovod/tensorflow/autograd.py",
        "return among_concurrent(unscoped_name(tf.compat.v1.get_default_graph(), name))",
        "return name",
        "two gradients of one node that run at the same time have one name",
        (python("tests/frameworks/test_tensorflow_ops.py", "-k", "taken_apart"),),
    ),
    Mutation(
        "generation-kept-by-its-error",
        "src/horovod/core/operations.py",
        "                raise context.failure_of(code, native.scratch.status)",
        "                error = context.failure_of(code, native.scratch.status)\n                raise error",
        "an error's traceback holds the generation's segments until the next garbage collection",
        (python("tests/processes/test_cycles.py", "-k", "nothing_behind and shm-mismatch"),),
    ),
    Mutation(
        "gpu-result-awaited-on-the-stream-of-the-call",
        "src/horovod/core/gpus.py",
        "        stream = self.waiting = self.gpu.current_stream()",
        "        stream = self.waiting = self.stream",
        "what is waited for on one stream of a GPU is used on another one that does not wait",
        (python("tests/frameworks/test_torch_gpu_training.py", "-k", "may_differ"),),
    ),
    Mutation(
        "gpu-tensors-dropped-while-another-stream-waits",
        "src/horovod/core/gpus.py",
        "        if self.waiting == self.stream:",
        "        if self.waiting is not None:",
        "memory of a GPU goes back to the stream that called, which does not wait for the end of the call",
        (python("tests/frameworks/test_torch_gpu_training.py", "-k", "may_differ"),),
    ),
    Mutation(
        "gpu-memory-used-on-a-stream-that-its-allocator-does-not-know",
        "src/horovod/torch/gpus.py",
        "        if self.gpu.current_stream() != self.staged_on:",
        "        if False:",
        "a result that is used on another stream is given to the next tensor before that use",
        (python("tests/frameworks/test_torch_gpu_training.py", "-k", "may_differ"),),
    ),
    Mutation(
        "gpu-call-says-another-stream-than-the-current-one",
        "src/horovod/core/gpus.py",
        "        handle.gpu, handle.stream = gpu, gpu.current_stream()",
        "        handle.gpu, handle.stream = gpu, 0",
        "an operation does not wait until the stream has computed its tensors",
        (python("tests/frameworks/test_torch_gpu_training.py", "-k", "may_differ"),),
    ),
    Mutation(
        "xla-orders-reductions-as-it-likes",
        "src/horovod/tensorflow/xla.py",
        "            [*tensors, *before],\n",
        "            list(tensors),\n",
        "ranks that XLA has given another order wait for each other for ever",
        (python("tests/frameworks/test_keras_jit.py", "-k", "one_order"),),
    ),
    Mutation(
        "keras-jit-stays-on-in-a-loaded-model",
        "src/horovod/keras/state.py",
        '        switch_off_jit(model, keras.backend.backend() if own is keras else "tensorflow")\n',
        "",
        "a loaded model is compiled by XLA, which cannot hold the reductions",
        (python("tests/frameworks/test_keras_jit.py", "-k", "loaded"),),
    ),
    Mutation(
        "gpu-failure-of-the-last-call-not-told",
        "src/horovod/core/context.py",
        "        was_told = self.was_told\n        self.end_seen()  # so",
        "        self.end_seen()\n        was_told = self.was_told  # so",
        "what has failed on a GPU after its call had returned is forgotten at the end",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "last_operation"),),
    ),
    Mutation(
        "gpu-others-not-waited-for-at-the-end",
        "src/horovod/core/context.py",
        "            if self.uses_gpus and (code :=",
        "            if False and (code :=",
        "a rank that ends its script takes its GPU out of operations that the others' GPUs have not finished",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "ends_its_script"),),
    ),
    Mutation(
        "gpu-failed-result-used-and-all-is-well",
        "native/platform/exit_code.cc",
        "    if (!has_failed) return;",
        "    return;",
        "a script that has used what a GPU failed to compute ends with exit code 0",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "failed_result"),),
    ),
    Mutation(
        "gpu-result-awaited-on-the-default-stream",
        "src/horovod/core/gpus.py",
        "        stream = self.waiting = self.gpu.current_stream()",
        "        stream = self.waiting = 0",
        "a GPU's default stream waits for the end of a call, and not the stream that uses its result",
        (python("tests/frameworks/test_torch_gpu_training.py", "-k", "may_differ"),),
    ),
    Mutation(
        "gpu-moment-of-a-call-before-its-result-is-allocated",
        "native/engine/submit.cc",
        "  return prepared.device->record(stream, &(*out)->ready);",
        "  static cuda::Event sooner;\n"
        "  cuda::Event now;\n"
        "  HVD_RETURN_IF_ERROR(prepared.device->record(stream, &now));\n"
        "  if (!sooner) HVD_RETURN_IF_ERROR(prepared.device->record(stream, &sooner));\n"
        "  (*out)->ready = std::exchange(sooner, std::move(now));\n"
        "  return {};",
        "a call on a GPU waits for what its stream had done at the call before",
        (python("tests/frameworks/test_torch_gpu_training.py", "-k", "last_use_of_its_memory"),),
    ),
    Mutation(
        "gpu-latest-moment-of-any-stream",
        "native/gpu/device_batch.cc",
        "    const cuda::Event*& latest = ready[there.stream];",
        "    const cuda::Event*& latest = ready[nullptr];",
        "of a batch whose tensors come from several streams of a GPU, one stream is waited for",
        (native("device_batches_test", "several_streams"),),
    ),
    Mutation(
        "gpu-end-recorded-before-the-work",
        "native/gpu/enqueued.cc",
        "  HVD_RETURN_IF_ERROR(closed_.run(execution_, {carrier_.communicator.get(), allocate}));\n",
        "",
        "a framework's stream waits for a moment before NCCL's work, which is enqueued behind it",
        (native("device_batches_test", "an_allreduce_waits"),),
        also=(
            (
                "native/gpu/enqueued.cc",
                "carrier_.communicator, tensors));\n  }\n  return {};",
                "carrier_.communicator, tensors));\n  }\n"
                "  return closed_.run(execution_, {carrier_.communicator.get(), allocate});",
            ),
        ),
    ),
    Mutation(
        "gpu-end-of-the-last-stream-alone",
        "native/gpu/device_batch.cc",
        "    if (earlier->stream != stream) HVD_RETURN_IF_ERROR(device.wait(stream, earlier->done));\n",
        "",
        "a call whose batches ran on several streams has ended when the last one has",
        (native("device_streams_test", "all_its_streams"),),
    ),
    Mutation(
        "gpu-commit-of-what-was-aborted",
        "src/horovod/elastic/state/state.py",
        "        contexts.current().settle()\n",
        "        pass\n",
        "a commit saves a step whose reduction NCCL has aborted",
        (python("tests/frameworks/test_torch_gpu_elastic.py", "-k", "left_behind"),),
    ),
    Mutation(
        "gpu-lost-and-used-again",
        "src/horovod/elastic/worker/wrapper.py",
        "error.failed_rank == rank:",
        "False:",
        "a worker whose GPU has failed goes on in the next world",
        (python("tests/frameworks/test_torch_gpu_elastic.py", "-k", "has_failed"),),
    ),
    Mutation(
        "gpu-staging-memory-lent-while-it-is-in-use",
        "native/device/device.cc",
        "      if (!idle) {",
        "      if (false) {",
        "pinned memory goes to another stream while a copy from it has not begun",
        (native("device_test", "once_the_first_is_done"),),
    ),
    Mutation(
        "gpu-shares-reduced-before-they-are-copied",
        "native/communicators/device_levels.cc",
        "  HVD_RETURN_IF_ERROR(await(copied));\n",
        "",
        "on two levels, hosts reduce what the memory held before",
        (native("device_levels_test", "values_of_one_on_one"),),
    ),
    Mutation(
        "gpu-levels-across-the-wrong-members",
        "native/communicators/device_levels.cc",
        "    grouped.groups = places_of(members);",
        "    grouped.groups = {};",
        "on two levels of NCCL, the shares of all members are added, and not those of one place",
        (native("device_levels_test", "values_of_one_on_one"),),
    ),
    Mutation(
        "gpu-communicator-of-the-generation-before",
        "native/gpu/device_runner.cc",
        "  if (!in_levels) return row.join(*members.communicator, parts, out);\n",
        "  static std::shared_ptr<DeviceCommunicator> first;\n"
        "  Status joined;\n"
        "  if (first == nullptr) joined = row.join(*members.communicator, parts, &first);\n"
        "  *out = first;\n"
        "  if (!in_levels) return joined;\n",
        "a generation reduces by the NCCL communicator of one that has ended",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "next_generation"),),
    ),
    Mutation(
        "gpus-looked-at-without-work",
        "native/gpu/launched_calls.cc",
        "if (!suspended && count_.load",
        "if (!suspended && !waited_for && count_.load",
        "a job without GPUs wakes every 50 us for their sake while a caller waits",
        (native("device_batches_test", "without_work_on_gpus"),),
    ),
    Mutation(
        "tensorflow-gpu-inputs-not-waited-for",
        "native/shims/collective.cc",
        "request.flags, request.user, stream, handle,",
        "request.flags, request.user, nullptr, handle,",
        "on a GPU, TensorFlow's tensors are reduced before they have been computed",
        (python("tests/frameworks/test_tensorflow_gpu.py", "-k", "still_computes and best"),),
    ),
    Mutation(
        "tensorflow-xla-inputs-not-waited-for",
        "native/shims/tensorflow/xla.cc",
        "plan->entries.submit(&generation, request, buffers.stream, handle, status)",
        "plan->entries.submit(&generation, request, nullptr, handle, status)",
        "on a GPU, what XLA has compiled for TensorFlow reduces tensors before they have been computed",
        (python("tests/frameworks/test_tensorflow_xla_gpu.py", "-k", "does_not_wait"),),
    ),
    Mutation(
        "tensorflow-xla-waits-for-the-gpu",
        "native/shims/tensorflow/xla.cc",
        "buffers.on_gpu ? hvd_wait_on_stream",
        "false ? hvd_wait_on_stream",
        "on a GPU, XLA's thread waits for the end of each operation",
        (python("tests/frameworks/test_tensorflow_xla_gpu.py", "-k", "does_not_wait"),),
    ),
    Mutation(
        "tensorflow-xla-failures-not-waited-for",
        "src/horovod/tensorflow/shim.py",
        "        context.uses_gpus = context.uses_gpus or gpus.eigen_device() is not None\n",
        "",
        "a commit saves what an operation on a GPU has left behind that failed after its launch",
        (python("tests/frameworks/test_tensorflow_xla_gpu.py", "-k", "raised_by_a_commit"),),
    ),
    Mutation(
        "gpu-of-empty-tensors-guessed",
        "native/shims/collective.cc",
        "  return hvd_device_of_stream(context, stream, device, status);",
        "  *device = 0;\n  return HVD_OK;",
        "a rank whose first tensors on a GPU are empty uses another rank's GPU, and the job ends",
        (
            python("tests/frameworks/test_tensorflow_gpu.py", "-k", "begin_with_empty"),
            python("tests/frameworks/test_jax_gpu.py", "-k", "begin_with_empty"),
        ),
    ),
    Mutation(
        "gpu-of-one-rank-that-fails-alone",
        "native/shims/collective.cc",
        "  if (!is_of_this_rank(status.code)) return;",
        "  if (status.code != HVD_INVALID_ARGUMENT && status.code != HVD_UNAVAILABLE) return;",
        "the other ranks wait for a rank whose GPU could not begin with the call",
        (
            python("tests/frameworks/test_tensorflow_gpu.py", "-k", "told_to_the_other"),
            python("tests/frameworks/test_jax_gpu.py", "-k", "told_to_the_other"),
        ),
    ),
    Mutation(
        "tensorflow-result-without-memory-is-not-told",
        "native/shims/tensorflow/kernel.cc",
        "    shims::refuse(invocation->engine, collective.name, collective.process_set, tf.Message(status.get()));\n",
        "",
        "the other ranks wait for a rank that has no memory for the result",
        (python("tests/frameworks/test_tensorflow_gpu.py", "-k", "told_to_the_other"),),
    ),
    Mutation(
        "gpu-request-that-fails-alone",
        "src/horovod/core/collectives.py",
        '            context.tell(None if name is None else f"{label}.{name}", number, text_of(error))\n',
        "",
        "the other ranks wait for a rank whose GPU could not be opened",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "cannot_begin and memory"),),
    ),
    Mutation(
        "tensorflow-any-gpu-taken-for-cuda",
        "src/horovod/tensorflow/gpus.py",
        "    if not tf.test.is_built_with_cuda():",
        "    if False:",
        "the process ends at the first tensor on a GPU of another maker",
        (python("tests/frameworks/test_tensorflow_gpu.py", "-k", "other_makers"),),
    ),
    Mutation(
        "tensorflow-function-known-by-its-folder",
        "native/shims/tensorflow/known_function.h",
        'std::strstr(slash == nullptr ? path : slash, "tensorflow")',
        'std::strstr(path, "tensorflow")',
        "a function of any library in a folder of TensorFlow's name is called to tell the stream",
        (python("tests/frameworks/test_tensorflow_gpu.py", "-k", "cannot_be_found and another"),),
    ),
    Mutation(
        "tensorflow-set-asked-for-in-the-end",
        "native/shims/tensorflow/kernel.cc",
        "  const int32_t members = invocation->members;\n",
        "  int32_t members = 0, member = 0;\n"
        "  hvd_process_set_place(invocation->engine, collective.process_set, &members, &member, nullptr);\n"
        "  if (members == 0) {\n"
        '    tf.SetStatus(status, kUnknown, "unknown process set");\n'
        "    return false;\n"
        "  }\n",
        "the result of a gather is lost if its process set is removed while the GPU ends it",
        (python("tests/frameworks/test_tensorflow_gpu.py", "-k", "may_be_removed"),),
    ),
    Mutation(
        "gpu-work-not-aborted-with-the-job",
        "native/gpu/device_runner.cc",
        "    abort_all(carriers, kPatienceToAbortMs);\n",
        "",
        "a rank whose GPU waits in NCCL for a rank that is lost waits for ever",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "waits_in_nccl and 2-shm-9"),),
    ),
    Mutation(
        "nccl-start-not-agreed-upon",
        "native/communicators/nccl/communicator.cc",
        "  const Status all = agree(host, parts.ranks, met);",
        "  const Status all = met;",
        "a rank that could not start NCCL goes through host memory, and the others wait for it in NCCL",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "nccl_cannot_join and fails"),),
    ),
    Mutation(
        "nccl-connects-after-its-start",
        "native/communicators/nccl/meeting.cc",
        "      status = first_operation(parts, nccl, *meeting);\n",
        "      if (parts.timeout_ms == 0) status = first_operation(parts, nccl, *meeting);\n",
        "a job ends because NCCL's network does not work, though host memory would do",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "nccl_cannot_join and operation and fails"),),
    ),
    Mutation(
        "nccl-abort-that-waits-ends-the-process",
        "native/gpu/gpu_watch.cc",
        "std::min(inside_ns, now - ended_ns_)",
        "std::min(std::max(inside_ns, aborting_ns), now - ended_ns_)",
        "a script that got its error is killed while NCCL's abort waits for another rank",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "does_not_return_keeps and 1"),),
    ),
    Mutation(
        "gpu-pinned-memory-shared-with-children",
        "native/device/device.cc",
        "  madvise(memory, rounded, MADV_DONTFORK);\n",
        "",
        "after a fork, the GPU reads other pages than this process writes",
        (native("device_test", "forked_child"),),
    ),
    Mutation(
        "nccl-id-not-agreed-upon",
        "native/communicators/nccl/communicator.cc",
        "  HVD_RETURN_IF_ERROR(agree(host, parts.ranks, made));",
        "  HVD_RETURN_IF_ERROR(made);",
        "a job ends because one rank's NCCL has no network, though host memory would do",
        (python("tests/frameworks/test_torch_gpu_failures.py", "-k", "nccl_cannot_join and network"),),
    ),
    Mutation(
        "gpu-called-without-a-context",
        "native/device/device.cc",
        "Status Device::record(Stream stream, Event* out) {\n"
        "  const Current current(*driver_, context_);\n"
        "  HVD_RETURN_IF_ERROR(current.status());\n",
        "Status Device::record(Stream stream, Event* out) {\n",
        "a thread that no framework has prepared cannot use the GPU, or uses another one",
        (native("device_test", "every_thread_has_a_context"),),
    ),
    Mutation(
        "gpu-request-under-the-key-of-the-hosts",
        "src/horovod/torch/gpus.py",
        "        self.dtype = (tensor.dtype, gpu.ordinal)",
        "        self.dtype = tensor.dtype",
        "a tensor on a GPU is sent with a request for host memory",
        (python("tests/frameworks/test_torch_gpu.py", "-k", "do_not_meet"),),
    ),
    Mutation(
        "gpu-result-freed-before-it-is-copied",
        "native/engine/wait.cc",
        "  result->on_device.use_on(stream);",
        "",
        "a gathered result is given back while a stream still copies it",
        (native("device_batches_test", "every_operation_has_the_values"),),
    ),
    Mutation(
        "gpu-gathered-rows-in-memory-that-is-not-pinned",
        "native/gpu/staged.cc",
        "    if (bytes == 0) return {};\n",
        "    if (bytes < SIZE_MAX) return {};\n",
        "the copy of a gathered result onto the GPU waits for all that its stream has to do",
        (native("device_batches_test", "every_operation_has_the_values"),),
    ),
    Mutation(
        "gpu-gathered-rows-lent-again-before-they-are-copied",
        "native/engine/wait.cc",
        "  result->staged.use_on(stream);\n",
        "",
        "pinned memory with a gathered result gets another call's data while a stream still copies the result",
        (native("device_batches_test", "stays_until_it_is_copied"),),
    ),
    Mutation(
        "jax-requests-without-end",
        "native/shims/collective.cc",
        "if (is_first && known_.size() >= most_) forget_old_half();",
        "",
        "compiled functions whose shapes never come back fill the memory",
        (native("entry_cache_test", "do_not_fill_the_memory"),),
    ),
    Mutation(
        "mpi-init-without-a-limit",
        "src/horovod/world/mpi.py",
        "library.hvd_limit_time(math.ceil(left_s * 1000), text.encode())",
        "pass",
        "rank 0 waits in MPI_Init for ever for a rank that has failed before",
        (python("tests/processes/test_started_by_others.py", "-k", "holds_in_mpi_init and mpich"),),
    ),
    Mutation(
        "exit-0-without-mpi-finalize",
        "src/horovod/world/mpi.py",
        "os._exit = functools.partial(_exit, os._exit, os.getpid())",
        "pass",
        "MPICH's mpirun calls a job a success that a rank has left in the middle",
        (python("tests/processes/test_started_by_others.py", "-k", "exits_with_0 and mpich and ours"),),
    ),
    Mutation(
        "secret-of-another-namespace",
        "src/horovod/launcher/host/agent.py",
        "secret = [self._secret_file.descriptor] if self._secret_file is not None else []",
        "secret = []",
        "ranks in PID or user namespaces of their own cannot read the job's secret",
        (python("tests/processes/test_namespaces.py", "-k", "meet and pids"),),
    ),
    Mutation(
        "memfd-or-nothing",
        "native/host/segment.cc",
        "if (!is_sealable) memfd = nameless_file();",
        "",
        "ranks do not start where a container refuses memfd_create",
        (python("tests/processes/test_namespaces.py", "-k", "refused_memfd"),),
    ),
    Mutation(
        "crossed-waits-reported-late",
        "native/liveness/stall.cc",
        "std::min(limit_s, kCrossedS)",
        "limit_s",
        "ranks that wait for each other are reported after a minute only",
        (python("tests/processes/test_stall.py", "-k", "get_an_error and 60"),),
    ),
    Mutation(
        "deadlock-of-ranks-that-can-go-on",
        "src/horovod/core/operations.py",
        "count = len(handles) if len(handles) == len(waiting) else 0",
        "count = len(handles)",
        "a job ends although a thread of one rank would have made the missing call",
        (python("tests/processes/test_stall.py", "-k", "could_still_make"),),
    ),
    Mutation(
        "half-begun-list-is-another-model",
        "native/negotiation/gradient_lists.cc",
        "return !list.ranks.contains(rank) &&",
        "return",
        "a rank that is slow with the rest of a list of gradients is said to have another model",
        (native("negotiation_test", "different_lists"),),
    ),
    # what only a sanitizer sees
    Mutation(
        "overrun",
        "native/negotiation/wire.h",
        "if (broken_ || rest_.size() < length) {",
        "if (broken_ || length > kMaxFrameBytes) {",
        "a text's length in a frame is believed",
        (native("hostile_test", "nonsense"),),
        sanitizer="address,undefined",
        report="ERROR: AddressSanitizer",
    ),
    Mutation(
        "release-missing",
        "native/platform/wait.h",
        "signal.value.store(value, std::memory_order_seq_cst);",
        "signal.value.store(value, std::memory_order_relaxed);",
        "data that a flag announces may come after the flag",
        (native("communicator_test", "random"),),
        sanitizer="thread",
        report="WARNING: ThreadSanitizer: data race",
    ),
    Mutation(
        "xla-context-not-held",
        "native/shims/tensorflow/xla.cc",
        "    hvd_hold(context);\n",
        "",
        "a step that XLA has compiled waits in a context that a shutdown has freed",
        (python("tests/frameworks/test_tensorflow_failures.py", "-k", "shutdown_leaves_memory"),),
        also=(("native/shims/tensorflow/xla.cc", "  hvd_free(context);\n", ""),),
    ),
    # MXNet
    Mutation(
        "mxnet-names-unordered",
        "src/horovod/mxnet/ops.py",
        "push(label, request, hosts, outputs, [order], int(priority), step)",
        "push(label, request, hosts, outputs, [], int(priority), step)",
        "MXNet runs calls of one name in the order in which their arrays are ready",
        (with_mxnet("tests/frameworks/test_mxnet_ops.py", "-k", "calls_of_one_name"),),
    ),
    Mutation(
        "mxnet-own-layouts-sent",
        "native/shims/mxnet/call.cc",
        "if (mxnet.reorder != nullptr && chunk_of(from) == chunk_of(to)) mxnet.reorder(chunk_of(from));",
        "",
        "an array in a layout of oneDNN cannot be reduced in place",
        (
            with_mxnet("tests/frameworks/test_mxnet_ops.py", "-k", "onednn"),
            native("mxnet_call_test", "a_layout_of_mxnets_own"),
        ),
    ),
    Mutation(
        "mxnet-failures-told-at-once",
        "native/shims/mxnet/call.cc",
        "      const std::lock_guard lock(failing);\n",
        "",
        "two threads append to MXNet's list of failures, which has no lock",
        (native("mxnet_call_test", "one_by_one"),),
    ),
    Mutation(
        "mxnet-no-room-for-failures",
        "src/horovod/mxnet/shim.py",
        "        _make_room_for_failures()\n",
        "",
        "MXNet's list of failures moves while another of its threads searches it",
        (with_mxnet("tests/frameworks/test_mxnet_ops.py", "-k", "list_of_failures"),),
    ),
    Mutation(
        "mxnet-late-call-in-the-next-generation",
        "native/shims/mxnet/call.cc",
        "if (now.context == nullptr || now.number != call->generation) {",
        "if (now.context == nullptr) {",
        "a call of a generation that has ended is submitted to the next one, whose ranks did not make it",
        (native("mxnet_call_test", "ended_generation"),),
    ),
    Mutation(
        "mxnet-late-error-ends-the-next-generation",
        "src/horovod/mxnet/errors.py",
        "if contexts.is_initialized() and int(found[4]) == generation.number:",
        "if contexts.is_initialized():",
        "an error that is read after another init counts as one of the new generation",
        (with_mxnet("tests/frameworks/test_mxnet_ops.py", "-k", "read_late"),),
    ),
    Mutation(
        "mxnet-failed-input-not-told",
        "native/shims/mxnet/call.cc",
        "  if (call->has_run) return;\n",
        "  if (call != nullptr) return;\n",
        "the peers wait for an operation whose array could not be computed",
        (with_mxnet("tests/frameworks/test_mxnet_ops.py", "-k", "peers_are_told"),),
    ),
    Mutation(
        "mxnet-last-gradient-lingers",
        "native/shims/mxnet/call.cc",
        "if (is_last) call->request.flags |= HVD_URGENT;",
        "",
        "the last gradients of a step wait for more",
        (with_mxnet("tests/frameworks/test_mxnet_state.py", "-k", "last_gradient"),),
    ),
    Mutation(
        "mxnet-last-gradients-first",
        "src/horovod/mxnet/gradients.py",
        "sent, name, -group[0], options.how",
        "sent, name, group[0], options.how",
        "of the gradients that are ready, those which the next forward pass needs last are sent first",
        (with_mxnet("tests/frameworks/test_mxnet_state.py", "-k", "highest_priority"),),
    ),
    Mutation(
        "mxnet-deferred-parameters-differ",
        "src/horovod/mxnet/state.py",
        "        initialize(data, devices)\n        _broadcast(parameter, root_rank, name)\n",
        "        initialize(data, devices)\n",
        "parameters whose shapes are known late keep each rank's own start values",
        (with_mxnet("tests/frameworks/test_mxnet_training.py", "-k", "gluon_equals and 2-shm"),),
    ),
    # elastic jobs: the driver, in every order of events
    Mutation(
        "elastic-each-decides-to-sync",
        "src/horovod/elastic/decide/membership.py",
        "        turn.tell(worker.number, record)\n    if any(",
        "        own = World(generation, record.members, held[worker.number] == NO_STATE, record.base, record.reason)\n"
        "        turn.tell(worker.number, own)\n"
        "    if any(",
        "each worker syncs or not by what it holds itself: horovod#3494, a joiner waits for ever",
        (python(f"{MEMBERSHIP}[a host goes and another comes (horovod#3494)]"),),
    ),
    Mutation(
        "elastic-no-watch-on-forming",
        "src/horovod/elastic/decide/membership.py",
        "    if number in job.members:\n        _leave_world(turn, orderly=False)\n",
        "",
        "the end of a member counts only if another member notices it, which none can while they form",
        (python(f"{MEMBERSHIP}[a crash of two]"),),
    ),
    Mutation(
        "elastic-generation-counted-by-each",
        "src/horovod/elastic/decide/membership.py",
        "        turn.tell(worker.number, record)\n    if any(",
        "        number = held[worker.number][0] + 1\n"
        "        turn.tell(worker.number, World(number, record.members, record.sync, record.base, record.reason))\n"
        "    if any(",
        "each worker counts generations by itself, so one number means two worlds",
        (python(f"{MEMBERSHIP}[a host goes and another comes (horovod#3494)]"),),
    ),
    Mutation(
        "elastic-root-by-age",
        "src/horovod/elastic/decide/membership.py",
        "max(members, key=lambda worker: (held[worker.number], -worker.number)).number",
        "min(worker.number for worker in members)",
        "the oldest worker is rank 0, though another one holds a newer state",
        (python(f"{MEMBERSHIP}[a crash of three]"),),
    ),
    Mutation(
        "elastic-survivors-not-awaited",
        "src/horovod/elastic/decide/membership.py",
        "    if missing(turn.job):\n        return\n",
        "",
        "the next world forms before all members of the last one have come or ended",
        (python(f"{MEMBERSHIP}[a crash of two]"),),
    ),
    Mutation(
        "elastic-stale-attend-counts",
        "src/horovod/elastic/decide/membership.py",
        " or said_of < job.generation):",
        " or False):",
        "what a worker said before it read of the newest world counts for that world",
        (python(f"{MEMBERSHIP}[a crash and a new connection]"),),
    ),
    Mutation(
        "elastic-reconnect-not-answered",
        "src/horovod/elastic/decide/membership.py",
        "        turn.tell(number, job.record)\n        if job.lost",
        "        if job.lost",
        "a worker whose connection broke while it was told of its world is not told again",
        (python(f"{MEMBERSHIP}[two new connections]"),),
    ),
    # elastic jobs: states, callbacks, discovery
    Mutation(
        "elastic-keras-commits-before-it-counts",
        "src/horovod/keras/elastic_callbacks.py",
        "        for callback in counters:\n            callback._hvd_batch_done(batch)\n",
        "",
        "the documented order of callbacks commits the counters of one batch ago: horovod#2844",
        (python(f"{KERAS_ELASTIC}test_the_same_orders_with_tf_keras"),),
    ),
    Mutation(
        "elastic-keras-resumes-whole-epochs",
        "src/horovod/keras/elastic_callbacks.py",
        "            self.model.stop_training = self._hvd_stop\n",
        "",
        "an epoch that was interrupted is trained from its first batch on",
        (python(f"{KERAS_ELASTIC}test_the_same_interrupts_with_tf_keras"),),
    ),
    Mutation(
        "elastic-keras-no-slots",
        "src/horovod/elastic/state/keras_state.py",
        "            build_optimizer(optimizer, model.trainable_variables)\n",
        "",
        "an optimizer that has made no step has no slots, so they are not sent to it: horovod#2652",
        (python(f"{KERAS_ELASTIC}test_the_same_with_tf_keras"),),
    ),
    Mutation(
        "elastic-errors-of-frameworks",
        "src/horovod/elastic/worker/decorator.py",
        "if not isinstance(cause, HorovodInternalError):",
        "if True:",
        "the loss of a worker in a compiled step ends the others, because TensorFlow's error is not Horovod's",
        (python("tests/frameworks/test_tensorflow_elastic.py", "-k", "survives and function"),),
    ),
    Mutation(
        "elastic-order-of-hosts",
        "src/horovod/elastic/drive/discovery.py",
        "if dict(hosts) != dict(self._hosts)",
        "if hosts != self._hosts",
        "a discovery script that lists the same hosts in another order interrupts the training",
        (python("tests/unit/test_elastic_discovery.py", "-k", "changes_only"),),
    ),
    # elastic jobs: the driver's glue, a worker's session, agents
    Mutation(
        "elastic-planned-by-number",
        "src/horovod/elastic/drive/driver.py",
        "local_rank=worker.slot, ",
        "",
        "a worker that joins above an empty slot chooses the device of the one that will fill it",
        (python("tests/unit/test_elastic_driver.py", "-k", "planned_by_its_slot"),),
    ),
    Mutation(
        "elastic-left-well-is-in-the-next-world",
        "src/horovod/elastic/drive/driver.py",
        "        while self._left_well and self.job.phase != LIVE:",
        "        while False:",
        "a member whose process has ended with success is waited for in the next world",
        (python("tests/unit/test_elastic_driver_walk.py"),),
    ),
    Mutation(
        "elastic-reserve-stops-the-others",
        "src/horovod/elastic/decide/membership.py",
        " and not is_full(turn.job, turn.rules):",
        ":",
        "a worker that is ready in reserve makes all others leave their world",
        (python("tests/unit/test_membership.py", "-k", "reserve"),),
    ),
    Mutation(
        "elastic-attendance-is-forgotten",
        "src/horovod/elastic/decide/membership.py",
        "    turn.set(attended=True)\n",
        "",
        "a job whose hosts have all failed says that no worker has got to hvd.init(), though one waited there",
        (python("tests/unit/test_membership.py", "-k", "got_to_init"),),
    ),
    Mutation(
        "elastic-raisers-are-timed-at-the-end",
        "src/horovod/elastic/drive/driver.py",
        "            self._raised.clear()",
        "            pass",
        "when the job is over, horovodrun says that a process is killed in 27 s, and ends it after 3 s",
        (python("tests/unit/test_elastic_driver.py", "-k", "when_the_job_is_over"),),
    ),
    Mutation(
        "elastic-each-start-waits-anew",
        "src/horovod/elastic/decide/running_wait.py",
        "{Timer.STARTS: Timer.SLOTS}",
        "{}",
        "slots that are filled in vain make the job wait for ever",
        (python("tests/unit/test_elastic_driver.py", "-k", "in_vain"),),
    ),
    Mutation(
        "elastic-removed-at-once",
        "src/horovod/launcher/host/agent.py",
        "kill_at - self._grace_s if grace_s else None",
        "time.monotonic()",
        "a worker that is removed gets SIGTERM while it comes to its end",
        (python("tests/processes/test_elastic_faults.py", "-k", "removed_comes_to_its_end"),),
    ),
    Mutation(
        "elastic-survived-errors-are-raised",
        "src/horovod/launcher/function/run_function.py",
        " and one.error is not None and one.worker in end.workers]",
        " and one.error is not None]",
        "horovod.run raises the exception of a worker whose loss the job has survived",
        (python("tests/processes/test_elastic_run_function.py", "-k", "whose_answers_count"),),
    ),
    Mutation(
        "elastic-results-lost-at-the-end",
        "src/horovod/launcher/job/elastic_job.py",
        "has_trained=True, ",
        "",
        "a worker that crashes after it has given its result takes all results away",
        (python("tests/processes/test_elastic_run_function.py", "-k", "crashes_at_its_end"),),
    ),
    Mutation(
        "elastic-raisers-exit-with-1",
        "src/horovod/launcher/job/elastic_job.py",
        "if one.failed or one.code > 0), 1)",
        "if one.failed), 1)",
        "a job that two workers end by the same exception exits with 1, and not with their code",
        (python("tests/processes/test_elastic.py", "-k", "raise_the_same"),),
    ),
    Mutation(
        "elastic-joiner-takes-others-along",
        "src/horovod/elastic/worker/link.py",
        "                failures += not sessions.is_loss(error)",
        "                failures += 3",
        "what makes a joiner fail makes those fail that were in a world already",
        (python("tests/processes/test_elastic_faults.py", "-k", "cannot_join_ends_alone"),),
    ),
    Mutation(
        "launcher-keeps-its-parents-mask",
        "src/horovod/launcher/cli.py",
        "    processes.take_signals()\n",
        "",
        "under a parent that blocks signals, no SIGTERM ends horovodrun",
        (python("tests/processes/test_signals.py", "-k", "mask_of_the_parent"),),
    ),
    Mutation(
        "threads-keep-a-rank-that-raised",
        "src/horovod/core/raised.py",
        "    os._exit(1)\n",
        "",
        "a rank whose script has raised never ends, because a thread of it lives",
        (python("tests/processes/test_left_behind.py", "-k", "raised_ends_though"),),
    ),
    Mutation(
        "orphans-go-on",
        "src/horovod/world/bootstrap.py",
        "        starters.end_with_launcher(settings)\n",
        "",
        "ranks train on for ever after their mpirun was killed",
        (python("tests/processes/test_left_behind.py", "-k", "ends_with_its_launcher"),),
    ),
    Mutation(
        "helpers-look-into-the-working-directory",
        "src/horovod/world/interpreter.py",
        "if p not in d]",
        "if p]",
        "an empty entry of PYTHONPATH has a helper process run files of the working directory",
        (python("tests/processes/test_launcher.py", "-k", "stand_in_for_a_module"),),
    ),
    Mutation(
        "agent-ends-with-its-line",
        "src/horovod/launcher/host/agent.py",
        "        if line_to_launcher.silent:",
        "        if True:",
        "a connection with horovodrun that the network resets ends all ranks of a host",
        (python("tests/cluster/test_failures.py", "-k", "broken_connections"),),
    ),
    Mutation(
        "elastic-mxnet-keeps-failures",
        "src/horovod/mxnet/elastic_state.py",
        "        forget_failures()\n",
        "",
        "arrays keep the failure of the world that is over, though they have other values now",
        (with_mxnet("tests/frameworks/test_mxnet_elastic.py", "-k", "survives"),),
    ),
    Mutation(
        "elastic-starts-in-vain-for-ever",
        "src/horovod/elastic/decide/running_wait.py",
        "wait.timer == Timer.SLOTS and not generation:",
        "wait.timer == Timer.SLOTS and generation < 0:",
        "workers that fail at every start keep --elastic-timeout from ending a job that has no world yet",
        (python("tests/unit/test_elastic_driver.py", "-k", "fail_at_every_start"),),
    ),
    Mutation(
        "elastic-gone-joiner-interrupts",
        "src/horovod/elastic/decide/job.py",
        "    if job.settling and any(number not in job.members for number, _ in job.waiting):",
        "    if job.settling:",
        "a joiner that has gone again interrupts the training",
        (python("tests/unit/test_membership.py", "-k", "gone_again"),),
    ),
    Mutation(
        "elastic-listener-that-fails-takes-others-along",
        "src/horovod/elastic/worker/notices.py",
        "            except Exception:\n",
        "            except ZeroDivisionError:\n",
        "one listener of a script that fails keeps the others from hearing of changes",
        (python("tests/unit/test_elastic_worker.py", "-k", "listeners"),),
    ),
    Mutation(
        "pid-namespaces-are-one",
        "native/engine/lifecycle.cc",
        "other.pid_namespace.load() == pid_namespace()",
        "true",
        "a rank in another container is watched by a number that is another process' here",
        (python("tests/processes/test_lost_ranks.py", "-k", "pid_namespace"),),
    ),
    Mutation(
        "strangers-state-for-a-peers",
        "native/liveness/monitor.cc",
        "watch->peer.is_known ? process_state(watch->peer.pid) : '\\0'",
        "process_state(watch->peer.pid)",
        "a silent rank in another container is described by the state of a stranger",
        (native("monitor_test", "not_taken_for_a_stranger"),),
    ),
    Mutation(
        "who-waits-for-a-core-is-frozen",
        "native/liveness/monitor.cc",
        "if (state == 'R' && silent_ns < kTimesIfItWouldRun * frozen_ms_ * kMs) return;",
        "",
        "a rank that gets no core for a few seconds is taken for frozen",
        (native("monitor_test", "ten_times_as_long"),),
    ),
    Mutation(
        "a-full-window-is-silence",
        "native/platform/sign_of_life.cc",
        "const bool is_due = info.tcpi_unacked > 0 || info.tcpi_probes > 1;",
        "const bool is_due = true;",
        "a host whose ranks are stopped, and read nothing, counts as lost, though its kernel answers",
        (native("communicator_failure_test", "a_full_window"),),
    ),
    Mutation(
        "arena-fills-with-names-that-few-use",
        "native/negotiation/coordinator/ids.cc",
        "cached_bytes_ + bytes <= limits_.bytes && bytes_ + bytes <= limits_.all_bytes();",
        "bytes_ + bytes > 0;",
        "groups of many tensors under ever new names end the job",
        (native("negotiation_test", "long_definitions"),),
    ),
    Mutation(
        "arena-names-that-run-once-pile-up",
        "native/negotiation/coordinator/ids.cc",
        "bytes_ + wanted <= limits_.all_bytes();",
        "bytes_ + wanted > 0;",
        "names that run once fill the memory for names before they are retired",
        (native("negotiation_test", "long_definitions"),),
    ),
    Mutation(
        "arena-pieces-stay-small",
        "native/negotiation/arena.cc",
        "if (same == free_.end() || same->second.erase(offset ^ piece) == 0) break;",
        "break;",
        "what has held short texts can hold no long one",
        (native("negotiation_test", "become_whole"),),
    ),
    Mutation(
        "two-threads-conflict",
        "native/engine/calls.cc",
        "submission->sync && !has_several_waiters_;",
        "submission->sync;",
        "two threads of a rank that call two operations in another order than a peer's get an error",
        (native("engine_edge_test", "two_threads"),),
    ),
    Mutation(
        "child-of-a-former-rank-is-none",
        "native/platform/private_descriptors.cc",
        "  if (watches.load() > 0) forked.store(true);",
        "  forked.store(true);",
        "a process that has left its world cannot fork a rank of another one",
        (native("fork_test", ""), python("tests/processes/test_lost_ranks.py", "-k", "may_fork_a_rank")),
    ),
    Mutation(
        "mpi-is-called-after-its-end",
        "native/communicators/mpi/progress.cc",
        "|| finalized != 0) return;",
        ") return;",
        "a script that calls MPI_Finalize is aborted by MPI",
        (native("mpi_test", "after_a_script_has_ended_it"),),
    ),
    # Caffe
    Mutation(
        "caffe-test-loss-of-all-ranks",
        "src/horovod/caffe/net.py",
        "return _sum([total * weight for total, weight, _ in self._losses])",
        "return self.objective() * self.context.replicas.size",
        "with a loss that is a sum, several ranks print a test loss that is too large",
        (python("tests/frameworks/test_caffe_training.py", "-k", "as_one and sum-2"),),
    ),
    Mutation(
        "caffe-weights-of-the-solver-unread",
        "src/horovod/caffe/solver.py",
        "        self._load_weights()\n",
        "        self.net.share_weights()\n",
        "a Solver made in Python ignores its `weights`",
        (python("tests/frameworks/test_caffe_training.py", "-k", "weights_that_the_solver_names"),),
    ),
    Mutation(
        "caffe-window-behind-the-image",
        "src/horovod/caffe/layers/spatial.py",
        "[0][:, :, :height, :width]",
        "[0]",
        "pooling with a wide pad has a row and a column too many",
        (python("tests/frameworks/test_caffe_layers.py", "-k", "wide_pad"),),
    ),
    Mutation(
        "caffe-blobs-overwritten",
        "src/horovod/caffe/graph.py",
        "if list(one.proto.bottom) != list(one.proto.top) or not self.inputs[index]:",
        "if not self.inputs[index]:",
        "Net.blobs shows other values than a layer had as its input",
        (python("tests/frameworks/test_caffe_layers.py", "-k", "seen_unchanged"),),
    ),
    Mutation(
        "caffe-sum-for-mean",
        "src/horovod/caffe/net.py",
        "share = 1 / self.context.replicas.size if layer.is_mean else 1.0",
        "share = 1.0",
        "the gradients of all ranks are summed, not averaged",
        (python("tests/frameworks/test_caffe_training.py", "-k", "as_one and mean-2"),),
    ),
    Mutation(
        "caffe-ranks-read-the-same",
        "src/horovod/caffe/data/shard.py",
        "self._next = replicas.rank + skip",
        "self._next = skip",
        "every rank reads the records of rank 0",
        (python("tests/frameworks/test_caffe_training.py", "-k", "read_different"),),
    ),
    Mutation(
        "caffe-own-valid-count",
        "src/horovod/caffe/layers/losses.py",
        "if self.training and not valid.is_meta:",
        "if False:",
        "each rank divides by its own number of valid labels",
        (python("tests/frameworks/test_caffe_training.py", "-k", "ignored-2"),),
    ),
    Mutation(
        "caffe-pytorchs-adam",
        "src/horovod/caffe/updates.py",
        "value=-rate * correction)",
        "value=-rate / (1 - first**time))",
        "one bias correction of Adam is missing",
        (python("tests/frameworks/test_caffe_solver.py", "-k", "formulas and Adam"),),
    ),
    Mutation(
        "caffe-clip-after-division",
        "src/horovod/caffe/updates.py",
        "return limit / norm if norm > limit else 1.0",
        "return limit / norm if norm > limit * self._solver.iter_size else 1.0",
        "the threshold is compared with the mean over iter_size, not with the sum",
        (python("tests/frameworks/test_caffe_solver.py", "-k", "formulas and SGD and clipped"),),
    ),
    Mutation(
        "caffe-relu-overwrites-what-others-read",
        "src/horovod/caffe/graph.py",
        "before, alone = layers[version[0]], self.readers[version] == [index]",
        "before, alone = layers[version[0]], True",
        "a layer in place changes a blob that another layer reads",
        (python("tests/frameworks/test_caffe_layers.py", "-k", "in_place"),),
    ),
    Mutation(
        "caffe-leveldb-in-place",
        "src/horovod/caffe/data/leveldb.py",
        "plyvel.DB(self._folder.name)",
        "plyvel.DB(path)",
        "a rank locks the LevelDB that the others read, and changes it",
        (python("tests/frameworks/test_caffe_leveldb.py", "-k", "together"),),
    ),
    Mutation(
        "caffe-tests-all-on-each-rank",
        "src/horovod/caffe/testing.py",
        "return count // replicas.size + (replicas.rank < count % replicas.size)",
        "return count",
        "each rank runs all of test_iter",
        (python("tests/frameworks/test_caffe_training.py", "-k", "as_one and mean-2"),),
    ),
    Mutation(
        "caffe-norm-statistics-of-each-rank-in-tests",
        "src/horovod/caffe/testing.py",
        "blob.copy_(replicas.mean(blob, name))",
        "replicas.mean(blob, name)",
        "a test uses each rank's own statistics of BatchNorm",
        (python("tests/frameworks/test_caffe_training.py", "-k", "statistics"),),
    ),
)


class StaleTable(Exception):
    """A mutation does not fit the code any more, or the unbroken copy fails."""


def show(text: str, *, end: str = "\n") -> None:
    print(text, end=end, flush=True)


def run(command: list[str], cwd: Path, limit_s: float, environment: dict[str, str] | None = None) -> tuple[str, str]:
    """('ok' or what went wrong, the output). At its limit a command is ended; so is whatever it leaves behind."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end_descendants()
        output, _ = process.communicate()
        return f"hung, ended after {limit_s:.0f} s", output
    finally:
        end_descendants()
    if process.returncode < 0:
        return f"killed by signal {-process.returncode}", output
    return ("ok" if process.returncode == 0 else f"failed with exit code {process.returncode}"), output


def processes_of_launcher() -> types.ModuleType:
    """Of this tree. Not at import: others read the table, where this package is not installed, or another one is."""
    sys.path.insert(0, str(ROOT / "src"))
    try:
        return importlib.import_module("horovod.launcher.host.processes")
    finally:
        sys.path.pop(0)


def end_descendants() -> None:
    """In whatever session they are: a job that a broken launcher leaves behind would disturb all that follows."""
    processes = processes_of_launcher()
    while processes.signal_descendants(os.getpid(), signal.SIGKILL):
        time.sleep(0.01)


class Scratch:
    """The copy. Owns its folder: mutations build in its `build`, and `unbroken` is that as it was before the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library = folder / "src" / "horovod" / "lib"
        tools = [str(ROOT / ".venv" / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join(tools),
            "PYTHONPATH": str(folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",  # a file that changes twice in a second must not be taken from a cache
            "OMP_NUM_THREADS": "1",
        }
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def build(self, tests: tuple[Test, ...], sanitizer: str = "") -> None:
        build = self.build_folder(sanitizer)
        commands = [["cmake", "--build", str(build), "--target", *sorted({t.arguments[0] for t in tests if t.native})]]
        if not all(t.native for t in tests):
            commands[0] += LIBRARIES
        if not build.exists():
            configure = ["cmake", "-S", ".", "-B", str(build), "-G", "Ninja", "-DHVD_BUILD_TESTS=ON"]
            if sanitizer:
                # All of the library is compiled for one test. Without -O that takes a fifth of the time.
                configure += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DHVD_SANITIZE={sanitizer}"]
                configure += ["-DHVD_SANITIZE_OPTIONS=-O0"]
            commands.insert(0, configure)
        for command in commands:
            outcome, output = run(command, self.folder, BUILD_LIMIT_S, self.environment)
            if outcome != "ok":
                raise StaleTable(f"the build {outcome}:\n{output[-4000:]}")
        if not all(t.native for t in tests):
            self.library.mkdir(exist_ok=True)
            self.install()

    def build_folder(self, sanitizer: str) -> Path:
        return self.folder / (f"build-{sanitizer.replace(',', '-')}" if sanitizer else "build")

    def install(self) -> None:
        for name in LIBRARIES:
            shutil.copy2(self.folder / "build" / f"lib{name}.so", self.library)

    def keep_build(self) -> None:
        shutil.copytree(self.folder / "build", self.folder / "unbroken", symlinks=True)

    def restore_build(self) -> None:
        """Times of files included, by which ninja would otherwise compile again what the last mutation had changed."""
        shutil.rmtree(self.folder / "build")
        shutil.copytree(self.folder / "unbroken", self.folder / "build", symlinks=True)
        if self.library.exists():
            self.install()

    def interpreter(self, test: Test) -> str:
        if not test.environment:
            return sys.executable
        interpreter = ROOT / test.environment / "bin" / "python"
        if not interpreter.exists():
            raise StaleTable(f"`{test}` needs {test.environment}: make {test.environment}/created")
        return str(interpreter)

    def test(self, test: Test, limit_s: float, sanitizer: str = "") -> tuple[str, str]:
        program, *rest = test.arguments
        environment = self.environment
        if test.native:
            command = [str(self.build_folder(sanitizer) / program), *rest]
            if program.endswith("_model_test"):  # of every day it has few interleavings
                environment = {**environment, "THOROUGH": "1"}
        else:
            command = [self.interpreter(test), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *test.arguments]
        outcome, output = run(command, self.folder, limit_s, environment)
        if not test.native and outcome.endswith("code 5"):  # nothing was collected: a test of `make check-all`
            outcome, output = run(command, self.folder, limit_s, {**environment, "THOROUGH": "1"})
        # pytest's other codes: nothing collected, wrong usage, an internal error. Nothing was tested then.
        if not test.native and outcome.startswith("failed") and not outcome.endswith("code 1"):
            raise StaleTable(f"`{test}` {outcome}:\n{output[-4000:]}")
        if not test.native and outcome == "ok" and " passed" not in output:
            raise StaleTable(f"`{test}` ran nothing:\n{output[-4000:]}")
        return outcome, output


def check_unbroken(scratch: Scratch, chosen: list[Mutation]) -> dict[Test, float]:
    """How many seconds each test takes."""
    seconds = {}
    tests = tuple(dict.fromkeys(test for mutation in chosen for test in mutation.tests))
    show("building the unbroken copy ...")
    scratch.build(tests)
    for test in tests:
        start = time.monotonic()
        outcome, output = scratch.test(test, UNBROKEN_LIMIT_S)
        seconds[test] = time.monotonic() - start
        show(f"  unbroken: {test}: {outcome} ({seconds[test]:.0f} s)")
        if outcome != "ok":
            raise StaleTable(f"without any mutation `{test}` {outcome}:\n{output[-4000:]}")
    scratch.keep_build()
    return seconds


def try_mutation(scratch: Scratch, mutation: Mutation, seconds: dict[Test, float]) -> list[str]:
    """Return each test's outcome. The copy is as before afterwards. `seconds`: of the unbroken copy."""
    paths = [scratch.folder / file for file in dict.fromkeys(edit[0] for edit in mutation.edits())]
    originals = [(path, path.read_text(encoding="utf-8"), path.stat()) for path in paths]
    compiled = mutation.file.startswith("native/")
    try:
        for file, text, replacement in mutation.edits():
            edit(scratch.folder / file, text, replacement, mutation.name)
        if compiled:
            scratch.build(mutation.tests, mutation.sanitizer)
        results = []
        for test in mutation.tests:
            limit_s = max(MUTATION_LIMIT_S, TIMES_UNBROKEN * seconds[test])
            limit_s = UNBROKEN_LIMIT_S if mutation.sanitizer else limit_s
            results.append(scratch.test(test, limit_s, mutation.sanitizer))
        return [reported(outcome, output, mutation.report) for outcome, output in results]
    finally:
        for path, original, times in originals:
            path.write_text(original, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        if mutation.sanitizer:
            shutil.rmtree(scratch.build_folder(mutation.sanitizer), ignore_errors=True)
        elif compiled:
            scratch.restore_build()


def edit(path: Path, text: str, replacement: str, name: str) -> None:
    """Replace a text that the file must contain exactly once."""
    original = path.read_text(encoding="utf-8")
    if original.count(text) != 1:
        raise StaleTable(f"{name}: {path.name} holds the text {original.count(text)} times, not 1")
    path.write_text(original.replace(text, replacement), encoding="utf-8")


def reported(outcome: str, output: str, report: str) -> str:
    """Return a test's outcome; a test that should end with a sanitizer's report, and does not, noticed nothing."""
    if not report:
        return outcome
    return f"reported: {report}" if report in output and outcome != "ok" else "ok"


def share_of_all(text: str) -> slice:
    """'2/4': every fourth mutation, from the second one on."""
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError
    return slice(number - 1, None, count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", metavar="NAME", action="append", help="this mutation; may be given several times")
    parser.add_argument(
        "--share", metavar="K/N", type=share_of_all, default=slice(None), help="every Nth, from the Kth on"
    )
    parser.add_argument("--list", action="store_true", help="print the table and exit")
    arguments = parser.parse_args()
    unknown = set(arguments.only or []) - {mutation.name for mutation in MUTATIONS}
    if unknown:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}")
    chosen = [mutation for mutation in MUTATIONS if not arguments.only or mutation.name in arguments.only]
    chosen = chosen[arguments.share]
    if arguments.list:
        for mutation in chosen:
            show(f"{mutation.name:26} {mutation.file}\n    {mutation.why}")
            for test in mutation.tests:
                show(f"    must turn red: {test}")
        return 0
    processes_of_launcher().become_subreaper()
    results: list[tuple[Mutation, list[str]]] = []
    build = ROOT / "build"  # the tests' hosts have a /tmp of their own
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutations-", dir=build) as folder:
        scratch = Scratch(Path(folder))
        try:
            seconds = check_unbroken(scratch, chosen)
            for index, mutation in enumerate(chosen):
                start = time.monotonic()
                show(f"[{index + 1}/{len(chosen)}] {mutation.name} ... ", end="")
                results.append((mutation, try_mutation(scratch, mutation, seconds)))
                show(f"{'; '.join(results[-1][1])} ({time.monotonic() - start:.0f} s)")
        except StaleTable as error:
            show(f"\n{error}")
            return 2
    survivors = 0
    show("")
    for mutation, outcomes in results:
        for test, outcome in zip(mutation.tests, outcomes, strict=True):
            survivors += outcome == "ok"
            show(f"{mutation.name:26} {'SURVIVED' if outcome == 'ok' else 'caught':9} {test}: {outcome}")
    show(f"{len(results)} mutations, {survivors} tests that noticed nothing")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
