# SPDX-License-Identifier: Apache-2.0
"""horovodrun with plain commands: output, exit codes, identity, secrets."""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.jobs import Job, abreast, our_environment, python, run_job

from horovod.launcher.host.lines import GREETING, MAX_LINE_BYTES, line
from horovod.launcher.placement.base import AGENT_COMMAND
from horovod.world.interpreter import import_command, python_command


def test_each_line_carries_its_rank_and_stream(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "2", python("print('out', rank); print('err', rank, file=sys.stderr)"))
    assert done.code == 0
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:out 0", "[1]<stdout>:out 1"]
    assert sorted(done.said.splitlines()) == ["[0]<stderr>:err 0", "[1]<stderr>:err 1"]


def test_characters_that_arrive_in_pieces_and_bytes_that_are_none_come_through(tmp_path: Path) -> None:
    code = "for piece in (b'\\xc3', b'\\xa4 10%\\r', b'\\n\\xff', b'end'): os.write(1, piece)"
    done = run_job(tmp_path, "-np", "1", "--output-filename", str(tmp_path / "kept"), python(code))
    # The carriage return ends a line, the newline behind it belongs to it, and the last line has no end of its own.
    assert done.stdout == "[0]<stdout>:ä 10%\r\n[0]<stdout>:\udcffend\n"
    assert (tmp_path / "kept" / "rank.0" / "stdout").read_bytes() == b"\xc3\xa4 10%\r\n\xffend"


def test_output_files_have_padded_ranks(tmp_path: Path) -> None:
    code = "print('out', rank); print('err', rank, file=sys.stderr)"
    done = run_job(tmp_path, "-np", "11", "--output-filename", "logs", python(code))
    assert done.code == 0
    assert sorted(os.listdir(tmp_path / "logs")) == [f"rank.{rank:02d}" for rank in range(11)]
    for rank in range(11):
        assert (tmp_path / "logs" / f"rank.{rank:02d}" / "stdout").read_text() == f"out {rank}\n"
        assert (tmp_path / "logs" / f"rank.{rank:02d}" / "stderr").read_text() == f"err {rank}\n"


def test_nothing_of_a_flood_is_lost(tmp_path: Path) -> None:
    lines = 60_000
    done = run_job(tmp_path, "-np", "2", python(f"for i in range({lines}): print(i, 'x' * 50)"))
    for rank in range(2):
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}]<stdout>:{i} {'x' * 50}" for i in range(lines)]


def test_identity_and_settings_reach_the_ranks(tmp_path: Path) -> None:
    code = (
        "import json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('HOROVOD', 'PYTHONUN'))}))"
    )
    flags = ["--fusion-threshold-mb", "32", "--cycle-time-ms", "2.5", "--no-stall-check", "--log-level", "DEBUG"]
    done = run_job(tmp_path, "-np", "2", "-H", "localhost:4", *flags, python(code))
    ranks = sorted(
        (json.loads(line.partition(":")[2]) for line in done.stdout.splitlines()), key=lambda e: e["HOROVOD_RANK"]
    )
    assert len(ranks) == 2  # -np counts, not the slots
    for rank, env in enumerate(ranks):
        expected = {
            "RANK": str(rank),
            "SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_SIZE": "2",
            "CROSS_RANK": "0",
            "CROSS_SIZE": "1",
            "HOSTNAME": "localhost",
            "CONTROLLER": "gloo",
            "CPU_OPERATIONS": "gloo",
            "GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "FUSION_THRESHOLD": str(32 << 20),
            "CYCLE_TIME": "2.5",
            "STALL_CHECK_DISABLE": "1",
            "LOG_LEVEL": "debug",
        }
        assert {name: env[f"HOROVOD_{name}"] for name in expected} == expected
        assert env["PYTHONUNBUFFERED"] == "1"


