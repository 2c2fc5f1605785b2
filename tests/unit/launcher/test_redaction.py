# SPDX-License-Identifier: Apache-2.0
"""What a report removes: what has a secret's name or look, wherever it comes again, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.launcher.job.redaction import REMOVED, Redaction


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "DB_PASSWORD",
        "api_key",
        "KEY",
        "MY_PAT",
        "HTTP_COOKIE",
        "HOROVOD_SECRET_FILE",
    ],
)
def test_a_value_with_a_secret_name_is_removed(name: str) -> None:
    assert Redaction().environment({name: "hello"}) == {name: REMOVED}


@pytest.mark.parametrize(
    "value",
    [
        "ghp_0123456789abcdefABCDEF",
        "hf_abcdefghijklmnop",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "0123456789abcdef0123456789abcdef",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_value_that_looks_secret_is_removed_whatever_its_name(value: str) -> None:
    assert Redaction().environment({"PLAIN": value}) == {"PLAIN": REMOVED}
    assert Redaction().words(["train.py", value]) == ["train.py", REMOVED]


def test_ordinary_values_and_words_stay() -> None:
    plain = {
        "PATH": "/usr/local/bin:/usr/bin",
        "HOROVOD_FUSION_THRESHOLD": "134217728",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "PYTHONPATH": "/home/ann/experiments/Version2/resnet50_imagenet_baseline",
        "URL": "https://host:8080/x@y",
        "KEYBOARD": "de",
        "MONKEY": "see",
    }
    assert Redaction().environment(plain) == dict(sorted(plain.items()))
    command = ["horovodrun", "-np", "2", "python", "train.py", "--lr=0.1", "--epochs", "90", "A=b"]
    assert Redaction().words(command) == command


def test_folders_stay_in_variables_and_in_texts(tmp_path: Path) -> None:
    redaction = Redaction()
    folder, above = str(tmp_path), str(tmp_path.parent)
    assert redaction.environment({"PWD": folder, "OLDPWD": above}) == {"OLDPWD": above, "PWD": folder}
    assert redaction.words(["env", f"PWD={folder}", "train.py"]) == ["env", f"PWD={folder}", "train.py"]
    assert redaction.environment({"SESSION_DIR": folder, "AUTH_HOME": above})["SESSION_DIR"] == REMOVED
    traceback = f'File "{folder}/train.py", line 3, in <module>'
    assert redaction.text(traceback) == traceback


@pytest.mark.parametrize("name", ["PWD", "DB_PWD", "MYSQL_PWD"])
def test_a_password_called_pwd_is_removed(name: str) -> None:
    redaction = Redaction()
    assert redaction.environment({name: "swordfish"}) == {name: REMOVED}
    assert redaction.text("a swordfish") == f"a {REMOVED}"


def test_flags_and_assignments_with_secret_names_lose_their_values() -> None:
    command = ["train.py", "--api-key=abc", "--password", "abc", "TOKEN=abc", "--token-file", "x", "--verbose"]
    removed = ["train.py", f"--api-key={REMOVED}", "--password", REMOVED, f"TOKEN={REMOVED}", "--token-file", REMOVED]
    assert Redaction().words(command) == [*removed, "--verbose"]
    assert Redaction().words(["https://ann:pw@host/x"]) == [f"https://{REMOVED}@host/x"]


def test_what_was_removed_is_removed_from_texts_and_files_as_well(tmp_path: Path) -> None:
    redaction = Redaction("the-secret-of-the-job")
    redaction.environment({"TOKEN": "swordfish", "PASSWORD": "a"})
    assert redaction.text("a swordfish, the-secret-of-the-job") == f"a {REMOVED}, {REMOVED}"
    log, other = tmp_path / "log", tmp_path / "other"
    log.write_bytes(b"one\n\xff swordfish\rtwo")
    other.write_bytes(b"\xff\n")
    before = other.stat().st_ino
    redaction.file(log)
    redaction.file(other)
    assert log.read_bytes() == b"one\n\xff (removed)\rtwo"
    assert other.stat().st_ino == before and sorted(path.name for path in tmp_path.iterdir()) == ["log", "other"]
