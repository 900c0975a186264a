"""The type of a `Team` in kernels.

A `Team` that is an argument, a global or an element of a tuple has this type: an integer of 64
bits, the team's number, with the attributes and methods of the host's object that mean something
in kernels. Operations take plain integers as well. It can be used wherever an integer can.
"""

from __future__ import annotations

import operator
from typing import Any

from numba.cuda import types
from numba.cuda.cudadecl import register_attr
from numba.cuda.datamodel.models import IntegerModel
from numba.cuda.extending import lower_builtin, overload, overload_attribute, overload_method
from numba.cuda.models import register_model
from numba.cuda.typing.templates import AttributeTemplate
from numba.cuda.typing.typeof import typeof_impl

from gpushmem.artifacts.compile_errors import Refused
from gpushmem.ops import OPS
from gpushmem.ops.team import Team

__all__ = ["TeamType", "numbered"]


class TeamType(types.Integer):
    """The Numba type of a `Team`.

    Its name is that of the type its values are stored as, so Numba finds NumPy's and C's types.
    """

    def __init__(self) -> None:
        super().__init__("int64", bitwidth=64, signed=True)

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        """Its part in mangled names, which tells functions of teams from those of integers."""
        return "team", ()

    def can_convert_to(self, typingctx: Any, other: Any) -> Any:
        """It converts as an integer does."""
        return typingctx.can_convert(types.int64, other)


team_type = TeamType()
register_model(TeamType)(IntegerModel)


@typeof_impl.register(Team)
def _(team: Team, context: Any) -> TeamType:
    return team_type


def numbered(typ: Any) -> Any:
    """The type that operations get: for a team, that of its number."""
    return types.int64 if isinstance(typ, TeamType) else typ


# --- attributes and methods


def _is_team(typ: Any) -> bool:
    return isinstance(typ, TeamType)


@lower_builtin(bool, TeamType)
def _(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.icmp_signed(">=", args[0], args[0].type(0))


@overload(operator.not_)
def _not(team: Any) -> Any:
    return (lambda team: int(team) < 0) if _is_team(team) else None


ATTRIBUTES = ("my_pe", "n_pes", "translate_pe", "barrier", "sync")


@register_attr
class TeamAttributes(AttributeTemplate):
    """The error for attributes that a team does not have in kernels."""

    key = TeamType

    def generic_resolve(self, team: Any, name: str) -> None:
        """Raise for unknown names; known ones are resolved elsewhere."""
        if name not in ATTRIBUTES:
            *most, last = ATTRIBUTES
            raise Refused(f"a team in a kernel has {', '.join(most)} and {last}, but no {name}")


def _calling(name: str) -> Any:
    """An overload of an attribute or a method: a call of the operation with the team."""
    operation = OPS[name].function

    def call(team: Any) -> Any:
        return operation(team)

    def define(team: Any) -> Any:
        return call

    return define


for attribute in ("my_pe", "n_pes"):
    overload_attribute(TeamType, attribute)(_calling(f"team_{attribute}"))
for method in ("barrier", "sync"):
    overload_method(TeamType, method)(_calling(method))

translate = OPS["team_translate_pe"].function


@overload_method(TeamType, "translate_pe")
def _translate_pe(team: Any, pe: Any, to: Any) -> Any:
    def call(team: Any, pe: Any, to: Any) -> Any:
        return translate(team, pe, to)

    return call
