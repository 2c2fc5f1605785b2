# SPDX-License-Identifier: Apache-2.0
"""What is run to start an agent on another host, word for word, and what its failures are taken for."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from horovod.launcher.job import supervision
from horovod.launcher.job.spec import Job
from horovod.launcher.placement import PLACEMENTS, Placement, PlacementOptions, placement_for
from horovod.launcher.placement.remote import REMOTE_AGENT_COMMAND, RemotePlacement
from horovod.world import interpreter
from horovod.world.network import ANY, own_addresses

AGENT = ["env", *REMOTE_AGENT_COMMAND]
OPTIONS = PlacementOptions()


def placement(name: str) -> RemotePlacement:
    (found,) = [one for one in PLACEMENTS if one.name == name]
    assert isinstance(found, RemotePlacement)
    return found


@pytest.mark.parametrize("name", ["ssh", "srun", "blaunch", "rsh-agent"])
def test_the_chosen_way_is_for_other_hosts_alone(name: str) -> None:
    def at(host: str) -> Placement | None:
        return placement_for(host, PlacementOptions(start_with=name))

    assert at("elsewhere") is placement(name)
    here = at("localhost")
    assert here is not None and here.name == "local"


@pytest.mark.parametrize(
    ("hosts", "local"),
    [(["localhost"], True), (["localhost", "elsewhere"], False), (["elsewhere"], False), (None, False)],
)
def test_ranks_of_this_machine_meet_where_no_other_machine_reaches_them(hosts: list[str] | None, local: bool) -> None:
    address, addresses = supervision._where_to_meet(Job([], [], "/", {}), hosts)
    assert (address, addresses) == (("127.0.0.1", []) if local else (ANY, own_addresses()))


def test_ssh() -> None:
    command = placement("ssh").command("b", {"SECRET": "x"}, PlacementOptions(2222, "key"))
    assert command[:3] == ["ssh", "-T", "-x"] and command[-7:-3] == ["-p", "2222", "-i", "key"]
    assert command[-3:] == ["--", "b", shlex.join(AGENT)]


def test_srun_starts_one_task_beside_others_with_all_cores_and_little_environment() -> None:
    slurm = placement("srun")
    environment = {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "4", "PATH": "/bin", "SECRET": "x"}
    assert slurm.command("host1", environment, OPTIONS) == [
        *("srun", "--jobid=12", "--nodelist=host1", "--nodes=1", "--ntasks=1"),
        *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"),
        *("--export=ALL", "--chdir=/", "--job-name=horovodrun", "--quiet"),
        *REMOTE_AGENT_COMMAND,
    ]
    assert slurm.own_environment(environment) == {"PATH": "/bin"}


def test_blaunch() -> None:
    assert placement("blaunch").command("b", {}, OPTIONS) == ["blaunch", "b", *map(shlex.quote, AGENT)]
    spaced = placement("blaunch").command("b", {"PYTHONPATH": "/a b"}, OPTIONS)
    assert "'PYTHONPATH=/a b'" in spaced  # its other end is a shell


def test_only_this_package_and_the_standard_library_start_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the user's files, another horovod, or obsolete copies of modules that lie beside this one."""
    wrong = "raise SystemExit('the wrong module')\n"
    for name in ("site/selectors.py", "site/typing.py", "here/json.py", "here/horovod.py", "other/horovod/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(wrong)
    host = tmp_path / "site" / "horovod" / "launcher" / "host"
    host.mkdir(parents=True)
    for folder in (host, host.parent, host.parent.parent):
        (folder / "__init__.py").touch()
    (tmp_path / "site" / "beside.py").touch()
    (host / "agent.py").write_text("import sys, json, selectors, typing, beside\nprint('fine', *sys.argv[1:])\n")
    monkeypatch.setattr(interpreter, "package_root", lambda: str(tmp_path / "site"))
    done = subprocess.run(
        [*interpreter.python_command("horovod.launcher.host.agent"), "a b"],
        cwd=tmp_path / "here",
        env={"PYTHONPATH": str(tmp_path / "other")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine a b\n", "")


def test_what_starts_an_agent_is_one_line_without_what_csh_would_change() -> None:
    assert not set("\n!") & set(REMOTE_AGENT_COMMAND[-1])


# As the MPI operator writes it.
KUBEXEC = """#!/bin/sh
set -x
POD_NAME=$1
shift
/opt/kube/kubectl exec ${POD_NAME} --container mpi -- /bin/sh -c "$*"
"""


def test_kubexec_is_called_with_standard_input(tmp_path: Path) -> None:
    script = tmp_path / "kubexec.sh"
    script.write_text(KUBEXEC)
    environment = {"OMPI_MCA_plm_rsh_agent": str(script)}
    assert placement("rsh-agent").command("job-worker-1", environment, OPTIONS) == [
        *("/opt/kube/kubectl", "exec", "-i", "--container", "mpi", "job-worker-1", "--", "/bin/sh", "-c"),
        shlex.join(AGENT),
    ]


@pytest.mark.parametrize("text", ['#!/bin/sh\nexec ssh "$@"\n', KUBEXEC.replace("--container mpi", "$FLAGS"), None])
def test_another_rsh_agent_is_called_as_mpirun_does(tmp_path: Path, text: str | None) -> None:
    script = tmp_path / "agent"
    if text is not None:
        script.write_text(text)
    environment = {"OMPI_MCA_plm_rsh_agent": str(script)}
    assert placement("rsh-agent").command("b", environment, OPTIONS) == [str(script), "b", shlex.join(AGENT)]
    with_flags = {"OMPI_MCA_plm_rsh_agent": "rsh -l me"}
    assert placement("rsh-agent").command("b", with_flags, OPTIONS) == ["rsh", "-l", "me", "b", shlex.join(AGENT)]


@pytest.mark.parametrize(
    ("name", "code", "said", "text", "hint"),
    [
        ("ssh", 255, "Permission denied (publickey).", "cannot be reached by ssh: Permission denied", "ssh-copy-id b"),
        ("ssh", 127, "env: nothing", f"has no Python at {sys.executable}", "at the same path"),
        (
            "srun",
            1,
            "srun: error: Unable to create step for job 12: Invalid job id specified",
            "cannot be reached by srun: srun: error: Unable",
            "the allocation has ended",
        ),
        ("srun", 1, "srun: error: b: is down", "cannot be reached by srun: ", "`srun --overlap --nodes=1 --ntasks=1 "),
        (
            "srun",
            2,
            f"slurmstepd: error: execve(): {sys.executable}: No such file or directory\n"
            "srun: error: b: task 0: Exited with exit code 2",  # either may come first
            f"has no Python at {sys.executable}",
            "at the same path",
        ),
        (
            "srun",
            1,
            "No module named 'horovod'\nsrun: error: b: task 0: Exited with exit code 1",
            "cannot import horovod: ",
            "install hvd",
        ),
        ("blaunch", 255, "blaunch: not in a job", "cannot be reached by blaunch: blaunch: not", "`blaunch b true`"),
        (
            "rsh-agent",
            1,
            'Error from server (NotFound): pods "b" not found',
            "cannot be reached by rsh-agent: Error from server",
            "`$OMPI_MCA_plm_rsh_agent b true` must work",
        ),
        ("rsh-agent", 127, "command terminated with exit code 127", "has no Python at", "at the same path"),
    ],
)
def test_a_failure_is_told_by_its_cause(name: str, code: int, said: str, text: str, hint: str) -> None:
    why, what_to_do = placement(name).explain("b", OPTIONS, code, said)
    assert why.startswith(text) and hint in what_to_do, (why, what_to_do)


CHANGED = "Offending key in known_hosts:2\nHost key verification failed."
DENIED = "me@b: Permission denied (publickey)."


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        (OPTIONS, CHANGED, "the host's key has changed; if that is right: ssh-keygen -R b"),
        (PlacementOptions(22), CHANGED, "the host's key has changed; if that is right: ssh-keygen -R b"),
        (PlacementOptions(2222), CHANGED, "the host's key has changed; if that is right: ssh-keygen -R '[b]:2222'"),
        (OPTIONS, DENIED, "`ssh b true` must work without a password: ssh-copy-id b, or -i KEYFILE"),
        (
            PlacementOptions(2222),
            DENIED,
            "`ssh -p 2222 b true` must work without a password: ssh-copy-id -p 2222 b, or -i KEYFILE",
        ),
        (
            PlacementOptions(2222, "a key"),
            DENIED,
            "is a key the right key, without a passphrase? `ssh -p 2222 -i 'a key' b true` must work; if it is: "
            "ssh-copy-id -p 2222 -i 'a key' b",
        ),
        (
            PlacementOptions(None, "key"),
            f'Load key "key": error in libcrypto\n{DENIED}',
            "key is not a private key that ssh can use",
        ),
        (OPTIONS, f'Load key "id_rsa": invalid format\n{DENIED}', "`ssh b true` must work without a password: "),
        (PlacementOptions(None, "key"), "ssh: timed out", "is the host up, and reachable from here? `ssh -i key b "),
    ],
)
def test_a_hint_about_ssh_has_its_port_and_its_key(options: PlacementOptions, said: str, hint: str) -> None:
    why, what_to_do = placement("ssh").explain("b", options, 255, said)
    assert why == f"cannot be reached by ssh: {said.splitlines()[-1]}"
    assert what_to_do.startswith(hint), what_to_do


def test_what_a_shell_said_before_it_ended_is_shown() -> None:
    ssh = placement("ssh")
    assert ssh.explain("b", OPTIONS, 3, "\nover quota \n")[0] == "could not start the agent (exit code 3): over quota"
    said = "\n".join(f"line {number}" for number in range(8))
    shown = "".join(f"\n      line {number}" for number in range(2, 8))
    for code, happened in ((3, "could not start the agent (exit code 3)"), (255, "cannot be reached by ssh")):
        assert ssh.explain("b", OPTIONS, code, said)[0] == f"{happened}: its last words were{shown}"
    assert ssh.explain("b", OPTIONS, 255, "")[0] == "cannot be reached by ssh: it ended with exit code 255"
