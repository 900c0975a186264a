"""Attributes of functions, as LLVM's versions take them."""

import llvmlite.binding as llvm
import pytest

from gpushmem.simt.base import function_attributes
from gpushmem.simt.base.function_attributes import with_attributes

TEXT = """
@text = constant [9 x i8] c"define @f"
declare i32 @outside(ptr align 4)
define internal i32 @f(ptr noalias dereferenceable(8) %p) unnamed_addr nounwind {
  %x = call i32 @outside(ptr %p)
  ret i32 %x
}
define weak_odr void @"with space and (parenthesis)"(ptr captures(none) %p, i64 %n) {
  ret void
}
define i32 @f2(ptr %p) {
  %x = call i32 @f(ptr %p)
  ret i32 %x
}
"""
if llvm.llvm_version_info[0] <= 20:
    TEXT = TEXT.replace("captures(none)", "nocapture")
ADDED = {"f": ("alwaysinline",), "with space and (parenthesis)": ("noinline", "optnone")}


@pytest.mark.parametrize("by_text", [False, True])
def test_attributes_are_of_the_function_and_not_of_its_result(monkeypatch, by_text):
    """Also where they are written into the module's text, as llvmlite 0.47 needs it."""
    if by_text:
        monkeypatch.setattr(function_attributes, "_are_misplaced", lambda: True)
    module = with_attributes(llvm.parse_assembly(TEXT, llvm.create_context()), ADDED)
    module.verify()
    for function in module.functions:
        own = b" ".join(function.attributes).decode().split()
        assert set(ADDED.get(function.name, ())) <= set(own), function.name
        assert ("nounwind" in own) == (function.name == "f")
        assert not {"alwaysinline", "noinline"} & set(own) - set(ADDED.get(function.name, ()))
    assert str(llvm.parse_assembly(str(module), module._context)) == str(module)


def test_a_function_that_is_not_defined_is_told(monkeypatch):
    monkeypatch.setattr(function_attributes, "_are_misplaced", lambda: True)
    with pytest.raises(AssertionError, match="not found: outside"):
        with_attributes(llvm.parse_assembly(TEXT), {"outside": ("noinline",)})
