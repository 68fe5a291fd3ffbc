"""What operators, kernels and types mean for a signature: the table `operators.toml`, read once and checked.

>>> class_of("aten::relu_"), class_of("aten::add")
('relu', '')
>>> kernel_family("volta_sgemm_128x64_nn"), kernel_family("Cijk_Alik_Bljk_BBS_BH"), precision("c10::BFloat16")
('cublas_gemm', 'tensile_gemm', 'bf16')
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import msgspec

from federation.protocol.toml_tables import BadTable, convert, loads, shipped


@dataclass(frozen=True)
class OperatorTable:
    """The table. `classes` by full operator name; `weights` gives the place of the weight among the arguments."""

    classes: Mapping[str, str]
    implies: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, int]
    heavy: frozenset[str]
    ignored: tuple[re.Pattern[str], ...]
    compiled: tuple[re.Pattern[str], ...]
    kernels: Mapping[str, re.Pattern[str]]
    precisions: Mapping[str, re.Pattern[str]]
    multiplying: tuple[re.Pattern[str], ...]
    multiplying_kernels: re.Pattern[str]
    narrow: Mapping[str, re.Pattern[str]]
    groups: Mapping[str, re.Pattern[str]]


class _Operators(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    operators: frozenset[str]


class _Patterns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    patterns: tuple[str, ...]


class _Multiplications(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    patterns: tuple[str, ...]
    kernels: str


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    classes: dict[str, tuple[str, ...]]
    implies: dict[str, tuple[str, ...]]
    weights: dict[str, int]
    heavy: _Operators
    ignored: _Patterns
    compiled: _Patterns
    multiplications: _Multiplications
    narrow: dict[str, str]
    groups: dict[str, str]
    kernels: dict[str, str]
    precisions: dict[str, str]


def parse(text: str) -> OperatorTable:
    """Reads a table; BadTable if an operator has two classes, or a rule names an unknown entry."""
    data = convert(loads(text, "operators.toml"), _Table, "operators.toml")
    named = [(f"aten::{member}", name) for name, members in data.classes.items() for member in members]
    classes = dict(named)
    if len(classes) != len(named):
        raise BadTable("operators.toml: an operator must have one class")
    unknown = {name for pair in data.implies.items() for name in (pair[0], *pair[1])} - set(data.classes)
    unknown |= data.heavy.operators - set(data.weights)
    if unknown:
        raise BadTable(f"operators.toml: rules name unknown entries: {sorted(unknown)}")
    return OperatorTable(
        classes=classes,
        implies=data.implies,
        weights=data.weights,
        heavy=data.heavy.operators,
        ignored=tuple(map(re.compile, data.ignored.patterns)),
        compiled=tuple(map(re.compile, data.compiled.patterns)),
        kernels=_of_any_case(data.kernels),
        precisions=_of_any_case(data.precisions),
        multiplying=tuple(map(re.compile, data.multiplications.patterns)),
        multiplying_kernels=re.compile(data.multiplications.kernels, re.IGNORECASE),
        narrow=_of_any_case(data.narrow),
        groups=_of_any_case(data.groups),
    )


def _of_any_case(patterns: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    return {name: re.compile(pattern, re.IGNORECASE) for name, pattern in patterns.items()}


@cache
def table() -> OperatorTable:
    """The table that ships with the package."""
    return parse(shipped("tenant_client.doctor.workload", "operators.toml"))


def class_of(operator: str) -> str:
    """The class of an operator, "" if it has none. In-place and other variants count as the operator."""
    classes = table().classes
    return classes.get(operator) or classes.get(operator.removesuffix("_"), "")


def classes_of(operators: Iterable[str]) -> frozenset[str]:
    """The classes that occur, less those that another one implies."""
    found = {class_of(operator) for operator in operators} - {""}
    implied = {other for name in found for other in table().implies.get(name, ())}
    return frozenset(found - implied)


@cache
def is_part_of_a_model(operator: str) -> bool:
    """Whether an operator tells the model, rather than the backend, the optimiser or the runtime."""
    return "::" in operator and not any(pattern.search(operator) for pattern in table().ignored)


@cache
def is_compiled(operator: str) -> bool:
    """Whether this is what a compiler made of some operators."""
    return any(pattern.search(operator) for pattern in table().compiled)


@cache
def kernel_family(kernel: str) -> str:
    """The family of a GPU kernel, `other` if none fits."""
    return _first(table().kernels, kernel) or "other"


@cache
def precision(dtype: str) -> str:
    """The precision of a type as a trace spells it, "" for what is no floating-point type."""
    return _first(table().precisions, dtype)


@cache
def multiplies(operator: str) -> bool:
    """Whether an operator multiplies by a weight."""
    return any(pattern.search(operator) for pattern in table().multiplying)


@cache
def kernel_multiplies(kernel: str) -> bool:
    """Whether a GPU kernel multiplies matrices, other than those of attention."""
    return table().multiplying_kernels.search(kernel) is not None


@cache
def narrow_precision(name: str, types: tuple[str, ...] = ()) -> str:
    """`fp4` or `fp8` where the types of a multiplication's tensors or its name say so, else "".

    >>> narrow_precision("aten::_scaled_mm", ("c10::Float8_e4m3fn", "c10::Float8_e5m2", "float"))
    'fp8'
    >>> narrow_precision("nvjet_sm100_qqtst_128x256_TNT"), narrow_precision("nvjet_sm100_tst_128x256_TNT")
    ('fp8', '')
    """
    found = {precision(kind) for kind in types}
    return next((kind for kind in table().narrow if kind in found), "") or _first(table().narrow, name)


@cache
def role_of(group: str) -> str:
    """What the ranks of a process group divide among themselves by its name, "" where it names nothing or two things.

    >>> role_of("mesh_tp"), role_of("TENSOR_MODEL_PARALLEL_GROUP"), role_of("default_pg")
    ('tp', 'tp', '')
    """
    roles = [role for role, pattern in table().groups.items() if pattern.search(group)]
    return roles[0] if len(roles) == 1 else ""


def _first(patterns: Mapping[str, re.Pattern[str]], text: str) -> str:
    return next((name for name, pattern in patterns.items() if pattern.search(text)), "")
