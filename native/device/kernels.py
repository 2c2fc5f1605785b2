# SPDX-License-Identifier: Apache-2.0
"""Writes kernels.ptx.h: what GPUs run for the library, as text that the driver compiles.

Each kernel goes over a table of pieces, in its parameters: the grid's row is the piece, and the threads of that row go
over its elements. PTX 6.4 for sm_60: drivers from 10.1 on, GPUs from Pascal on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

PIECES = 160  # of a launch; as in device.cc
OUT = Path(__file__).with_name("kernels.ptx.h")

_KERNEL = """
.visible .entry {name}(.param .align 8 .b8 p_table[{table_bytes}], .param .f64 p_factor)
{{
 .reg .pred %p<2>;
 .reg .b16 %h<3>;
 .reg .b32 %r<6>;
 .reg .f32 %f<2>;
 .reg .f64 %d<2>;
 .reg .b64 %l<12>;
 ld.param.f64 %d0, [p_factor];
 mov.b64 %l0, p_table;
 mov.u32 %r0, %ctaid.y;
 mul.wide.u32 %l1, %r0, 24;
 add.u64 %l1, %l0, %l1;
 ld.param.u64 %l2, [%l1];
 ld.param.u64 %l3, [%l1+8];
 ld.param.u64 %l4, [%l1+16];
 cvta.to.global.u64 %l2, %l2;
 cvta.to.global.u64 %l3, %l3;
 mov.u32 %r1, %ctaid.x;
 mov.u32 %r2, %ntid.x;
 mov.u32 %r3, %tid.x;
 mov.u32 %r4, %nctaid.x;
 mul.wide.u32 %l5, %r1, %r2;
 cvt.u64.u32 %l6, %r3;
 add.u64 %l5, %l5, %l6;
 mul.wide.u32 %l7, %r4, %r2;
LOOP:
 setp.ge.u64 %p0, %l5, %l4;
 @%p0 bra DONE;
 mul.lo.u64 %l8, %l5, {bytes};
 add.u64 %l9, %l3, %l8;
 add.u64 %l8, %l2, %l8;
 {body}
 add.u64 %l5, %l5, %l7;
 bra LOOP;
DONE:
 ret;
}}
"""

# Rounded to nearest, no fused multiply-add: the bits of the CPU's kernels, except for NaNs.
_SCALE = "cvt.rn.f32.f64 %f1, %d0; mul.rn.f32 %f0, %f0, %f1;"
# By integers, since sm_60 has no conversion: to nearest, ties to even; a NaN stays one.
_TO_BFLOAT16 = (
    "mov.b32 %r5, %f0; shr.u32 %r0, %r5, 16; and.b32 %r0, %r0, 1; add.u32 %r0, %r0, 32767; add.u32 %r0, %r5, %r0; "
    "shr.u32 %r0, %r0, 16; setp.nan.f32 %p1, %f0, %f0; selp.b32 %r0, 32704, %r0, %p1; cvt.u16.u32 %h1, %r0;"
)
# name: bytes of an element, what is done to one
_KERNELS = {
    "hvd_copy_16": (16, "ld.global.v2.u64 {%l10, %l11}, [%l8]; st.global.v2.u64 [%l9], {%l10, %l11};"),
    "hvd_copy_1": (1, "ld.global.u8 %r5, [%l8]; st.global.u8 [%l9], %r5;"),
    "hvd_scale_f16": (
        2,
        f"ld.global.b16 %h0, [%l8]; cvt.f32.f16 %f0, %h0; {_SCALE} cvt.rn.f16.f32 %h1, %f0; st.global.b16 [%l9], %h1;",
    ),
    "hvd_scale_bf16": (
        2,
        f"ld.global.u16 %h0, [%l8]; cvt.u32.u16 %r5, %h0; shl.b32 %r5, %r5, 16; mov.b32 %f0, %r5; "
        f"{_SCALE} {_TO_BFLOAT16} st.global.b16 [%l9], %h1;",
    ),
    "hvd_scale_f32": (4, f"ld.global.f32 %f0, [%l8]; {_SCALE} st.global.f32 [%l9], %f0;"),
    "hvd_scale_f64": (8, "ld.global.f64 %d1, [%l8]; mul.rn.f64 %d1, %d1, %d0; st.global.f64 [%l9], %d1;"),
}


def ptx() -> str:
    """Return the module's text."""
    kernels = (
        _KERNEL.format(name=name, table_bytes=24 * PIECES, bytes=size, body=body.replace("; ", ";\n "))
        for name, (size, body) in _KERNELS.items()
    )
    return ".version 6.4\n.target sm_60\n.address_size 64\n" + "".join(kernels)


def header() -> str:
    """Return the C++ header that holds the text."""
    return (
        "// SPDX-License-Identifier: Apache-2.0\n"
        "// Written by kernels.py.\n"
        "#pragma once\n\n"
        "namespace hvd::cuda {\n\n"
        f'constexpr char kKernelText[] = R"PTX({ptx()})PTX";\n\n'
        "}  // namespace hvd::cuda\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ptx", action="store_true", help="print the text alone, for ptxas")
    if parser.parse_args().ptx:
        print(ptx())
    else:
        OUT.write_text(header())
