// SPDX-License-Identifier: Apache-2.0
// Written by kernels.py.
#pragma once

namespace hvd::cuda {

constexpr char kKernelText[] = R"PTX(.version 6.4
.target sm_60
.address_size 64

.visible .entry hvd_copy_16(.param .align 8 .b8 p_table[3840], .param .f64 p_factor)
{
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
 mul.lo.u64 %l8, %l5, 16;
 add.u64 %l9, %l3, %l8;
 add.u64 %l8, %l2, %l8;
 ld.global.v2.u64 {%l10, %l11}, [%l8];
 st.global.v2.u64 [%l9], {%l10, %l11};
 add.u64 %l5, %l5, %l7;
 bra LOOP;
DONE:
 ret;
}

.visible .entry hvd_copy_1(.param .align 8 .b8 p_table[3840], .param .f64 p_factor)
{
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
 mul.lo.u64 %l8, %l5, 1;
 add.u64 %l9, %l3, %l8;
 add.u64 %l8, %l2, %l8;
 ld.global.u8 %r5, [%l8];
 st.global.u8 [%l9], %r5;
 add.u64 %l5, %l5, %l7;
 bra LOOP;
DONE:
 ret;
}

.visible .entry hvd_scale_f16(.param .align 8 .b8 p_table[3840], .param .f64 p_factor)
{
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
 mul.lo.u64 %l8, %l5, 2;
 add.u64 %l9, %l3, %l8;
 add.u64 %l8, %l2, %l8;
 ld.global.b16 %h0, [%l8];
 cvt.f32.f16 %f0, %h0;
 cvt.rn.f32.f64 %f1, %d0;
 mul.rn.f32 %f0, %f0, %f1;
 cvt.rn.f16.f32 %h1, %f0;
 st.global.b16 [%l9], %h1;
 add.u64 %l5, %l5, %l7;
 bra LOOP;
DONE:
 ret;
}

.visible .entry hvd_scale_bf16(.param .align 8 .b8 p_table[3840], .param .f64 p_factor)
{
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
 mul.lo.u64 %l8, %l5, 2;
 add.u64 %l9, %l3, %l8;
 add.u64 %l8, %l2, %l8;
 ld.global.u16 %h0, [%l8];
 cvt.u32.u16 %r5, %h0;
 shl.b32 %r5, %r5, 16;
 mov.b32 %f0, %r5;
 cvt.rn.f32.f64 %f1, %d0;
 mul.rn.f32 %f0, %f0, %f1;
 mov.b32 %r5, %f0;
 shr.u32 %r0, %r5, 16;
 and.b32 %r0, %r0, 1;
 add.u32 %r0, %r0, 32767;
 add.u32 %r0, %r5, %r0;
 shr.u32 %r0, %r0, 16;
 setp.nan.f32 %p1, %f0, %f0;
 selp.b32 %r0, 32704, %r0, %p1;
 cvt.u16.u32 %h1, %r0;
 st.global.b16 [%l9], %h1;
 add.u64 %l5, %l5, %l7;
 bra LOOP;
DONE:
 ret;
}

.visible .entry hvd_scale_f32(.param .align 8 .b8 p_table[3840], .param .f64 p_factor)
{
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
 mul.lo.u64 %l8, %l5, 4;
 add.u64 %l9, %l3, %l8;
 add.u64 %l8, %l2, %l8;
 ld.global.f32 %f0, [%l8];
 cvt.rn.f32.f64 %f1, %d0;
 mul.rn.f32 %f0, %f0, %f1;
 st.global.f32 [%l9], %f0;
 add.u64 %l5, %l5, %l7;
 bra LOOP;
DONE:
 ret;
}

.visible .entry hvd_scale_f64(.param .align 8 .b8 p_table[3840], .param .f64 p_factor)
{
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
 mul.lo.u64 %l8, %l5, 8;
 add.u64 %l9, %l3, %l8;
 add.u64 %l8, %l2, %l8;
 ld.global.f64 %d1, [%l8];
 mul.rn.f64 %d1, %d1, %d0;
 st.global.f64 [%l9], %d1;
 add.u64 %l5, %l5, %l7;
 bra LOOP;
DONE:
 ret;
}
)PTX";

}  // namespace hvd::cuda
