"""Names for annotations, which nothing evaluates: to import them from their own modules costs a start 4 ms."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable as Callable
    from collections.abc import Iterable as Iterable
    from collections.abc import Iterator as Iterator
    from collections.abc import Sequence as Sequence
    from typing import Any as Any
    from typing import NoReturn as NoReturn
    from typing import Protocol as Protocol
else:
    Any = Callable = Iterable = Iterator = NoReturn = Protocol = Sequence = object
