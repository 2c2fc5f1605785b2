#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kernel_objects.sh NM FOLDER: the kernels for wide instruction sets share no function with other files. The linker keeps
# one copy of a shared function for all, and a copy made for AVX-512 would end the process on another machine.
set -eu
found=0
for object in "$2"/kernels_avx*; do
  "$1" --demangle "$object" | grep -E '^[0-9a-f]* *[VWu] ' && exit 1
  found=$((found + 1))
done
[ "$found" = 2 ]
