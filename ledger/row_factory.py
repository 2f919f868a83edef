"""Rows as the dataclasses that name their columns: a psycopg row factory.

A row may have more columns than the class has fields (``select *`` in a database that a later
release has migrated): they are left out. A field whose type is an enum becomes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from operator import itemgetter
from typing import Any, Final, TypeVar, get_type_hints

from psycopg import AsyncCursor
from psycopg.rows import AsyncRowFactory, RowMaker

T = TypeVar("T")

_MAKERS: Final[dict[tuple[type, tuple[str, ...]], RowMaker[Any]]] = {}
"""By class and columns: what to pick is the same for every row of a query, and every time."""


def record_row(record: type[T]) -> AsyncRowFactory[T]:
    """Return the row factory of a dataclass."""

    def factory(cursor: AsyncCursor[Any]) -> RowMaker[T]:
        found = cursor.pgresult
        if found is None:
            return _no_rows
        columns = tuple((found.fname(at) or b"").decode() for at in range(found.nfields))
        return _maker(record, columns)

    return factory


def read(record: type[T], row: Mapping[str, Any]) -> T:
    """Return the part of a row that is a record, where the row is more than that."""
    return _maker(record, tuple(row))(tuple(row.values()))


def _maker(record: type[T], columns: tuple[str, ...]) -> RowMaker[T]:
    found = _MAKERS.get((record, columns))
    if found is None and columns:
        found = _MAKERS[record, columns] = _new_maker(record, columns)
    return found or _no_rows


def _new_maker(record: Any, columns: tuple[str, ...]) -> RowMaker[Any]:
    names = [field.name for field in fields(record)]
    hints = get_type_hints(record)
    enums = [
        (at, hints[name])
        for at, name in enumerate(names)
        if isinstance(hints[name], type) and issubclass(hints[name], Enum)
    ]
    # Of two columns with one name the last counts: `select a.*, … as result` replaces one.
    places = {name: at for at, name in enumerate(columns)}
    pick = itemgetter(*(places[name] for name in names))

    def make(values: Sequence[Any]) -> Any:
        picked = pick(values)
        if enums:
            picked = list(picked)
            for at, kind in enums:
                picked[at] = kind(picked[at])
        return record(*picked)

    return make


def _no_rows(values: Sequence[Any]) -> Any:
    raise AssertionError("a statement without columns has no rows")
