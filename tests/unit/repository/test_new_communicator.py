# SPDX-License-Identifier: Apache-2.0
"""A communicator is one new file and one row: a do-nothing one is added to a copy of the sources, built and run."""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "native"
BUILT = ROOT / "build" / "native" / "CMakeFiles" / "horovod_core.dir" / "native"
# All that a communicator stands on.
FOLDERS = ["communicators", "device", "collectives", "transport", "reduction", "world", "platform"]

NOTHING = """
#include "communicators/registry.h"

namespace hvd {
namespace {

class Nothing final : public Communicator {
 public:
  explicit Nothing(const Members& members) : members_(members) {}
  const char* name() const override { return "nothing"; }
  int member() const override { return members_.member; }
  int size() const override { return members_.size(); }
  Status allreduce(std::span<const Slice>, const Reduction&) override { return {}; }
  Status broadcast(std::span<const Slice>, size_t, int) override { return {}; }
  Status exchange(const void*, size_t, void*) override { return {}; }
  Status allgather(const void*, std::span<const int64_t>, void*) override { return {}; }
  Status reducescatter(std::span<const std::vector<Slice>>, const Reduction&) override { return {}; }
  Status alltoall(const void*, std::span<const int64_t>, void*) override { return {}; }
  Status barrier() override { return {}; }
  std::string describe() const override { return "\\"transport\\": \\"nothing\\""; }

 private:
  const Members members_;
};

std::string why_unfit(const Topology& members) { return members.size() < 100 ? "" : "it joins fewer than 100 ranks"; }

Status make(const Members& members, const CommunicatorParts&, std::unique_ptr<Communicator>* out) {
  *out = std::make_unique<Nothing>(members);
  return {};
}

}  // namespace

extern const CommunicatorRow kNothingRow;
const CommunicatorRow kNothingRow = {"nothing", "nothing", "NOTHING_", always_available, why_unfit,
                                     no_shared_bytes, no_links, make};

}  // namespace hvd
"""

# Chooses it by name, makes it and runs an operation; says what the registry says of it.
PROGRAM = """
#include <cstdio>

#include "communicators/registry.h"

int main() {
  using namespace hvd;
  for (const CommunicatorRow* row : communicator_rows()) std::printf("%s ", row->name);
  const CommunicatorRow* row = nullptr;
  std::unique_ptr<Communicator> made;
  const Topology hosts({0, 0, 1});
  Status status = choose_communicator("nothing", hosts, true, &row);
  if (status.ok()) status = row->make({{0, 1, 2}, 1, hosts}, {}, &made);
  if (status.ok()) status = made->barrier();
  std::printf("| %s | %d of %d | ", status.text().c_str(), made->member(), made->size());
  std::printf("%s\\n", choose_communicator("nothing", Topology::on_one_host(100), true, &row).text().c_str());
}
"""


def built_before(changed: list[Path], sources: list[Path], copy: Path) -> dict[Path, Path]:
    """The objects of sources that are not `changed`, from this tree's own build if that is newer than its sources."""
    objects = {source: BUILT / f"{source.relative_to(copy)}.o" for source in sources if source not in changed}
    if not all(built.exists() for built in objects.values()):
        return {}
    oldest = min(built.stat().st_mtime for built in objects.values())
    newest = max(file.stat().st_mtime for folder in [*FOLDERS, "include"] for file in (NATIVE / folder).rglob("*.*"))
    return objects if oldest > newest else {}


@pytest.mark.thorough
def test_a_do_nothing_communicator_is_one_file_and_one_row(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++-14")
    if compiler is None:
        pytest.skip("not run: no C++ compiler")
    copy = tmp_path / "native"
    for folder in [*FOLDERS, "include"]:
        shutil.copytree(NATIVE / folder, copy / folder)
    (copy / "communicators" / "nothing.cc").write_text(NOTHING)
    with (copy / "communicators" / "rows.h").open("a") as rows:
        rows.write("HVD_COMMUNICATOR(kNothingRow)\n")
    (copy / "main.cc").write_text(PROGRAM)

    # Those of a file for one instruction set.
    own = r'set_source_files_properties\((\S+)\s+PROPERTIES\s+COMPILE_OPTIONS "(.*)"\)'
    own_flags = {file: flags.split(";") for file, flags in re.findall(own, (ROOT / "CMakeLists.txt").read_text())}
    assert len(own_flags) == 2

    def build(source: Path) -> Path:
        built = source.with_suffix(".o")
        flags = ["-std=c++20", "-O0", f"-I{copy}", f"-I{copy / 'include'}", "-Wall", "-Wextra", "-Werror"]
        flags += ["-Wno-missing-field-initializers", *own_flags.get(source.relative_to(tmp_path).as_posix(), [])]
        subprocess.run([compiler, *flags, "-c", str(source), "-o", str(built)], check=True)
        return built

    everything = [source for folder in FOLDERS for source in sorted((copy / folder).rglob("*.cc"))]
    done = built_before(
        [copy / "communicators" / "registry.cc", copy / "communicators" / "nothing.cc"], everything, copy
    )
    sources = [source for source in everything if source not in done]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(build, [copy / "main.cc", *sources]))
    program = tmp_path / "program"
    subprocess.run([compiler, "-pthread", "-o", str(program), *map(str, [*objects, *done.values()])], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert said == (
        "loopback shm hierarchical tcp mpi hierarchical-mpi nothing |  | 1 of 3 | "
        "HOROVOD_TRANSPORT=nothing cannot be used: it joins fewer than 100 ranks\n"
        "hint: HOROVOD_TRANSPORT=auto takes what fits\n"
    )
