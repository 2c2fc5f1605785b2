# SPDX-License-Identifier: Apache-2.0
"""All files are written by way of horovod/world/files, where links and files of other users are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "src" / "horovod"
FILES = "world/files/"
MODE = re.compile(r"[rwaxbt+]*[wax+][rwaxbt+]*")
# Names of functions and methods that write at a path, or change what is there.
WRITERS = {"write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink", "symlink_to", "hardlink_to"}
WRITERS |= {"chmod", "chown", "rename", "renames", "truncate", "mkfifo", "mknod", "copy2", "copyfile", "copytree"}
WRITERS |= {"OSFile", "FileHandler", "NamedTemporaryFile", "put_file", "pipe_file", "mv"}
OF_MODE = {"open", "FileIO"}  # that write if the mode says so
OWN = "in a folder, or a file without a name, that this user alone can open: made by tempfile, or in memory"
GIVEN = "at the path that replacement() gives"
# Who writes otherwise, and why that is safe.
ALLOWED = {
    "caffe/data/leveldb.py: _link": OWN,
    "caffe/data/records.py: write_lmdb": GIVEN,
    "caffe/files.py: _hdf5": GIVEN,
    "caffe/files.py: write_state": GIVEN,
    "caffe/files.py: write_weights": GIVEN,
    "caffe/snapshots.py: take": "Net.save is ours, and writes by files.write_weights",
    "caffe/tools/compute_image_mean.py: _main": GIVEN,
    "caffe/tools/parse_log.py: _write": GIVEN,
    "core/temporary_files.py: say_no_init": OWN,
    "launcher/function/answers.py: write": OWN,
    "launcher/function/exchange.py: _take_answer": OWN,
    "launcher/function/run_function.py: run": OWN,
    "launcher/function/run_task.py: answer": OWN,
    "launcher/job/output.py: _keep_earlier": "a link that is renamed is not followed, and the folder has been checked",
    "launcher/job/redaction.py: file": GIVEN,
    "spark/assembly.py: run": OWN,
    "spark/common/access.py: _make_folder": "of a file system that is not local",
    "spark/common/access.py: _put": GIVEN,
    "spark/common/access.py: check_access": "a name of chance, in a folder that has been checked",
    "spark/common/access.py: write_file": "of a file system that is not local",
    "spark/common/dataset.py: _write": "Spark writes it",
    "spark/common/training.py: log": OWN,
    "spark/keras/bytes.py: model_of": OWN,
    "spark/keras/bytes.py: model_to_bytes": OWN,
    "spark/keras/remote.py: content": OWN,
    "spark/lightning/remote.py: __init__": OWN,
    "spark/task/rows.py: _flush": OWN,
    "spark/torch/remote.py: _save": OWN,
    "spark/torch/util.py: serialize": "into memory",
    "world/job_files.py: ": "own_folder() takes a folder in it that is this user's",
}


def written_by(name: str, call: ast.Call) -> bool:
    """True if the call writes at a path, by its name and arguments."""
    if call.args and ast.unparse(call.args[0]) == "os.devnull":
        return False
    whole_name = ast.unparse(call.func)
    if whole_name in ("lmdb.open", "h5py.File"):
        return "readonly=True" not in ast.unparse(call) and not ast.unparse(call).endswith(", 'r')")
    if name in OF_MODE:
        given = [*call.args, *(key.value for key in call.keywords if key.arg == "mode")]
        texts = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        flags = " ".join(map(ast.unparse, call.args))
        by_us = any(key.arg == "opener" and ast.unparse(key.value) == "open_in_place" for key in call.keywords)
        by_us = by_us or whole_name == "place.open" or flags.startswith(("place.open(", "open_in_place("))
        return not by_us and (any(map(MODE.fullmatch, texts)) or re.search(r"O_(WRONLY|RDWR|CREAT)", flags) is not None)
    if name == "replace":  # of a path; a text's has two arguments, and that of dataclasses has keywords
        return (len(call.args) == 1 and not call.keywords) or whole_name == "os.replace"
    if name in ("save", "savez"):
        return bool(call.args)
    if name == "new_file":
        return not ast.unparse(call.args[0]).endswith("file")
    return name in WRITERS


def places(path: Path) -> Iterator[str]:
    """`file: function` of each call that writes at a path, and of each text that is a path in /tmp."""
    inside: list[tuple[str, ast.AST]] = [("", ast.parse(path.read_text(encoding="utf-8")))]
    while inside:
        where, node = inside.pop()
        for child in ast.iter_child_nodes(node):
            here = child.name if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else where
            inside.append((here, child))
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if written_by(name, node):
                yield f"{path.relative_to(SOURCES).as_posix()}: {where}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"/(var/)?tmp\b", node.value):
            yield f"{path.relative_to(SOURCES).as_posix()}: {where}"


def test_files_are_written_by_way_of_one_module() -> None:
    found = {place for path in SOURCES.rglob("*.py") for place in places(path) if not place.startswith(FILES)}
    assert found == set(ALLOWED)


def test_native_code_opens_no_file_for_writing() -> None:
    """Ranks get a timeline's file open."""
    opens = re.compile(r"\b(fopen|freopen|openat|creat|mkdir|rename|symlink|mkstemp)\(|std::o?fstream|O_CREAT|O_WRONLY")
    nameless = "O_TMPFILE | O_EXCL | O_RDWR"
    texts = {path: path.read_text("utf-8") for path in (ROOT / "native").rglob("*") if path.suffix in {".cc", ".h"}}
    assert len(texts) > 200 and any(nameless in text for text in texts.values())
    assert [path for path, text in texts.items() if opens.search(text) or "O_RDWR" in text.replace(nameless, "")] == []
