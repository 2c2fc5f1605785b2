# SPDX-License-Identifier: Apache-2.0
"""horovodrun --report: one folder with all that a bug report needs, of jobs that end well, fail, or have more hosts."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
from processes.launcher.test_ssh import fake
from support.jobs import Job, python, run_job

TRAIN = """
import numpy as np, horovod.core as hvd
hvd.init()
for step in range(3):
    hvd.allreduce(np.ones(1000), name="gradient")
print("token", os.environ.get("MY_TOKEN"), flush=True)
"""
TOKEN = "swordfish-4711"


def reported(folder: Path) -> dict[str, object]:
    return json.loads((folder / "job.json").read_text())  # type: ignore[no-any-return]


def everything(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def test_a_job_leaves_all_parts_and_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"
    script = [*python(TRAIN), "--api-key", "kl0pfz-1", "--store", "s3://ann:g3heim@host/x", "PASSWORD=pa55w0rt"]
    done = run_job(tmp_path, "-np", "2", "--report", str(folder), script, env={"MY_TOKEN": TOKEN})
    assert done.code == 0, done
    assert f"horovodrun: the report is in {folder}" in done.stderr
    assert TOKEN in done.stdout, "the terminal shows what the ranks say"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    ranks = [f"logs/rank.{rank}/{stream}" for rank in (0, 1) for stream in ("stdout", "stderr")]
    assert names == {
        *("job.json", "report.txt", "hosts/localhost.json", "timeline.localhost.json"),
        *("statistics/rank.0.json", "statistics/rank.1.json", *ranks),
    }
    text = everything(folder)
    for secret in (TOKEN, "kl0pfz-1", "g3heim", "pa55w0rt"):
        assert secret not in text
    assert (folder / "logs/rank.1/stdout").read_text() == "token (removed)\n"
    job = reported(folder)
    assert job["exit_code"] == 0 and job["environment"]["MY_TOKEN"] == "(removed)"  # type: ignore[index]
    assert job["settings"] == {"HOROVOD_REPORT": str(folder)}
    assert json.loads((folder / "statistics/rank.1.json").read_text())["tensors"] == 3
    host = json.loads((folder / "hosts/localhost.json").read_text())
    assert {"horovod", "python", "packages", "machine", "kernel"} <= set(host) and "numpy" in host["packages"]
    assert "ALLREDUCE" in (folder / "timeline.localhost.json").read_text()
    page = (folder / "report.txt").read_text()
    assert "exit code  0" in page and "`python -m horovod.trace summary timeline.localhost.json` reads" in page
    again = run_job(tmp_path, "-np", "2", "--report", str(folder), "true")
    assert again.code == 2 and "the folder holds files already\nhint: it names a new folder" in again.stderr


def test_a_failure_is_in_the_report_of_all_hosts_that_have_a_part_and_others_are_named(tmp_path: Path) -> None:
    code = TRAIN.replace("hvd.init()", "rank == 2 or hvd.init()").replace("range(3)", "range(3 * (rank < 2))")
    code = f"if rank == 2: sys.exit('rank 2 does not like {TOKEN}')\n" + code
    flags = ["-np", "3", "-H", "near:1,far:1,farther:1", "--network-interface", "lo", "--report", "report"]
    env = {**fake(tmp_path), "MY_TOKEN": TOKEN, "HOROVOD_START_TIMEOUT": "60"}
    done = run_job(tmp_path, flags, python(code), env=env)
    assert done.code == 1, done
    page = (tmp_path / "report" / "report.txt").read_text()
    assert "rank 2 on host farther exited with code 1" in page and "does not like (removed)" in page
    assert "rank 2 on host farther exited with code 1" in str(reported(tmp_path / "report")["end"])
    assert "near:1, far:1, farther:1" in page
    absent = done.stderr.partition("horovodrun: host")[2]
    assert (
        "farther" in absent
        and "its part is missing here" in absent
        and f"copy {tmp_path}/report from that host" in absent
    )
    assert "the counters of rank" in page
    assert TOKEN not in everything(tmp_path / "report")


@pytest.mark.slow("elastic jobs")
def test_elastic_and_interrupted_jobs_have_reports_too(tmp_path: Path) -> None:
    code = TRAIN.replace("horovod.core as hvd", "horovod.torch as hvd, torch").replace("np.ones", "torch.ones")
    code += "hvd.stop_timeline()\nready()\nwhile True: signal.pause()"
    with Job(tmp_path, "-np", "2", "--min-np", "2", "--report", "report", python(code)) as job:
        job.wait_for_line("ready", count=2)
        job.process.send_signal(signal.SIGINT)
        done = job.wait()
    assert done.code == 130, done
    page = (tmp_path / "report" / "report.txt").read_text()
    assert "exit code  130" in page and "SIGINT: all ranks were ended" in page and "ranks      elastic" in page
    assert "gradient" in (tmp_path / "report" / "timeline.localhost.json").read_text()
    assert (tmp_path / "report" / "hosts" / "localhost.json").is_file()


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["--report", "r", "--mpi"], "--report is not supported with --mpi"),
        (["--report", "r", "--output-filename", "o"], "hint: leave --output-filename out"),
        (["--report", ""], "--report got an empty name\nhint: give the name of a folder\n"),
        (["--output-filename="], "--output-filename got an empty name\nhint: give the name of a folder\n"),
        (["--report", "file"], "--report file: File exists\nhint: it names a new folder"),
    ],
)
def test_what_cannot_be_reported_is_refused_before_anything_starts(
    tmp_path: Path, flags: list[str], expected: str
) -> None:
    (tmp_path / "file").touch()
    done = run_job(tmp_path, "-np", "1", flags, "true")
    assert done.code == 2 and expected in done.stderr, done
    assert not (tmp_path / "r").exists()


def test_a_command_without_horovod_has_a_report_and_a_refused_one_leaves_the_folder_empty(tmp_path: Path) -> None:
    refused = run_job(tmp_path, "-np", "1", "--report", "report", "--only-rank", "3", "true")
    assert refused.code == 2 and list((tmp_path / "report").iterdir()) == [], refused
    done = run_job(tmp_path, "-np", "1", "--report", "report", "echo", "hello")
    assert done.code == 0 and "missing here" not in done.stderr, done
    assert "the counters of rank 0 are missing" in (tmp_path / "report" / "report.txt").read_text()
    assert (tmp_path / "report" / "logs" / "rank.0" / "stdout").read_text() == "hello\n"


def test_a_disk_that_is_full_is_told_with_the_file_and_the_flag_that_was_given(tmp_path: Path) -> None:
    code = "import time\nready()\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('x' * 100)"
    with Job(tmp_path, "-np", "1", "--report", "report", python(code)) as job:
        job.wait_for_line("ready")
        resource.prlimit(job.process.pid, resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))
        (tmp_path / "go").touch()
        done = job.wait()
    assert done.code == 0 and "x" * 100 in done.stdout, done
    folder = tmp_path / "report"
    assert f"cannot write to {folder}/logs/rank.0/stdout: File too large; " in done.stderr
    assert "hint: the job goes on; --report names the folder\n" in done.stderr
    assert f"warning: the report cannot be written: {folder}/job.json: File too large\n" in done.stderr


def test_a_timeline_elsewhere_is_named(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "1", "--report", "report", "--timeline-filename", "a b.json", python(TRAIN))
    assert done.code == 0 and "ALLREDUCE" in (tmp_path / "a b.json").read_text(), done
    page = (tmp_path / "report" / "report.txt").read_text()
    assert f"The timeline is not in this folder: the settings name {tmp_path}/a b.json.\nAdd it" in page
    assert page.endswith(f" `python -m horovod.trace summary '{tmp_path}/a b.json'` reads it.\n")


def test_a_folder_that_a_rank_cannot_write_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_job(tmp_path, "-np", "1", python(TRAIN), env={"HOROVOD_REPORT": str(tmp_path / "file" / "r")})
    assert done.code == 0 and "token" in done.stdout
    assert "warning: cannot write a part of the report: " in done.stderr and "training goes on" in done.stderr
