"""Data classes whose methods are compiled on their first call.

The standard library compiles up to nine methods of every data class at import, and a program calls
few of them, which dominated the time of `import smelt`. Here fields, slots and everything that
reads them (`fields`, `replace`, `asdict`, patterns) are the standard library's; initialiser,
comparison and hash are stubs that replace themselves with the compiled method.

>>> @dataclass(frozen=True, slots=True)
... class Point:
...     x: int
...     y: int = 0
>>> Point(1), Point(1) == Point(1, 0), hash(Point(2)) == hash(Point(2))
(Point(x=1, y=0), True, True)
"""

from __future__ import annotations

import dataclasses
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls=None,
        /,
        *,
        frozen=False,
        slots=False,
        eq=True,
        repr=True,  # noqa: A002 - the standard library's name
        kw_only=False,
    ):
        """Decorate a class like `dataclasses.dataclass`, but compile its methods lazily.

        The options `init`, `order` and `unsafe_hash` have their defaults. An instance of a frozen
        class raises FrozenInstanceError on assignment and deletion.
        """

        def decorate(cls):
            return build(cls, frozen, slots, eq, repr, kw_only)

        return decorate if cls is None else decorate(cls)


__all__ = ["build", "dataclass", "replace"]

Class = Any
T = TypeVar("T")


def replace(instance: T, /, **changes: Any) -> T:
    """Return a copy of a data class with other fields, as `dataclasses.replace` does."""
    for name in _initial_fields(type(instance)):
        if name not in changes:
            changes[name] = getattr(instance, name)
    return type(instance)(**changes)


@cache
def _initial_fields(cls: Class) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if f.init)


def build(cls: Class, frozen: bool, slots: bool, eq: bool, shown: bool, kw_only: bool) -> Class:
    """Make a class a data class; `shown` is the decorator's option `repr`."""
    namespace = cls.__dict__
    has_hash = "__hash__" in namespace and not (
        namespace["__hash__"] is None and "__eq__" in namespace
    )
    defined = {
        name for name in ("__init__", "__repr__", "__eq__", "__setattr__") if name in namespace
    }
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # the standard library would inspect the signature for one
    cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
    if "__init__" not in defined:
        cls.__init__ = _lazy_method(cls, "__init__", lambda: _initialiser(cls, frozen))
    if shown and "__repr__" not in defined:
        cls.__repr__ = _repr
    if eq and "__eq__" not in defined:
        cls.__eq__ = _lazy_method(cls, "__eq__", lambda: _comparison(cls))
    if eq and not has_hash:
        cls.__hash__ = _lazy_method(cls, "__hash__", lambda: _hash(cls)) if frozen else None
    if frozen:
        _freeze(cls, slots)
    return cls


def _lazy_method(cls: Class, name: str, compile_method: Any) -> Any:
    """Return a method that compiles its replacement when it is first called."""

    def method(self: Any, *args: Any, **named: Any) -> Any:
        if cls.__dict__[name] is method:
            setattr(cls, name, compile_method())
        return cls.__dict__[name](self, *args, **named)

    method.__name__ = name
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


@cache
def _template(name: str, parameters: str, body: str) -> Any:
    """Compile a method; classes of one shape share it, which takes most of the time."""
    namespace: dict[str, Any] = {}
    exec(f"def {name}({parameters}):{body}", namespace)  # noqa: S102
    return namespace[name].__code__


def _make_method(
    name: str, parameters: str, lines: list[str], names: dict[str, str], namespace: dict[str, Any]
) -> Any:
    """Return a method of these lines, where `names` says what their placeholders stand for."""
    code = _template(name, parameters, "".join(f"\n {line}" for line in lines or ["pass"]))
    variables, attributes = (
        tuple([names.get(x, x) for x in part]) for part in (code.co_varnames, code.co_names)
    )
    return FunctionType(code.replace(co_varnames=variables, co_names=attributes), namespace, name)


def _initialiser(cls: Class, frozen: bool) -> Any:
    """Compile `__init__`, which bypasses `__setattr__` in a frozen class."""
    namespace: dict[str, Any] = {"_none": dataclasses.MISSING, "_set": object.__setattr__}
    parameters: dict[bool, list[str]] = {False: ["self"], True: []}
    defaults: dict[bool, dict[str, Any]] = {False: {}, True: {}}
    names: dict[str, str] = {}
    lines: list[str] = []
    for k, f in enumerate(dataclasses.fields(cls)):
        names |= {f"_a{k}": f.name, f"_x{k}": f.name}
        namespace |= {f"_d{k}": f.default, f"_n{k}": f.name}
        # dict[str, int]() is much slower than dict(): it sets __orig_class__.
        namespace[f"_f{k}"] = getattr(f.default_factory, "__origin__", f.default_factory)
        has_factory = f.default_factory is not dataclasses.MISSING
        has_default = f.default is not dataclasses.MISSING
        value = f"_f{k}()" if has_factory else f"_d{k}"
        if f.init:
            parameters[f.kw_only is True].append(f"_a{k}")
            if has_factory or has_default:
                defaults[f.kw_only is True][f.name] = f.default
            value = f"_f{k}() if _a{k} is _none else _a{k}" if has_factory else f"_a{k}"
        elif not (has_factory or has_default):
            continue
        member = cls.__dict__.get(f.name)
        if not frozen:
            lines.append(f"self._x{k} = {value}")
        elif hasattr(member, "__set__"):  # a slot
            namespace[f"_s{k}"] = member.__set__  # type: ignore[union-attr]
            lines.append(f"_s{k}(self, {value})")
        else:
            lines.append(f"_set(self, _n{k}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    keyword_only = ["*", *parameters[True]] if parameters[True] else []
    every = ", ".join([*parameters[False], *keyword_only])
    method = _make_method("__init__", every, lines, names, namespace)
    method.__defaults__, method.__kwdefaults__ = tuple(defaults[False].values()), defaults[True]
    return method


def _tuple_text(owner: str, count: int) -> str:
    return f"({''.join(f'{owner}._x{k}, ' for k in range(count))})"


def _comparison(cls: Class) -> Any:
    names = {
        f"_x{k}": f.name for k, f in enumerate(f for f in dataclasses.fields(cls) if f.compare)
    }
    mine, theirs = (_tuple_text(of, len(names)) for of in ("self", "other"))
    lines = [
        f"if other.__class__ is self.__class__: return {mine} == {theirs}",
        "return NotImplemented",
    ]
    return _make_method("__eq__", "self, other", lines, names, {})


def _hash(cls: Class) -> Any:
    fields = dataclasses.fields(cls)
    chosen = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
    names = {f"_x{k}": name for k, name in enumerate(chosen)}
    lines = [f"return hash({_tuple_text('self', len(names))})"]
    return _make_method("__hash__", "self", lines, names, {})


def _repr(self: Any) -> str:
    values = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def _freeze(cls: Class, slots: bool) -> None:
    names = frozenset(f.name for f in dataclasses.fields(cls))

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__ = set_attribute
    cls.__delattr__ = delete_attribute
    if slots and "__getstate__" not in cls.__dict__:
        cls.__getstate__ = _state
        cls.__setstate__ = _restore


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    fields = dataclasses.fields(self)
    if len(fields) != len(state):
        raise ValueError(
            f"{type(self).__qualname__} has {len(fields)} fields, not {len(state)}: "
            "another version of Smelt pickled it"
        )
    for f, value in zip(fields, state, strict=True):
        object.__setattr__(self, f.name, value)