def test_the_secret_is_in_no_command_line_and_no_environment(tmp_path: Path) -> None:
    code = "print(open(os.environ['HOROVOD_SECRET_FILE'], 'rb').read().hex()); ready(); signal.pause()"
    with Job(tmp_path, "-np", "1", python(code)) as job:
        (secret,) = job.wait_for_line(r"stdout>:([0-9a-f]{64})$")
        job.wait_ready(1)
        raw = bytes.fromhex(secret[1])
        pids = job.pids()
        assert len(pids) == 3  # horovodrun, the agent, the rank
        for pid in pids:
            for name in ("cmdline", "environ"):
                content = Path(f"/proc/{pid}/{name}").read_bytes()
                assert raw not in content and secret[1].encode() not in content
        job.process.terminate()
        job.wait()


def test_ranks_behind_a_wrapper_that_closes_descriptors_still_meet(tmp_path: Path) -> None:
    inner = (
        "from horovod.world import bootstrap; from horovod.settings import Settings; "
        "print(bootstrap.connect(Settings.from_environment()).transport)"
    )
    done = run_job(
        tmp_path, "-np", "2", python(f"import subprocess; subprocess.run([sys.executable, '-c', {inner!r}])")
    )
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:shm", "[1]<stdout>:shm"], done


def test_arguments_of_the_command_are_not_taken_for_flags(tmp_path: Path) -> None:
    words = ["-np", "7", "--verbose", "--", "--version", "a b"]
    done = run_job(tmp_path, "-np", "1", python("print(sys.argv[1:])"), words)
    assert done.stdout == f"[0]<stdout>:{words}\n"


def test_a_users_file_cannot_stand_in_for_a_module_of_the_launcher(tmp_path: Path) -> None:
    """Whatever part of the standard library it is called like: helpers do not find the working directory."""
    # horovodrun itself, as a console script does, starts without the working directory; `-m` would not.
    start = ["-c", "import sys; sys.path.remove(''); from horovod.launcher.cli import main; sys.exit(main())"]
    for name in (*sorted(sys.stdlib_module_names - {"sys"}), "horovod", "numpy"):
        (tmp_path / f"{name}.py").write_text("import os; os.write(2, b'the wrong module'); os._exit(9)\n")
    env = our_environment(TMPDIR=str(tmp_path))
    python_of_rank = [sys.executable, "-I", "-c", "print('fine')"]
    done = subprocess.run(
        [sys.executable, *start, "-np", "1", *python_of_rank],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0]<stdout>:fine\n", "")
    for command in (import_command("horovod.core"), [*python_command("horovod.bench"), "--help"]):
        with_empty_entry = {**env, "PYTHONPATH": env["PYTHONPATH"] + os.pathsep}
        done = subprocess.run(command, cwd=tmp_path, env=with_empty_entry, capture_output=True, text=True)
        assert done.returncode == 0, done


def test_a_job_inside_of_an_elastic_one_is_not_of_it(tmp_path: Path) -> None:
    env = {"HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_WORKER": "0", "HOROVOD_ELASTIC_JOINS": "1"}
    code = "print([name for name in os.environ if 'ELASTIC' in name])"
    assert run_job(tmp_path, "-np", "1", python(code), env=env).stdout == "[0]<stdout>:[]\n"


def test_an_agent_whose_events_have_no_reader_says_that_the_launcher_is_gone(tmp_path: Path) -> None:
    """Even if the pipe of its orders is still open: a killed launcher closes one before the other."""
    reader, writer = os.pipe()
    orders, kept_open = os.pipe()
    os.close(reader)
    env = our_environment(TMPDIR=str(tmp_path))
    done = subprocess.run(AGENT_COMMAND, env=env, stdin=orders, stdout=writer, stderr=subprocess.PIPE, text=True)
    for descriptor in (writer, orders, kept_open):
        os.close(descriptor)
    text = f"horovodrun: the launcher (process {os.getpid()}) was killed; all ranks have been ended\n"
    assert (done.returncode, done.stderr) == (0, text)


