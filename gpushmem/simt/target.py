"""The private Numba target `simt`: CPU code in which every function gets two hidden arguments.

`thread` points to the calling thread's `layout.THREAD`, `site` to a C string naming the source
line of the kernel that is being executed. Both are passed from call to call by the calling
convention, so device functions, overloads and Numba's own library functions all get them, and
no global state is needed: any number of launches run side by side. A function that does not use
them pays nothing, the optimiser drops them.

Functions of the user pass their own line as `site`; functions of this package and of Numba hand
on what they were given, so the line named is always one of the user's.

Reference counting is off (a thread would pay 20 ns for it). Function libraries are not turned
into machine code: `entry` links them into one module per kernel, optimised as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba.core import codegen, cpu, types, typing
from numba.core.callconv import CPUCallConv
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.datamodel.models import OpaqueModel
from numba.core.datamodel.registry import register_default
from numba.core.descriptors import TargetDescriptor
from numba.core.dispatcher import Dispatcher
from numba.core.imputils import Registry as LoweringRegistry
from numba.core.lowering import Lower
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_override,
    target_registry,
)
from numba.core.typed_passes import BaseNativeLowering, NativeLowering
from numba.core.typing.templates import Registry as TypingRegistry

__all__ = [
    "KernelName",
    "SimtContext",
    "SimtDispatcher",
    "adopt",
    "bind",
    "device",
    "environments",
    "lowerings",
    "simt_target",
    "typings",
]

i8p = ir.IntType(8).as_pointer()
HIDDEN = 4  # return slot, exception slot, thread, site
THREAD_ARG, SITE_ARG = 2, 3

# What a name of the kernel language stands for on this target. Filled by `bind`.
names: dict[Any, Any] = {}
# Objects compiled as device functions: class -> how to get the Python function. Filled by `adopt`.
adopted: dict[type, Callable[[Any], Any]] = {}
# Constants that functions which call Python (print) refer to: symbol -> Numba environment.
environments: dict[str, Any] = {}
# The engine's own typings and lowerings, beyond those of Numba's CPU target.
typings = TypingRegistry()
lowerings = LoweringRegistry("simt")


class KernelName(types.Dummy):
    """Type of a name that has attributes but no value: `cuda.threadIdx`, `cuda.shared`."""


register_default(KernelName)(OpaqueModel)


def bind(name: Any, meaning: Any) -> None:
    """Make `name`, an object a kernel refers to, stand for `meaning` on this target.

    `meaning` is an intrinsic, a device function, or a `KernelName`.
    """
    names[name] = meaning


def adopt(cls: type, function_of: Callable[[Any], Any]) -> None:
    """Let kernels call objects of `cls`: `function_of(object)` is compiled as a device function."""
    adopted[cls] = function_of


@cache
def _device_function(py_func: Any) -> SimtDispatcher:
    return SimtDispatcher(py_func)


def _meaning(value: Any) -> Any:
    function_of = adopted.get(type(value))
    if function_of is not None:
        return _device_function(function_of(value))
    try:
        return names.get(value, value)
    except TypeError:  # not hashable: an array, a list
        return value


class Simt(CPU):
    """Marks the target; it inherits the CPU's library of overloads."""


target_registry["simt"] = Simt


class SimtCallConv(CPUCallConv):
    """`status f(ret*, excinfo**, thread*, site*, args...)`."""

    def get_function_type(self, restype: Any, argtypes: Any) -> ir.FunctionType:
        plain = super().get_function_type(restype, argtypes)
        return ir.FunctionType(
            plain.return_type, [*plain.args[:THREAD_ARG], i8p, i8p, *plain.args[THREAD_ARG:]]
        )

    def get_arguments(self, func: ir.Function) -> Any:
        return func.args[HIDDEN:]

    def decorate_function(
        self, fn: ir.Function, args: Any, fe_argtypes: Any, noalias: bool = False
    ) -> None:
        super().decorate_function(fn, args, fe_argtypes, noalias)
        thread, site = fn.args[THREAD_ARG], fn.args[SITE_ARG]
        thread.name, site.name = "simt.thread", "simt.site"
        # True because a THREAD never changes while its thread runs.
        thread.add_attribute("noalias")

    def call_function(
        self,
        builder: ir.IRBuilder,
        callee: Any,
        resty: Any,
        argtys: Any,
        args: Any,
        attrs: Any = None,
        hidden: tuple[ir.Value, ir.Value] | None = None,
    ) -> Any:
        """Call `callee`, handing on the caller's hidden arguments unless others are given."""
        if hidden is None:
            thread, site = builder.function.args[THREAD_ARG], builder.function.args[SITE_ARG]
            hidden = thread, getattr(builder, "simt_site", None) or site
        hide = _HiddenArgs(builder, hidden)
        return super().call_function(hide, callee, resty, argtys, args, attrs)


class _HiddenArgs:
    """A builder whose next `call` gets the hidden arguments in their place."""

    def __init__(self, builder: ir.IRBuilder, hidden: tuple[ir.Value, ir.Value]) -> None:
        self._builder, self._hidden = builder, hidden

    def call(self, callee: Any, args: list[ir.Value], **kwargs: Any) -> Any:
        return self._builder.call(
            callee, [*args[:THREAD_ARG], *self._hidden, *args[THREAD_ARG:]], **kwargs
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)


