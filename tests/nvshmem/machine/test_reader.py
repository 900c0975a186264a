"""The reader of PTX and SASS, and the questions, on code written for it."""

import pytest

from tests.nvshmem.machine import questions, reader
from tests.nvshmem.machine.questions import DIRTY, FENCED, NOTHING

PTX = """
.version 9.0
.func  (.param .b64 func_retval0) wait();
.visible .entry kernel(
	.param .u64 kernel_param_0
)
{
	.reg .b64 	%rd<9>;
	ld.param.u64 	%rd1, [kernel_param_0]; // a comment; with a semicolon
	{ // callseq 0, 0
	.reg .b32 temp_param_reg;
	call.uni (retval0),
	wait,
	(
	param0
	);
	}
$L__BB0_1:
	ld.volatile.global.u64 	%rd2, [%rd1];
	setp.ne.s64 	%p1, %rd2, 1;
	@%p1 bra 	$L__BB0_1;
	@!%p1 ld.acquire.gpu.v2.u32 {%r1, %r2}, [%rd1];
	atom.global.sys.add.u64 %rd3, [%rd1], 1;
	st.release.sys.b16 [%rd1], %rs1;
	st.local.u8 [%rd1], %rs1;
	membar.sys; fence.acq_rel.gpu; fence.proxy.alias;
	ret;
}
.func  (.param .b64 func_retval0) wait(
	.param .b64 wait_param_0
)
{
	{
	membar.gl;
}
	ret;
}
"""
SASS = """
	.section	.text.kernel,"ax",@progbits
        .type           kernel,@function
kernel:
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   BSSY B0, `(.L_x_2) ;
.L_x_1:
        /*0020*/                   LDG.E.64.STRONG.SYS R4, desc[UR4][R2.64] ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
        /*0040*/              @!P1 BRA.DIV ~URZ, `(.L_x_3) ;
        /*0050*/                   BSYNC B0 ;
        /*0060*/                   NOP;
.L_x_2:
        /*0070*/                   CALL.REL.NOINC `($kernel$fence) ;
        /*0080*/                   STL.U8 [R1], R2 ;
        /*0090*/               @P1 EXIT ;
.L_x_3:
        /*00a0*/                   BRX R10 -0x790 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*);
        /*00b0*/                   ATOMG.E.ADD.STRONG.GPU PT, RZ, desc[UR6][R4.64], R2 ;
        /*00c0*/                   ST.E.128 desc[UR6][R4.64], R2 ;
        .type           $kernel$fence,@function
$kernel$fence:
        /*00d0*/                   MEMBAR.SC.SYS ;
        /*00e0*/                   CCTL.IVALL ;
        /*00f0*/                   RET.REL.NODEC R2 `(kernel) ;
"""


def test_ptx_is_read():
    functions = reader.ptx(PTX)
    assert list(functions) == ["kernel", "wait"]
    code = functions["kernel"].code
    assert [i.kind for i in code] == [
        "load", "call", "load", "other", "branch", "load", "atomic", "store", "store", "fence",
        "fence", "other", "end",
    ]  # fmt: skip
    assert [i.space for i in code if i.width] == [
        "constant", "global", "global", "global", "global", "local",
    ]  # fmt: skip
    assert [i.width for i in code if i.width] == [8, 8, 8, 8, 2, 1]
    assert [(i.strong, i.scope) for i in code if i.space == "global"] == [
        (True, "sys"), (True, "gpu"), (True, "sys"), (True, "sys"),
    ]  # fmt: skip
    assert [i.order for i in code if i.order] == ["acquire", "release", "acq_rel", "acq_rel"]
    assert [i.scope for i in code if i.kind == "fence"] == ["sys", "gpu"]
    assert code[1].to == ("wait",)
    assert functions["kernel"].next[4] == [2, 5]
    assert functions["kernel"].next[12] == []


def test_sass_is_read():
    functions = reader.sass_text(SASS)
    kernel, fence = functions["kernel"], functions["$kernel$fence"]
    assert [i.kind for i in kernel.code] == [
        "load", "other", "load", "branch", "branch", "branch", "other", "call", "store", "end",
        "branch", "atomic", "store",
    ]  # fmt: skip
    assert [(i.space, i.width, i.strong, i.scope) for i in kernel.code if i.width] == [
        ("constant", 4, False, ""), ("global", 8, True, "sys"), ("local", 1, False, ""),
        ("global", 4, True, "gpu"), ("global", 16, False, ""),
    ]  # fmt: skip
    assert kernel.next[3:6] == [[2, 4], [5, 10], [7]]
    assert kernel.next[9:11] == [[10], [2, 7]]
    assert questions.reached(kernel) == set(range(6)) | set(range(7, 11))
    assert [(i.kind, i.order) for i in fence.code[:2]] == [
        ("fence", "release"), ("invalidate", "acquire"),
    ]  # fmt: skip