def test_an_agent_takes_an_order_of_any_length(tmp_path: Path) -> None:
    question = {
        "secret": "00" * 32,
        "command": "sh",
        "directory": str(tmp_path),
        "path": os.environ["PATH"],
        "addresses": [],
        "port": 0,
        "silence_s": 0.0,
        "time_s": None,
        "hints": {"program": "", "interface": ""},
        "temporary": "",
        "network_interface": "",
    }
    order = {
        "command": ["sh", "-c", "echo $HOROVOD_SIZE $HOROVOD_RANK $HOME $USER"],
        "directory": str(tmp_path),
        "environment": {"PATH": os.environ["PATH"], "USER": "somebody"},
        "own_environment": ["HOME"],
        "ranks": {"common": {"HOROVOD_SIZE": "2"}, "own": ["HOROVOD_RANK"], "ranks": [[0, "0"], [1, "1"]]},
        "stays": False,
        "slots": 1,
        "grace_s": 3.0,
        "address": None,
        "padding": "x" * (MAX_LINE_BYTES + 1),
    }
    agent = subprocess.Popen(
        AGENT_COMMAND,
        env=our_environment(TMPDIR=str(tmp_path), HOME="/own", USER="nobody"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert agent.stdin is not None and agent.stdout is not None
    agent.stdin.write(line(order="prepare", **question) + line(order="start", **order))
    agent.stdin.flush()
    said = agent.stdout.read().partition(GREETING)[2]  # to its end: the agent has ended
    events = list(map(json.loads, said.splitlines()))
    assert agent.wait() == 0
    agent.stdin.close()
    assert sorted(event["text"] for event in events if event["event"] == "output" and event["text"]) == [
        "2 0 /own somebody\n",
        "2 1 /own somebody\n",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["-np", "0", "ls"], 2, "'0' is not a number of processes"),
        (["-np", "two", "ls"], 2, "'two' is not a number of processes"),
        (["ls"], 2, "-np, the number of processes, is missing"),
        (["-np", "2"], 2, "there is no command to run"),
        (["-np", "2", "no-such-command"], 127, "command not found: no-such-command"),
        (["-np", "2", "./train.py"], 126, "hint: horovodrun ... python ./train.py"),
        (
            ["-np", "3", "-H", "localhost:2", "ls"],
            2,
            "3 ranks were asked for, but the hosts have 2 slots (localhost:2)",
        ),
        (
            ["-np", "2", "-H", "a:2", "--hostfile", "hosts", "ls"],
            2,
            "both -H and --hostfile were given: expected one\nhint: leave one of them out",
        ),
        (["-np", "2", "-H", "", "ls"], 2, "-H names no host\nhint: is a variable empty?"),
        (["-np", "2", "--hostfile", "", "ls"], 2, "--hostfile names no file\nhint: is a variable empty?"),
        (["-np", "2", "--hostfile", "hosts", "ls"], 2, "--hostfile hosts: No such file or directory"),
        (["-np", "2", "--hostfile", "train.py", "ls"], 2, "train.py names no host\nhint: write a line for each host"),
        (["-np", "2", "-p", "70000", "ls"], 2, "'70000' is not a port; expected a number from 1 to 65535"),
        (["-np", "2", "-i", "no-key", "ls"], 2, "--ssh-identity-file no-key: there is no such file"),
        (["-np", "2", "-H", "localhost:", "ls"], 2, "'localhost:' is not a host\nhint: write name:slots"),
        (["-np", "2", "-H", "localhost", "ls"], 2, "2 ranks were asked for, but the hosts have 1 slot (localhost:1)"),
        (["-np", "2", "--output-filename", "train.py", "ls"], 2, "hint: it names a folder"),
        (["-np2", "no-such-command"], 127, "command not found: no-such-command"),
        (["-np", "2", "python train.py"], 127, "hint: give the command as words, without quotes around all of it"),
        (["-np", "2", "--min-np", "3", "ls"], 2, "--min-np 3 is more than -np 2, the slots that the job needs"),
        (["-np", "2", "--nonsense", "ls"], 2, "there is no flag --nonsense\nhint: horovodrun --help lists the flags"),
        (["-np", "2", "--host-file", "x", "ls"], 2, "there is no flag --host-file\nhint: --hostfile is the nearest;"),
        (["-np", "2", "--cycle-time-ms", "-1", "ls"], 2, "--cycle-time-ms='-1': expected a number, 0 or more"),
        (["-np", "2", "--timeline-filename", "none/t.json", "ls"], 2, "--timeline-filename none/t.json: No such file"),
        (["-np", "2", "--timeline-filename", ".", "ls"], 2, "--timeline-filename .: Is a directory\nhint: "),
        (["-np", "2", "--network-interface", "none9", "ls"], 2, "no network interface 'none9'"),
        (["python", "train.py", "-np", "2"], 2, "hint: flags go before the command: horovodrun -np 2 python train.py"),
        (["python", "train.py", "-np4"], 2, "is missing: `-np4` stands behind the command"),
        (["-np", "2", "./folder"], 126, "./folder is a folder, not a program"),
        (["-np", "2", "folder"], 127, "command not found: folder"),
        (["-np", "2", "--start-timeout", "python"], 2, "horovodrun: --start-timeout='python': expected a number, 0.1"),
        (["-np", "python"], 2, "horovodrun: -np/--num-proc: 'python' is not a number of processes"),
        (["-np", "2", "--transport", "smh", "ls"], 2, "hint: shm is the nearest; there are auto, "),
        (["--explain", "deadlok"], 2, "there is no code and no page 'deadlok'\nhint: did you mean deadlock? "),
        # More than the kernel has process ids, however it is set.
        (
            ["-np", "1000000000", "ls"],
            2,
            "1000000000 ranks on this machine were asked for, but it allows at most ",
        ),
        (
            ["-np", "2", "--output-filename", "train.py/x", "ls"],
            2,
            "train.py/x: train.py/x/rank.0: Not a directory",
        ),
    ],
)
def test_a_command_line_that_cannot_run_is_one_clear_error(
    tmp_path: Path, arguments: list[str], code: int, expected: str
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "folder").mkdir()
    done = run_job(tmp_path, *arguments)
    assert (done.code, done.stdout) == (code, "")
    assert done.stderr.startswith("horovodrun: ") and expected in done.stderr
    assert "Traceback" not in done.stderr and "usage:" not in done.stderr