class SimtLower(Lower):
    """Lowering that tells the calling convention which user line it is at."""

    def lower_inst(self, inst: Any) -> None:
        if self._is_user_code:
            self.builder.simt_site = self._site(inst.loc)
        super().lower_inst(inst)

    @cached_property
    def _is_user_code(self) -> bool:
        root: list[str] = self.func_ir.func_id.modname.split(".")
        return root[0] != "numba" and (root[0] != "gpushmem" or root[1:2] == ["kernels"])

    def _site(self, loc: Any) -> ir.Value:
        text = f"{Path(loc.filename).name}:{loc.line} in {self.func_ir.func_id.func_name}"
        return self.context.insert_const_string(self.builder.module, text)


@register_pass(mutates_CFG=True, analysis_only=False)
class SimtLowering(BaseNativeLowering):
    """Native lowering with `SimtLower`."""

    _name = "simt_lowering"

    @property
    def lowering_class(self) -> type:
        return SimtLower


class SimtCompiler(CompilerBase):
    """Numba's nopython pipeline with our lowering."""

    def define_pipelines(self) -> list[PassManager]:
        default = DefaultPassBuilder.define_nopython_pipeline(self.state, "simt")
        pm = PassManager("simt")
        pm.passes = [(SimtLowering if p is NativeLowering else p, why) for p, why in default.passes]
        pm.finalize()
        return [pm]


class SimtLibrary(codegen.JITCodeLibrary):
    """A function's bitcode, waiting to be linked into a kernel."""

    def _optimize_final_module(self) -> None:
        """Leave it to the kernel's module, where everything can be inlined."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class SimtCodegen(codegen.JITCPUCodegen):
    """The target's own JIT engine."""

    _library_class = SimtLibrary


class SimtContext(cpu.CPUContext):
    """Target context; `plain=True` is the view of it from outside kernels (see `entry`)."""

    plain = False

    def init(self) -> None:
        super().init()
        self._internal_codegen = SimtCodegen("simt.exec")

    def load_additional_registries(self) -> None:
        # The first context to initialise Numba's runtime owns its library: let it be the CPU's.
        rtsys.initialize(cpu_target.target_context)
        super().load_additional_registries()
        self.install_registry(lowerings)

    @property
    def call_conv(self) -> CPUCallConv:
        return CPUCallConv(self) if self.plain else SimtCallConv(self)

    def post_lowering(self, mod: Any, library: Any) -> None:
        if self.fastmath:
            cpu.fastmathpass.rewrite_module(mod, self.fastmath)

    def get_executable(self, library: Any, fndesc: Any, env: Any) -> Any:
        if self.plain:
            return super().get_executable(library, fndesc, env)
        environments[self.get_env_name(fndesc)] = env
        return object()  # nothing to run yet; Numba wants something unique to file it under


class SimtTypingContext(typing.Context):
    """Typing context that reads kernel names through the `names` table."""

    def load_additional_registries(self) -> None:
        super().load_additional_registries()
        self.install_registry(typings)

    def resolve_value_type(self, val: Any) -> Any:
        meaning = _meaning(val)
        return meaning if isinstance(meaning, KernelName) else super().resolve_value_type(meaning)


class SimtOptions(cpu.CPUTargetOptions):
    """Compilation flags: CUDA's error model, no reference counting, no Python wrappers."""

    def finalize(self, flags: Any, options: Any) -> None:
        flags.nrt = False
        flags.enable_pyobject = False
        flags.enable_looplift = False
        flags.no_cpython_wrapper = True
        flags.no_cfunc_wrapper = True
        flags.inherit_if_not_set("error_model", default="numpy")
        flags.inherit_if_not_set("boundscheck", default=False)
        super().finalize(flags, options)


class SimtTarget(TargetDescriptor):
    """Fresh contexts, made on first use."""

    options = SimtOptions

    @cached_property
    def typing_context(self) -> SimtTypingContext:
        return SimtTypingContext()

    @cached_property
    def target_context(self) -> SimtContext:
        return SimtContext(self.typing_context, "simt")


simt_target = SimtTarget("simt")


class SimtDispatcher(Dispatcher):
    """A Python function compiled for this target, one specialisation per signature."""

    targetdescr = simt_target

    def __init__(
        self, py_func: Any, locals: Any = None, targetoptions: Any = None, **_: Any
    ) -> None:
        options = {"nopython": True, **(targetoptions or {})}
        super().__init__(py_func, locals or {}, options, SimtCompiler)

    def compile(self, sig: Any) -> Any:
        with target_override("simt"):
            return super().compile(sig)

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres


def device(py_func: Any = None, **options: Any) -> Any:
    """Compile a Python function for calls from kernels (and overloads for this target)."""
    if py_func is None:
        return lambda func: device(func, **options)
    return SimtDispatcher(py_func, targetoptions=options)


dispatcher_registry[Simt] = SimtDispatcher
jit_registry[Simt] = device
