"""Frozen, slotted values without the cost of importing `dataclasses` (14 ms in a hook).

A subclass lists its fields as annotations; defaults are class-level assignments:

    class Point(Value):
        x: int
        y: int = 0

Values compare, hash and print by their fields and refuse assignment. A subclass of a subclass has its own fields
first, and behind them those that it inherits. So what others inherit is declared with `kw_only=True`. It has the
fields of all its bases, and is an instance of the first of them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, ClassVar

    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: object):
        return lambda cls: cls


@dataclass_transform(frozen_default=True, kw_only_default=False)
class ValueType(type):
    """Turns annotations into slots and moves defaults out of their way."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], kw_only: bool = False
    ) -> ValueType:
        """`kw_only` tells type checkers that the fields are given by name."""
        own = tuple(namespace.get("__annotations__", ()))
        defaults: dict[str, Any] = {}
        fields: tuple[str, ...] = ()
        for base in bases:
            fields += getattr(base, "_fields", ())
            defaults.update(getattr(base, "_defaults", {}))
        for field in own:
            if field in namespace:
                defaults[field] = namespace.pop(field)
        joined = tuple(base for base in bases[1:] if hasattr(base, "_fields"))
        namespace["__slots__"] = own + tuple(field for base in joined for field in base._fields)
        namespace["_fields"] = own + fields
        namespace["_defaults"] = defaults
        return super().__new__(mcs, name, tuple(base for base in bases if base not in joined), namespace)


class Value(metaclass=ValueType):
    """Base of every frozen value. Positional arguments follow the order of the annotations."""

    if TYPE_CHECKING:
        _fields: ClassVar[tuple[str, ...]]
        _defaults: ClassVar[dict[str, Any]]
    else:

        def __init__(self, *args, **kwargs):
            put = object.__setattr__
            fields = self._fields
            if len(args) > len(fields):
                raise TypeError(f"{type(self).__name__} takes {len(fields)} fields, got {len(args)}")
            for name, value in zip(fields, args):
                put(self, name, value)
            for name in fields[len(args) :]:
                if name in kwargs:
                    put(self, name, kwargs.pop(name))
                elif name in self._defaults:
                    put(self, name, self._defaults[name])
                else:
                    raise TypeError(f"{type(self).__name__} lacks {name}")
            if kwargs:
                raise TypeError(f"{type(self).__name__} has no {', '.join(kwargs)}")

        def __setattr__(self, name, value):
            raise AttributeError(f"{type(self).__name__}.{name} is frozen")

        __delattr__ = __setattr__

    def __iter__(self) -> Iterator[Any]:
        """The field values in order, so that `tuple(value)` serialises it."""
        return (getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return False
        for name in self._fields:
            if getattr(self, name) != getattr(other, name):
                return False
        return True

    def __hash__(self) -> int:
        return hash((type(self).__name__, *self))

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self))
        return f"{type(self).__name__}({inner})"

    def only(self, kind: type[Value]) -> dict[str, Any]:
        """The fields that it has of `kind`, by name, to make another value with."""
        return {name: getattr(self, name) for name in kind._fields}

    def replace(self, **changes: Any) -> Self:
        """A copy with the named fields changed."""
        merged = dict(zip(self._fields, self))
        merged.update(changes)
        return type(self)(**merged)
