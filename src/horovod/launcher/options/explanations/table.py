# SPDX-License-Identifier: Apache-2.0
"""The meaning of each error code, and the remedy.

One table for `horovodrun --explain CODE` and for docs/troubleshooting.md; parts of it are in jobs.py and
elastic.py.
"""

from __future__ import annotations

from horovod.launcher.options.explanations.elastic import EXPLANATIONS_OF_ELASTIC
from horovod.launcher.options.explanations.jobs import EXPLANATIONS_OF_JOBS, Explanation

__all__ = ["EXPLANATIONS", "Explanation"]

_START = "StartError (a ValueError), from hvd.init()"

EXPLANATIONS = (
    # init
    Explanation(
        "start-alone",
        "This process was started with others, but nothing tells it how to find them",
        f"{_START}; only a warning, if no environment variable shows that there are other processes",
        ("says that this is one of ... processes", "this process trains alone (size 1)", "no rank has called init"),
        "There are two causes. (1) Horovod does not know the launcher; it knows horovodrun, torchrun, srun, and "
        "mpirun of Open MPI, MPICH and Intel MPI. This is an error, because each process would train a model of its "
        "own. (2) A wrapper (env -i, sudo, su, a container) has dropped the launcher's variables. Then init warns, if "
        "it finds the launcher among the parent processes, and each process is a job of its own: horovodrun says at "
        "its end that no rank has called init in this job.",
        (
            "Let wrappers keep the environment: sudo -E, su -m. A container needs every HOROVOD_* variable and "
            "horovodrun's open file descriptors.",
            "Start the script with `horovodrun -np N python train.py`.",
            "If you do want N independent processes, set HOROVOD_SIZE=1.",
        ),
    ),
    Explanation(
        "start-unfound",
        "Ranks that mpirun, srun or torchrun started cannot find rank 0",
        _START,
        ("in init for the file", "but not which job it belongs to", "are to find each other, cannot be used"),
        "If the launcher starts MPI jobs and mpi4py is installed, the ranks learn through mpi4py where rank 0 is. "
        "Otherwise rank 0 writes its address into a file in ~/.horovod. This rank found no such file, or cannot reach "
        "the address in it: rank 0 has not called init, the hosts do not share the folder, or the file is of another "
        "job.",
        (
            "Look at rank 0's output: it may have failed before hvd.init().",
            "Set HOROVOD_RENDEZVOUS_DIRECTORY to a folder that all hosts share.",
            "Under mpirun, install mpi4py into the script's Python, for the same MPI.",
            "Or start the job with horovodrun.",
        ),
    ),
    Explanation(
        "start-mpi",
        "mpi4py uses a different MPI from the launcher",
        _START,
        ("it is another MPI than the launcher's", "but the job was started by the mpirun of"),
        "mpirun or srun started several processes, but the MPI library that mpi4py loads does not understand this "
        "launcher. With such an MPI, each process sees only itself, or MPI_Init ends the process. If mpirun's "
        "environment variables show that the MPIs differ, Horovod does not use mpi4py. Then there is an error only if "
        "data is to go through MPI.",
        (
            "Start the job with the mpirun of the MPI that mpi4py uses; the message names that MPI.",
            "Install mpi4py for the launcher's MPI. With srun, `srun --mpi=list` shows what Slurm supports: Open MPI "
            "needs pmix; MPICH and Intel MPI need pmi2.",
            "Set HOROVOD_RENDEZVOUS_DIRECTORY to a folder that all hosts share: then Horovod does not use mpi4py to "
            "find rank 0.",
        ),
    ),
    Explanation(
        "start-timeout",
        "Some ranks did not reach hvd.init() in time",
        _START,
        (" in init for", "in MPI_Init, which returns when", "not called init", "though all ... ranks have called init"),
        "init() returns when all ranks have called it and can reach each other. Some did not call it within the start "
        "timeout: they failed earlier, hang, or still import modules and load data. Or all have called it, and a "
        "firewall drops what they send to the other hosts.",
        (
            "Look at the output of the missing ranks; `--output-filename DIR` keeps it in a file for each rank.",
            "Call hvd.init() on every rank, before slow work such as loading data.",
            "If the start is slow for a good reason, raise HOROVOD_START_TIMEOUT (seconds).",
        ),
    ),
    Explanation(
        "start-lost-rank",
        "Another rank ended while this one was in hvd.init()",
        _START,
        ("cannot go on in init",),
        "A rank that the others waited for has ended. The message names it.",
        ("Read that rank's own output: its error is the cause, this one is the consequence.",),
    ),
    Explanation(
        "start-duplicate-rank",
        "Two processes have called hvd.init() as the same rank",
        _START,
        ("two processes are rank",),
        "Each rank is one process. A second process with the same environment called init(): usually a child process "
        "of the script, such as a multiprocessing worker that imports the script again.",
        (
            "Protect the script with `if __name__ == '__main__':`.",
            "Do not call hvd.init() in DataLoader workers or other child processes.",
        ),
    ),
    Explanation(
        "start-settings",
        "A setting is missing, contradicts another, or differs between ranks",
        _START,
        (
            "give it to all ranks alike",
            "is out of range",
            "the ranks disagree about the process sets given to init",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR is set, but",
            "unset it, or set tcp (our own transports) or mpi",
        ),
        "The launcher describes a rank in environment variables (HOROVOD_RANK, HOROVOD_SIZE and so on). Here they do "
        "not fit together, or the ranks were given different values for something that must be equal.",
        (
            "Pass horovodrun's environment on to the script unchanged; wrappers such as sudo or `env -i` drop it.",
            "Give a setting by horovodrun's flag, or export its variable before horovodrun starts: all ranks get both.",
            "List all process sets on every rank, in the same order, including those that the rank does not belong to.",
            "Unset variables left over from another job: `env | grep HOROVOD`.",
        ),
    ),
    Explanation(
        "start-secret",
        "A rank could not prove that it belongs to the job",
        _START,
        ("HOROVOD_SECRET_FILE", "is not a folder that only its owner", "is not private to this user"),
        "Each job has a secret, and every connection proves that it knows it. The file with the secret is missing, "
        "can be read by other users, or holds another job's secret. A process left over from an earlier job fails "
        "here, too: it has a different secret. If mpirun, srun or torchrun has started the ranks, the secret may be "
        "in a file in ~/.horovod. Then you must own the file and the folder. No other user may write to either, or "
        "read the file.",
        (
            "Start ranks with horovodrun, and pass its environment on.",
            "End processes of earlier jobs.",
            "If you manage the file yourself: `chmod 600` it, and use the same one for all ranks and the launcher.",
        ),
    ),
    Explanation(
        "start-version",
        "The ranks run different versions of Horovod",
        _START,
        (
            "published a record that cannot be read",
            "published process sets that cannot be read",
            "published a digest that cannot be read",
            "published settings that cannot be read",
            "published settings of ranks that cannot be read",
            "sent an offer that cannot be read",
        ),
        "This rank cannot read what another rank sent at the start. All ranks must run the same version.",
        ("Check `horovodrun --version` in the environment of each rank.",),
    ),
    Explanation(
        "start-connection",
        "The ranks could not connect to each other or to the launcher",
        "StartError (a ValueError), from hvd.init(); RankLostError, from the first operation that sends data to a rank",
        (
            "could not join the job",
            "the ranks could not connect to each other",
            "is reached by all ranks",
            "could not open a data link with",
        ),
        "A connection failed, or ended before the start was complete. The message names the address. Connections for "
        "data between hosts open at their first use, so this error can also come from an operation.",
        (
            "If the launcher has ended, its last lines are the cause. If mpirun, srun or torchrun has started the "
            "ranks, rank 0 runs the rendezvous, where the ranks find each other: look at rank 0's output.",
            "Check that no firewall blocks connections between the hosts, or from a host to itself, on any port: each "
            "rank listens on a free port that its system chooses (sysctl net.ipv4.ip_local_port_range).",
            "If a host has several networks, choose one: `--network-interface eth0`.",
        ),
    ),
    Explanation(
        "start-transport",
        "The transport that HOROVOD_TRANSPORT asks for cannot be used",
        _START,
        ("cannot be used:", "but the ranks of this host cannot share memory"),
        "HOROVOD_TRANSPORT names one way to move data, and it does not fit these ranks: shm, for example, works only "
        "between ranks of one host.",
        (
            "Unset HOROVOD_TRANSPORT: the fastest way that works is chosen.",
            "`horovodrun --check-build` lists what is available.",
        ),
    ),
    Explanation(
        "start-resources",
        "The system did not give this rank what it needs to start",
        _START,
        (
            "raise the limits of processes",
            "raise the limit of open files",
            "cannot create an eventfd",
            "bytes of shared memory",
        ),
        "The system refused a thread, a file descriptor or shared memory. The message names it, with sizes.",
        (
            "Shared memory counts as memory of the container or batch job: raise that limit. The size of /dev/shm "
            "matters only if the container forbids memfd_create.",
            "Raise the limit that the message names: `ulimit -u`, `ulimit -n`, `ulimit -v`.",
            "Place fewer ranks on this host.",
        ),
    ),
    Explanation(
        "native-core",
        "The native library is missing, was built for another system, or belongs to another version",
        "ImportError, from hvd.init() or another call that needs the library; with JAX and MXNet at import",
        ("Horovod's native core is missing", "Horovod's native core cannot be opened"),
        "Python found the package, but not a library that fits it: a source tree on PYTHONPATH has no library, or two "
        "installed versions are mixed.",
        (
            "Install again in the environment that runs the script: `pip install --force-reinstall --no-deps .` in a "
            "clone, or with the wheel's file.",
        ),
    ),
    # calls
    Explanation(
        "not-initialized",
        "Horovod was used before hvd.init() or after hvd.shutdown()",
        "NotInitializedError (a ValueError)",
        (
            "Horovod has not been initialized; use hvd.init().",
            "Horovod was shut down; hvd.init() starts it again.",
            "joins a running job and is in no world yet",
        ),
        "rank(), size() and every operation need a running world. A child process started by the script has none: it "
        "is not a rank. A worker that joins an elastic job has none until its training function starts.",
        (
            "Call hvd.init() once at the start of the script, before anything else of hvd.",
            "Call hvd.shutdown() after the last use of hvd. At the end of a script it is not needed.",
            "In an elastic job, call operations only inside the function that is decorated with hvd.elastic.run.",
        ),
    ),
    Explanation(
        "invalid-request",
        "The arguments of a call are wrong on this rank",
        "InvalidRequestError (a ValueError); InvalidArgumentError in TensorFlow",
        ("expected ..., got ...",),
        "The call was refused before anything was sent. The other ranks, which may wait for this call, get a "
        "PeerRefusedError (a MismatchError) that names this rank. The job goes on if the script catches the error.",
        ("The message names the argument, the expected value and the value that it got.",),
    ),
    Explanation(
        "duplicate-name",
        "An operation of this name is still in flight on this rank",
        "DuplicateNameError (a ValueError); InvalidArgumentError in TensorFlow",
        ("again before the first call of that name had ended",),
        "A name identifies an operation across ranks, so only one operation of a name can be in flight at a time. A "
        "second call used the name before the first had completed.",
        (
            "Wait for the first: `hvd.synchronize(handle)`.",
            "Give each tensor a name of its own, or no name.",
        ),
    ),
    Explanation(
        "mismatch",
        "The ranks disagree about a tensor",
        "MismatchError (a HorovodInternalError); FailedPreconditionError in TensorFlow",
        ("the ranks disagree about `...`", "the ranks disagree about their gradients"),
        "All members must call an operation with the same dtype, shape and arguments; only allgather and alltoall "
        "take any number of rows. The message names the ranks that differ from the majority. All members of the "
        "operation get the same error, and the world keeps running.",
        (
            "Look for the last batch of an epoch: if it is smaller on one rank, drop it (`drop_last=True` in PyTorch, "
            "`drop_remainder=True` in TensorFlow).",
            "Look for a branch on hvd.rank() around the operation or around the model.",
            "Build the same model on all ranks.",
        ),
    ),
    Explanation(
        "refused",
        "Another rank's call of this operation was wrong",
        "PeerRefusedError (a MismatchError); FailedPreconditionError in TensorFlow",
        ("could not call",),
        "The message names the rank whose arguments were wrong, and says what was wrong with them. On that rank, the "
        "call itself raised an error, whose traceback shows the line. The call on this rank was right, but it cannot "
        "complete without that rank. The world keeps running.",
        (
            "Fix the call on the named rank.",
            "If only some ranks make the wrong call, look for a branch on hvd.rank(), or for data that differs.",
        ),
    ),
    Explanation(
        "joined",
        "A rank has joined, and the operation needs its data",
        "RankJoinedError (a MismatchError); FailedPreconditionError in TensorFlow",
        ("joined and ... no data to",),
        "A rank that has called hvd.join() takes part in allreduces with zeros only. Every other operation that it "
        "would be a member of fails until all ranks have called hvd.join().",
        (
            "Until all ranks have called hvd.join(), call only allreduce.",
            "Call broadcasts and gathers before hvd.join(), or after it on all ranks (`horovodrun --explain "
            "uneven-data`).",
        ),
    ),
    Explanation(
        "stall",
        "Some ranks wait for an operation that other ranks have not called",
        "a warning on rank 0's stderr",
        ("stall: ...",),
        "An operation starts when all members have called it. Here some ranks have waited for a long time. The report "
        "names the tensors, the missing ranks, and the line of the script at which the first four missing ranks are. "
        "The job keeps waiting: a rank may just be slow. Ranks that wait for each other in different calls are "
        "reported after ten seconds. If none of them can go on, the job ends (`horovodrun --explain deadlock`).",
        (
            "Read the stack of the missing rank: it shows what that rank does instead.",
            "Look for a branch on hvd.rank(): a collective inside `if hvd.rank() == 0:` is never called by the others.",
            "If ranks have different numbers of batches, see `horovodrun --explain uneven-data`.",
            "If a rank is slow for a good reason, raise HOROVOD_STALL_CHECK_TIME_SECONDS. To end such jobs, set "
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.",
        ),
    ),
    Explanation(
        "deadlock",
        "Ranks wait for each other in different calls",
        "DeadlockError (an AbortedError); UnknownError in TensorFlow",
        ("wait for each other in different calls, and none of them can go on",),
        "Each of these ranks waits for an operation that another of them has not called. No other thread can make the "
        "missing call. The stall report, which shows where the first four ranks are, comes after ten seconds, or "
        "after HOROVOD_STALL_CHECK_TIME_SECONDS if this is shorter. The job ends at most two seconds later. "
        "HOROVOD_STALL_CHECK_DISABLE=1 or HOROVOD_STALL_CHECK_TIME_SECONDS=0 turns off the report; the job then is "
        "not ended either. If a rank has another Python thread, or has used compiled operations, it could still go "
        "on: the job keeps waiting. An elastic job ends as well, because the calls would differ again.",
        (
            "Compare the calls in the message: blocking calls (those without `_async`) must come in the same order on "
            "all ranks.",
            "Look for a branch on hvd.rank(), or for a set or a dictionary that orders names differently on each rank.",
        ),
    ),
    Explanation(
        "gpu-stall",
        "A GPU has made no progress for a long time",
        "a warning on the stderr of each rank that waits",
        ("for its GPU to", "compute the input of", "for a call of NCCL to return"),
        "The rank has called the operation, but its GPU has not finished. If the report says `to compute the input "
        "of`, a kernel of this rank's script hangs or is slow. If it says `to end` or `for a call of NCCL`, this rank "
        "has done its part, and NCCL waits for another rank or the network. The job waits for "
        "HOROVOD_NCCL_TIMEOUT_SECONDS and then ends.",
        (
            "Look for the rank whose report says `to compute the input of`. Run its script with "
            "CUDA_LAUNCH_BLOCKING=1 to see which kernel hangs.",
            "If all of them wait for NCCL, look at the network between the hosts. NCCL_DEBUG=INFO says more.",
            "If a step takes that long for a good reason, raise HOROVOD_STALL_CHECK_TIME_SECONDS and "
            "HOROVOD_NCCL_TIMEOUT_SECONDS.",
        ),
    ),
    Explanation(
        "rank-lost",
        "A rank died, froze, or cannot be reached",
        "RankLostError (a HorovodInternalError); UnknownError in TensorFlow",
        (
            "died without leaving the job",
            "is frozen: it has",
            "has given no sign of life for",
            "was stopped by a signal",
        ),
        "The other ranks noticed that a rank is gone: its process has ended or is frozen, or its host does not "
        "answer. All ranks get this error. The launcher ends the job and names the first cause; an elastic job goes "
        "on without that rank.",
        (
            "Read the launcher's last lines and the lost rank's output.",
            "If the message says `state D`, the process waits in the kernel, most likely for a disk or a network file "
            "system.",
            "If you stop a rank on purpose by SIGSTOP, set HOROVOD_FROZEN_TIMEOUT_SECONDS=0; for a debugger see "
            "`horovodrun --explain debug`. HOROVOD_LOST_TIMEOUT_SECONDS limits how long another host may be silent.",
        ),
    ),
    Explanation(
        "device-lost",
        "A rank's GPU has failed",
        "DeviceLostError (a RankLostError); UnknownError in TensorFlow",
        ("this process cannot use the GPU any more",),
        "A kernel on the rank's GPU has failed, or the GPU itself has. CUDA then refuses every later call of that "
        "process, so the world has ended for all ranks. The message has the rank and CUDA's error.",
        (
            "CUDA errors 700, 710, 715 to 719: a kernel of the script, most likely. Run it with CUDA_LAUNCH_BLOCKING=1 "
            "to see which.",
            "Other errors: look at `dmesg | grep Xid` and `nvidia-smi` on the rank's host. A GPU that has fallen off "
            "the bus needs a restart of the host.",
            "Start the job again: the process that lost the GPU cannot use it any more. An elastic job replaces that "
            "worker.",
        ),
    ),
    Explanation(
        "rank-left",
        "A rank ended its script or shut down while others still waited for it",
        "RankLeftError (a RankLostError); UnknownError in TensorFlow; the last lines of horovodrun",
        ("has left the job (it shut down or exited) while others wait for it", "while other ranks still waited for it"),
        "All ranks must make the same number of collective calls. One rank ended while others still had calls to make.",
        (
            "Check that all ranks make the same number of steps: leave out the rows that do not divide evenly among "
            "the ranks, or give Keras' fit the same steps_per_epoch on all ranks.",
            "PyTorch, TensorFlow, JAX and MXNet can also train on uneven data, by hvd.join() (`horovodrun "
            "--explain uneven-data`).",
            "Look for an early `return`, `break` or `sys.exit()` that only some ranks reach.",
            "Call hvd.shutdown() when all ranks have made their last call. At the end of a script it is not needed.",
        ),
    ),
    Explanation(
        "aborted",
        "The job was ended on purpose",
        "AbortedError (a HorovodInternalError); UnknownError in TensorFlow",
        (
            "(the stall limit is reached)",
            "the timeout of torch.distributed",
            "(HOROVOD_NCCL_TIMEOUT_SECONDS",
        ),
        "There are three causes: a rank aborted the job; an operation waited longer than "
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS or the timeout of torch.distributed; a GPU took longer than "
        "HOROVOD_NCCL_TIMEOUT_SECONDS. The message says who and why.",
        (
            "For the stall limit or the timeout: `horovodrun --explain stall`.",
            "For a GPU: `horovodrun --explain gpu-stall`.",
        ),
    ),
    Explanation(
        "not-running",
        "An operation outlived the shutdown of this rank",
        "NotRunningError (a HorovodInternalError); UnknownError in TensorFlow",
        ("this rank has shut down",),
        "hvd.shutdown() or dist.destroy_process_group() was called while the operation was in flight, or an old handle "
        "or process group was used after it.",
        ("Wait for all operations before hvd.shutdown(). At the end of a script no call of it is needed.",),
    ),
    Explanation(
        "out-of-memory",
        "A rank has no memory for an operation",
        "OutOfMemoryError (a MemoryError); ResourceExhaustedError in TensorFlow",
        ("has not enough memory", "give the job more memory, or gather less at once"),
        "The result of an allgather is as large as all ranks' inputs together; that of an alltoall can be, if the "
        "splits are uneven. The message gives the size in bytes if it is known. All members of the operation get an "
        "error. If host memory ran out, the world goes on. If GPU memory ran out, the world has ended.",
        (
            "Gather less at once, or on fewer ranks (process sets).",
            "Give the job more memory, or place fewer ranks on this host.",
            "On a GPU, limit the memory pool of the framework (`horovodrun --explain gpu`).",
        ),
    ),
    Explanation(
        "unavailable",
        "Horovod could not get something that the operation needs",
        "HorovodInternalError; a warning if the operation goes on without it",
        ("cannot open the timeline", "NCCL cannot carry the tensors", "no GPU can be used"),
        "The system refused a file, a descriptor or a thread, or NCCL or the CUDA driver cannot be used. The message "
        "names it and the reason.",
        (
            "Check the path or the limit that the message names.",
            "If it names NCCL or CUDA: `horovodrun --explain gpu` says what is needed, and what to do about each "
            "message.",
        ),
    ),
    Explanation(
        "forked",
        "A forked child of a rank has called Horovod",
        "HorovodInternalError",
        ("this process was forked from a rank: it is not part of the job",),
        "A fork copies a rank's memory, but the copy is not a rank: it must not use the rank's connections.",
        (
            "Call hvd functions in the parent only.",
            "Start child processes by `spawn`: `multiprocessing.get_context('spawn')`.",
        ),
    ),
    Explanation(
        "internal",
        "An operation failed for a reason that this library did not expect",
        "HorovodInternalError",
        ("the native core failed with code", "cannot be read"),
        "Either memory that ranks share was damaged, or this is a defect of Horovod.",
        (
            "Check that all ranks run the same version: `horovodrun --version`.",
            "Report it, with the whole output and what `horovodrun --check-build` prints.",
        ),
    ),
    *EXPLANATIONS_OF_JOBS,
    *EXPLANATIONS_OF_ELASTIC,
)
