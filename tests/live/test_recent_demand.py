"""What somebody has asked for is done for a while."""

from tara.live.recent_demand import RecentDemand


def test_it_ends_unless_it_is_renewed() -> None:
    demand = RecentDemand(10.0)
    assert not demand.holds(0.0)
    demand.renew(5.0)
    assert demand.holds(14.9)
    assert not demand.holds(15.0)
    demand.renew(20.0)
    demand.renew(25.0)
    assert demand.holds(34.0)
    assert not demand.holds(35.0)
