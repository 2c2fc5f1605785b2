# SPDX-License-Identifier: Apache-2.0
# Writes OUT, a source file with the checksum of the files that LIST names. Run by the build: cmake -DOUT= -DLIST= -DROOT= -P
file(STRINGS ${LIST} files)
foreach(file ${files})
  file(SHA256 ${ROOT}/${file} checksum)
  string(APPEND all "${file} ${checksum}\n")
endforeach()
string(SHA256 checksum "${all}")
string(SUBSTRING ${checksum} 0 12 checksum)
file(WRITE ${OUT} "namespace hvd {\nextern const char* const kBuildId;\nconst char* const kBuildId = \"${checksum}\";\n}  // namespace hvd\n")