def test_a_working_directory_that_was_removed_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = [sys.executable, "-m", "horovod.launcher", "-np", "1", "ls"]
    done = subprocess.run(
        ["sh", "-c", 'cd gone && rmdir ../gone && exec "$@"', "sh", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=our_environment(),
    )
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0] == (
        "horovodrun: the working directory, in which the ranks start, cannot be used: No such file or directory"
    )
    assert lines[1:] == ["hint: was it removed or renamed? Change to a folder that exists"]


def test_a_rank_that_does_not_call_init_in_time_is_the_cause(tmp_path: Path) -> None:
    then = "os.environ['HOROVOD_START_TIMEOUT'] = '0.5'\nif rank == 1: signal.pause()\nhvd.init()"
    code = f"import horovod.core as hvd\n{abreast(3, tmp_path)}{then}"
    done = run_job(tmp_path, "-np", "3", python(code))
    assert done.code == 1
    last = done.stderr[done.stderr.rindex("horovodrun: ") :].splitlines()
    assert last[0] == "horovodrun: rank 1 on host localhost did not call init in time, and was ended"
    assert last[1].endswith("waited 0.5 s in init for rank 1 of 3, which has not called init; here: ranks 0, 2"), last
    assert last[2].startswith("hint: look at its output")
    assert last[3:] == ["more: horovodrun --explain start-timeout"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("HOROVOD_CYCLE_TIME", "soon", "HOROVOD_CYCLE_TIME='soon': expected a number, 0 or more\n"),
        ("HOROVOD_TRANSPORT", "nonsense", "HOROVOD_TRANSPORT=nonsense cannot be used: "),
        ("HOROVOD_TRANSPORT", "mpi", "HOROVOD_TRANSPORT=mpi cannot be used: mpi4py is not installed"),
        ("HOROVOD_CONTROLLER", "mpi", "HOROVOD_CONTROLLER=mpi needs ranks that mpirun starts\nhint: "),
        ("HOROVOD_CPU_OPERATIONS", "mpi", "HOROVOD_CPU_OPERATIONS=mpi needs ranks that mpirun starts\nhint: "),
    ],
)
def test_a_bad_variable_is_named_before_anything_is_started(
    tmp_path: Path, variable: str, value: str, said: str
) -> None:
    done = run_job(tmp_path, "-np", "2", "ls", env={variable: value})
    assert (done.code, done.stdout) == (2, "") and done.stderr.startswith(f"horovodrun: {said}"), done


