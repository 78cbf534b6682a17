"""What somebody has asked for is done for a while."""

from tara.live.wish import Wish


def test_it_ends_unless_it_is_renewed() -> None:
    wish = Wish(10.0)
    assert not wish.holds(0.0)
    wish.renew(5.0)
    assert wish.holds(14.9)
    assert not wish.holds(15.0)
    wish.renew(20.0)
    wish.renew(25.0)
    assert wish.holds(34.0)
    assert not wish.holds(35.0)
