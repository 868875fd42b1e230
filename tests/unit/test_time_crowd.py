"""What the tracer has no room for, and who ends for it."""

from __future__ import annotations

from nvc.daemon.time.crowd import Crowd
from nvc.daemon.time.owners import STRANGER
from nvc.kernel.objects import CROWDED, EXITED, FULL, News


def test_who_lacks_objects_is_said_once_until_it_ends() -> None:
    crowd = Crowd()
    (text,) = crowd.take([News(FULL, 7, 0, 0), News(FULL, 7, 0, 0, times=3)])
    assert "process 7 has channels that nvcd does not see" in text
    assert crowd.is_full and crowd.lacking == {7}
    crowd.begin()
    assert crowd.take([News(FULL, 7, 0, 0)]) == [] and crowd.is_full
    assert crowd.take([News(EXITED, 7, 0, 0)]) == [] and not crowd.lacking


def test_who_has_too_much_of_its_own_is_not_excused() -> None:
    crowd = Crowd()
    (text,) = crowd.take([News(CROWDED, 7, 0, 0)])
    assert text == "process 7 has 4,096 objects of the driver: nvcd sees no more of it"
    assert not crowd.is_full and not crowd.lacking


def test_the_largest_process_of_the_largest_slice_ends() -> None:
    owners = {1: "small", 2: "large", 3: "large", 4: STRANGER}
    assert Crowd().whose_end({1: 4000, 2: 3000, 3: 2000, 4: 100}, owners) == (2, "large", 3000)
    assert Crowd().whose_end({1: 4000, 2: 3000, 3: 900, 4: 3999, 9: 9000}, owners) == (1, "small", 4000)


def test_who_has_filled_the_table_is_not_excused() -> None:
    crowd = Crowd()
    crowd.take([News(FULL, 7, 0, 0), News(FULL, 8, 0, 0)])
    assert crowd.excuses(7, "large") and crowd.excuses(8, "small") and not crowd.excuses(9, "small")
    assert crowd.whose_end({2: 3000}, {2: "large"}) == (2, "large", 3000)
    assert not crowd.excuses(7, "large") and crowd.excuses(8, "small")


def test_for_a_process_in_no_slice_nobody_ends() -> None:
    assert Crowd().whose_end({1: 10, 4: 4000}, {1: "small", 4: STRANGER}) is None
    assert Crowd().whose_end({}, {}) is None