def test_verbose_says_what_runs_where(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "2", "--verbose", "--network-interface", "lo", python("pass"))
    assert "horovodrun: rendezvous at 127.0.0.1:" in done.stderr
    assert "horovodrun: rank 1 on host localhost: pid " in done.stderr


@pytest.mark.thorough  # it imports every framework
def test_check_build(tmp_path: Path) -> None:
    done = run_job(tmp_path, "--check-build")
    assert done.code == 0 and "Available Frameworks:" in done.stdout and "    [ ] MXNet" in done.stdout
    is_there = importlib.util.find_spec("jax") is not None
    assert (f"    [X] JAX (jax {importlib.metadata.version('jax')})" if is_there else "    [ ] JAX") in done.stdout
    reasons = done.stdout.partition("Why not:")[2]
    assert "    MXNet: ModuleNotFoundError: No module named 'mxnet'" in reasons, done.stdout
    if "    [ ] NCCL" in done.stdout:
        assert "    NCCL cannot be used: " in reasons, done.stdout


def check_build(folder: Path, without: Mapping[str, str], until: str = "") -> str:
    """What --check-build prints if these modules have other contents.

    `until`: a pattern of stderr; when a line of it has come, the file `said` appears.
    """
    for name, text in without.items():
        (folder / f"{name}.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    env.pop("KERAS_BACKEND", None)
    command = [sys.executable, "-m", "horovod.launcher", "--check-build"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None and started.stderr is not None
        if until:
            assert any(re.search(until, line) for line in started.stderr)
            (folder / "said").touch()
        stdout = started.communicate(timeout=600)[0]
    assert started.returncode == 0
    return stdout


@pytest.mark.thorough
def test_check_build_finds_keras_by_any_of_its_backends(tmp_path: Path) -> None:
    pytest.importorskip("keras", reason="not run: keras is not installed")
    missing = "raise ImportError"
    text = check_build(tmp_path, {"tensorflow": missing, "jax": missing})
    assert "    [X] Keras" in text and "    [ ] TensorFlow" in text, text
    assert "    [ ] Keras" in check_build(tmp_path, {"torch": missing})


def test_check_build_tries_several_frameworks_at_once_and_says_why_each_is_missing(tmp_path: Path) -> None:
    """Each of two waits until the other one is imported, too, and horovodrun has said that it imports one."""
    waiting = """
import pathlib, time
folder = pathlib.Path(__file__).parent
(folder / f"{__name__}.begun").touch()
while not all((folder / name).exists() for name in ("tensorflow.begun", "torch.begun", "said")):
    time.sleep(0.01)
(folder / f"{__name__}.met").touch()
raise ImportError
"""
    modules = {"tensorflow": waiting, "torch": waiting, "jax": "raise ImportError('too old')"}
    text = check_build(tmp_path, modules, "^horovodrun: importing (TensorFlow|PyTorch) [.]{3}$")
    assert "    [ ] JAX" in text and "    [X] Gloo (" in text  # scripts look for it
    assert "    JAX: ImportError: too old" in text.partition("Why not:")[2], text
    assert {path.name for path in tmp_path.glob("*.met")} == {"tensorflow.met", "torch.met"}


@pytest.mark.parametrize("flag", ["--check-build", "--version", "--help"])
def test_a_reader_of_only_the_first_line_is_no_error(tmp_path: Path, flag: str) -> None:
    for framework in ("torch", "tensorflow", "jax"):  # not to wait until they are imported
        (tmp_path / f"{framework}.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "horovod.launcher", flag]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, re.sub("horovodrun: importing .*\n", "", done.stderr)) == (0, "")  # of a busy machine


def test_a_reader_that_leaves_ends_the_job(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "2", python("ready()\nwhile True: print('x' * 1000)")) as job:
        job.wait_ready(2)
        assert job.process.stdout is not None
        os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), job.process.stdout.fileno())
        job.assert_gone()
        assert job.process.wait() == 128 + 13
        assert "Traceback" not in job.shown() and "Exception" not in job.shown()


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">&-", 0, ""),
        (">/dev/full", 1, "cannot write to stdout: No space left on device; all ranks have been ended"),
    ],
)
def test_an_output_that_takes_nothing_needs_no_traceback(
    tmp_path: Path, redirection: str, code: int, said: str
) -> None:
    command = [sys.executable, "-m", "horovod.launcher", "-np", "1", *python("print('out', rank)")]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=our_environment(OMP_NUM_THREADS="1"),
    )
    assert done.returncode == code, done.stderr
    assert done.stderr == (f"horovodrun: {said}\n" if said else "")