def test_what_is_not_understood_is_an_error():
    with pytest.raises(ValueError, match="brx"):
        reader.ptx(PTX.replace("ret;", "brx.idx %r1, table;"))


def asked(question, body, *more):
    """A question to a kernel of these instructions, and to one that calls them."""
    called = "{\n" + body + "\nret;\n}\n"
    direct = reader.ptx(f"\n.entry kernel()\n{called}")
    text = f"\n.entry kernel()\n{{\ncall.uni f, ();\nret;\n}}\n.func f()\n{called}"
    answers = [question(functions, "kernel", *more) for functions in (direct, reader.ptx(text))]
    assert answers[0] == answers[1]
    return answers[0]


LOOK, FENCE, STORE = "ld.volatile.u64 %a, [%b];", "membar.gl;", "st.global.u64 [%d], %a;"
SYSTEM, SIGNAL, MAYBE = "membar.sys;", "st.volatile.u64 [%s], 1;", "@%p bra $L_1;"
END = "\n$L_1:\n"


@pytest.mark.parametrize(
    ("body", "states"),
    [
        (LOOK, {DIRTY}),
        (LOOK + FENCE, {FENCED}),
        (FENCE + LOOK, {DIRTY}),
        (LOOK + "fence.acq_rel.cta;", {DIRTY}),
        (LOOK + MAYBE + FENCE + END, {DIRTY, FENCED}),
        (MAYBE + LOOK + FENCE + END, {NOTHING, FENCED}),
        ("ld.acquire.sys.u64 %a, [%b];", {FENCED}),
        ("ld.volatile.shared.u64 %a, [%b];", {NOTHING}),
        ("ld.relaxed.gpu.u64 %a, [%b];", {NOTHING}),
    ],
)
def test_what_is_heard_needs_a_fence(body, states):
    assert asked(questions.heard, body) == states


@pytest.mark.parametrize(
    ("body", "states"),
    [
        (STORE + SIGNAL, {DIRTY}),
        (STORE + SYSTEM + SIGNAL, {FENCED}),
        (STORE + FENCE + SIGNAL, {DIRTY}),
        (SYSTEM + STORE + SIGNAL, {DIRTY}),
        (STORE + MAYBE + SYSTEM + END + SIGNAL, {DIRTY, FENCED}),
        (STORE + "st.release.sys.u64 [%s], 1;", {FENCED}),
        (SIGNAL, {NOTHING}),
    ],
)
def test_others_are_told_after_a_fence(body, states):
    assert asked(questions.told, body, NOTHING) == states


def test_every_path_has_a_fence():
    assert asked(questions.is_fenced, SYSTEM)
    assert not asked(questions.is_fenced, FENCE)
    assert not asked(questions.is_fenced, MAYBE + SYSTEM + END)


def test_paths_over_a_network_are_not_asked_about():
    call = "call.uni _Z23nvshmemi_transfer_quietv, ();"
    assert asked(questions.is_fenced, f"@%p bra $L_1; {SYSTEM} ret; {END} {call}")


# What was found in a kernel that polls `g`: it loads once, and then goes round and round.
DEAF = f"{LOOK}\n$L_2:\nsetp.eq.s64 %p, %a, 1; @%p bra $L_1; bra.uni $L_2;{END}"
POLLS = f"$L_2:\n{LOOK} setp.eq.s64 %p, %a, 1; @%p bra $L_1; bra.uni $L_2;{END}"


@pytest.mark.parametrize(("body", "polls"), [(DEAF, False), (POLLS, True)])
def test_a_loop_that_does_not_load_is_seen(body, polls):
    kernel = reader.ptx(f"\n.entry kernel()\n{{\n{body}\nret;\n}}\n")["kernel"]
    assert questions.is_polled(kernel, 8) == polls
    assert questions.is_deaf(kernel, 8) != polls
    assert not questions.is_polled(kernel, 4)
