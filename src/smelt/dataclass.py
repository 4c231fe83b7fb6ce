"""Data classes whose methods are compiled when they are first called.

The standard library compiles up to nine methods for every data class while a module is imported,
and a program calls few of them: that was a third of the time of `import smelt`, and of a first call
with a warm cache.  Here fields, slots and everything that reads them (`fields`, `replace`,
`asdict`, patterns) are the standard library's; initialiser, comparison and hash are stand-ins that
put the compiled method in their place.

>>> @dataclass(frozen=True, slots=True)
... class Point:
...     x: int
...     y: int = 0
>>> Point(1), Point(1) == Point(1, 0), hash(Point(2)) == hash(Point(2))
(Point(x=1, y=0), True, True)
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

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
        """As the standard library's; `init`, `order` and `unsafe_hash` are left as they are there.

        An instance of a frozen class raises FrozenInstanceError on assignment and deletion.
        """

        def made(cls):
            return build(cls, frozen, slots, eq, repr, kw_only)

        return made if cls is None else made(cls)


__all__ = ["build", "dataclass"]

Class = Any


def build(cls: Class, frozen: bool, slots: bool, eq: bool, shown: bool, kw_only: bool) -> Class:
    """What `dataclass` makes of a class: `shown` is its option `repr`."""
    own = cls.__dict__
    hashed = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
    has = {name for name in ("__init__", "__repr__", "__eq__", "__setattr__") if name in own}
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # the standard library would inspect the signature for one
    cls = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
    if "__init__" not in has:
        cls.__init__ = _first(cls, "__init__", lambda: _initialiser(cls, frozen))
    if shown and "__repr__" not in has:
        cls.__repr__ = _repr
    if eq and "__eq__" not in has:
        cls.__eq__ = _first(cls, "__eq__", lambda: _comparison(cls))
    if eq and not hashed:
        cls.__hash__ = _first(cls, "__hash__", lambda: _hash(cls)) if frozen else None
    if frozen:
        _freeze(cls, slots)
    return cls


def _first(cls: Class, name: str, made: Any) -> Any:
    """A method that has itself replaced when it is called for the first time."""

    def method(self: Any, *args: Any, **named: Any) -> Any:
        if cls.__dict__[name] is method:
            setattr(cls, name, made())
        return cls.__dict__[name](self, *args, **named)

    method.__name__ = name
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


def _compiled(name: str, parameters: str, lines: list[str], known: dict[str, Any]) -> Any:
    body = "".join(f"\n {line}" for line in lines or ["pass"])
    exec(f"def {name}({parameters}):{body}", known)  # noqa: S102
    return known[name]


def _initialiser(cls: Class, frozen: bool) -> Any:
    """__init__, which in a frozen class goes past its __setattr__."""
    known: dict[str, Any] = {"_none": dataclasses.MISSING, "_set": object.__setattr__}
    parameters: dict[bool, list[str]] = {False: ["self"], True: []}
    lines: list[str] = []
    for k, f in enumerate(dataclasses.fields(cls)):
        known[f"_d{k}"] = f.default
        # dict[str, int]() takes seven times as long as dict(): it notes what it was called by.
        known[f"_f{k}"] = getattr(f.default_factory, "__origin__", f.default_factory)
        made = f.default_factory is not dataclasses.MISSING
        given = f.default is not dataclasses.MISSING
        value = f"_f{k}()" if made else f"_d{k}"
        if f.init:
            default = "=_none" if made else f"=_d{k}" if given else ""
            parameters[f.kw_only is True].append(f.name + default)
            value = f"_f{k}() if {f.name} is _none else {f.name}" if made else f.name
        elif not (made or given):
            continue
        member = cls.__dict__.get(f.name)
        if not frozen:
            lines.append(f"self.{f.name} = {value}")
        elif hasattr(member, "__set__"):  # a slot
            known[f"_s{k}"] = member.__set__  # type: ignore[union-attr]
            lines.append(f"_s{k}(self, {value})")
        else:
            lines.append(f"_set(self, {f.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    named = ["*", *parameters[True]] if parameters[True] else []
    return _compiled("__init__", ", ".join([*parameters[False], *named]), lines, known)


def _values(of: str, chosen: list[str]) -> str:
    return f"({''.join(f'{of}.{name}, ' for name in chosen)})"


def _comparison(cls: Class) -> Any:
    chosen = [f.name for f in dataclasses.fields(cls) if f.compare]
    mine, theirs = (_values(of, chosen) for of in ("self", "other"))
    lines = [
        f"if other.__class__ is self.__class__: return {mine} == {theirs}",
        "return NotImplemented",
    ]
    return _compiled("__eq__", "self, other", lines, {})


def _hash(cls: Class) -> Any:
    fields = dataclasses.fields(cls)
    chosen = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
    return _compiled("__hash__", "self", [f"return hash({_values('self', chosen)})"], {})


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
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