def test_flags_without_effect_are_told_and_the_job_runs(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("autotune: {enabled: true}\nparams: {cycle_time_ms: 4}\n")
    flags = ["-np", "2", "--config-file", "config.yaml", "--gloo-timeout-seconds", "2"]
    done = run_job(tmp_path, flags, python("print(os.environ['HOROVOD_CYCLE_TIME'])"))
    assert (done.code, sorted(done.stdout.splitlines())) == (0, ["[0]<stdout>:4.0", "[1]<stdout>:4.0"]), done
    timeout, tuning = done.said.splitlines()
    assert timeout.startswith("horovodrun: --gloo-timeout-seconds has no effect: ")
    assert tuning.startswith("horovodrun: autotune.enabled has no effect: ")


def test_lines_carry_the_time_if_asked_for(tmp_path: Path) -> None:
    """In ISO 8601: those of ranks, of horovodrun, and in the files."""
    code = "os.write(1, b'o'); print('ut'); print('err', file=sys.stderr); sys.exit(3)"
    done = run_job(tmp_path, "-np", "1", "-prefix-timestamp", "--output-filename", "logs", python(code))
    kept = {name: (tmp_path / "logs" / "rank.0" / name).read_text() for name in ("stdout", "stderr")}
    lines = [done.stdout, *done.stderr.splitlines(keepends=True)[:2], kept["stdout"], kept["stderr"]]
    bodies = [
        "[0]<stdout>:out\n",
        "[0]<stderr>:err\n",
        "horovodrun: the last lines of rank 0's stderr:\n",
        "out\n",
        "err\n",
    ]
    for shown, body in zip(lines, bodies, strict=True):
        stamp, _, rest = shown.partition(" ")
        assert rest == body, done
        assert datetime.datetime.fromisoformat(stamp).tzinfo is not None


def test_what_an_earlier_run_has_written_is_kept(tmp_path: Path) -> None:
    for run in ("1", "2", "3"):
        for kind in ([], ["--min-np", "1"]):
            run_job(tmp_path, "-np", "1", *kind, "--output-filename", f"logs{len(kind)}", python(f"print({run})"))
    for folder in ("logs0", "logs2"):
        kept = {path.name: path.read_text() for path in (tmp_path / folder / "rank.0").iterdir() if path.stat().st_size}
        assert kept == {"stdout": "3\n", "stdout.1": "1\n", "stdout.2": "2\n"}


def test_a_full_disk_for_the_files_of_the_output_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "logs" / "rank.1").mkdir(parents=True)
    (tmp_path / "logs" / "rank.1" / "stdout").symlink_to("/dev/full")
    done = run_job(tmp_path, "-np", "2", "--output-filename", "logs", python("for i in range(9): print(i, rank)"))
    assert done.code == 0, done
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:{i} {rank}" for rank in range(2) for i in range(9)]
    assert done.said == (
        "horovodrun: warning: cannot write to logs/rank.1/stdout: No space left on device; the ranks' output now "
        "goes to the terminal only, to no file\nhint: the job goes on; --output-filename names the folder\n"
    )
