# SPDX-License-Identifier: Apache-2.0
"""Before any rank starts, all hosts that cannot hold ranks are named in one report, each with its reason and a hint."""

from __future__ import annotations

import sys
from pathlib import Path

from support.cluster import MakeCluster
from support.jobs import python, run_job

import horovod

PACKAGE = Path(horovod.__file__).parent


def indented(report: str) -> dict[str, str]:
    """The lines of each host, by its name."""
    found: dict[str, str] = {}
    name = ""
    for line in report.splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            name = line.split()[0]
        if line.startswith("  "):
            found[name] = found.get(name, "") + line.removeprefix(f"  {name} ") + "\n"
    return found


def test_every_host_that_is_not_ready_is_named_with_its_reason(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(8)
    here, no_python, no_package, other_version, no_folder, no_sshd, no_key, no_program = made.hosts
    no_python.hide(Path(sys.executable).parent)
    no_package.hide(PACKAGE)
    other = tmp_path / "__init__.py"
    other.write_text((PACKAGE / "__init__.py").read_text().replace(horovod.__version__, "0.0.9"))
    other_version.put(other, PACKAGE / "__init__.py")
    work = tmp_path / "work"
    work.mkdir()
    no_folder.hide(tmp_path)
    no_sshd.run("sh", "-c", "kill $(cat /run/sshd.pid)", check=True)
    no_key.put(Path("/dev/null"), made.folder / "ssh" / "authorized_keys")
    program = f"#!/bin/sh\ntouch {tmp_path}/started\n"
    here.run("sh", "-c", f"echo '{program}' > /tmp/program && chmod +x /tmp/program", check=True)

    hosts = ",".join(host.name for host in made.hosts)
    done = run_job(work, "-np", "8", "-H", hosts, "/tmp/program", on=here)
    assert (done.code, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert lines[0] == "horovodrun: 7 of 8 hosts are not ready; nothing was started"
    assert lines[-1] == "more: horovodrun --explain hosts-not-ready"
    found = indented(done.stderr)
    assert sorted(found) == [host.name for host in made.hosts[1:]]
    expected = {
        no_python: f"has no Python at {sys.executable}\n    hint: the job's Python must be at the same path",
        no_package: f"cannot import horovod: neither its Python nor {PACKAGE.parent} has it\n    hint: install hvd",
        other_version: f"has hvd 0.0.9, but this host has {horovod.__version__}\n    hint: install hvd",
        no_folder: f"has no folder {work}\n    hint: the job's working directory must exist on all hosts",
        no_sshd: "cannot be reached by ssh: ssh: connect to host host5 port 22: Connection refused\n    hint: is sshd",
        no_key: "cannot be reached by ssh: root@host6: Permission denied (publickey).\n    hint: `ssh host6 true` must",
        no_program: "has no program /tmp/program\n    hint: the job's programs must be on all hosts",
    }
    for host, text in expected.items():
        assert found[host.name].startswith(text), done.stderr
    assert not (tmp_path / "started").exists()


def test_what_a_shell_prints_does_not_disturb(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    (tmp_path / "noise").write_text('echo \'{"event": "hello"}\'; echo "Welcome to this cluster"; echo news >&2\n')
    two.put(tmp_path / "noise", Path("/etc/bash.bashrc"))
    quiet = ["-o", "StrictHostKeyChecking=accept-new", "-o", "LogLevel=ERROR"]
    assert "Welcome" in one.run("ssh", *quiet, two.name, "true").stdout
    done = run_job(tmp_path, "-np", "2", "-H", "host0:1,host1:1", python("print('fine')"), on=one)
    assert (done.code, sorted(done.stdout.splitlines())) == (0, ["[0]<stdout>:fine", "[1]<stdout>:fine"]), done


MEET = "import horovod.core as hvd; hvd.init(); print(os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR'])"


def test_an_address_that_works_for_all_is_found_by_trying(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(3)
    one, two, _ = made.hosts
    made.second_network()
    two.wall_off(one.address)
    done = run_job(tmp_path, "-np", "3", "-H", "host0,host1,host2", python(MEET), on=one)
    assert done.code == 0, done
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:{one.second_address}" for rank in range(3)]


def test_a_host_that_reaches_no_address_is_named_with_them(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two, _ = cluster(3).hosts
    two.wall_off(one.address)
    done = run_job(tmp_path, "-np", "3", "-H", "host0,host1,host2", python(MEET), on=one)
    assert (done.code, done.stdout) == (1, "")
    found = indented(done.stderr)
    assert list(found) == ["host1"], done.stderr
    why = f"cannot reach this host at {one.address} (Connection refused)\n    hint: all hosts must reach the same "
    assert found["host1"].startswith(why)


def test_what_ssh_refuses_is_told_with_the_port_and_the_key(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(2)
    one, two = made.hosts
    key, other = tmp_path / "key", tmp_path / "other"
    made.second_sshd(two, 2222, key)
    one.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other), check=True)
    flags = ["-np", "2", "-H", "host0,host1", "-p", "2222"]

    def hint(identity: Path) -> str:
        found = indented(run_job(tmp_path, flags, "-i", str(identity), python("pass"), on=one).stderr)
        return found["host1"].splitlines()[1].strip()

    assert hint(other).startswith(
        f"hint: is {other} the right key, without a passphrase? `ssh -p 2222 -i {other} host1 "
    )
    (tmp_path / "text").write_text("not a key\n")
    (tmp_path / "text").chmod(0o600)
    assert hint(tmp_path / "text") == f"hint: {tmp_path}/text is not a private key that ssh can use"
    known = made.folder / "ssh" / "known_hosts"
    known.write_text(f"[host1]:2222 {other.with_suffix('.pub').read_text()}")
    assert hint(key) == "hint: the host's key has changed; if that is right: ssh-keygen -R '[host1]:2222'"
    # What it says to do is enough.
    one.run("sh", "-c", "ssh-keygen -R '[host1]:2222'", check=True)
    done = run_job(tmp_path, flags, "-i", str(key), python("print('fine')"), on=one)
    assert (done.code, sorted(done.stdout.splitlines())) == (0, ["[0]<stdout>:fine", "[1]<stdout>:fine"]), done
