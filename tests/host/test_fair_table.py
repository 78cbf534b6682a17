"""The fair table: bounded, and whoever has little keeps it."""

from hypothesis import given
from hypothesis import strategies as st

from tara.host.fair_table import FairTable

CAPACITY, PER_OWNER_MAX = 8, 5


def test_a_key_has_one_owner_the_last_one() -> None:
    table: FairTable[int, str] = FairTable(CAPACITY, PER_OWNER_MAX)
    table.put(1, "a")
    table.put(1, "b")
    assert (table.get(1), table.get(2), len(table), table.owners()) == ("b", None, 1, {"b"})
    assert (table.pop(1), table.pop(1), len(table), table.owners()) == ("b", None, 0, set())


def test_an_owner_with_too_many_loses_its_own_oldest() -> None:
    table: FairTable[int, str] = FairTable(CAPACITY, PER_OWNER_MAX)
    table.put(100, "b")
    evicted = [table.put(key, "a") for key in range(PER_OWNER_MAX + 2)]
    assert evicted == [None] * PER_OWNER_MAX + [0, 1]
    assert table.get(100) == "b"


def test_when_it_is_full_an_owner_of_the_most_loses_its_oldest() -> None:
    table: FairTable[int, str] = FairTable(CAPACITY, PER_OWNER_MAX)
    for key in range(5):
        table.put(key, "many")
    for key in range(5, 8):
        table.put(key, "few")
    assert [table.put(key, "new") for key in (8, 9)] == [0, 1]
    assert [table.get(key) for key in range(2, 10)] == ["many"] * 3 + ["few"] * 3 + ["new"] * 2


Step = tuple[int, int, bool]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.booleans()), max_size=200))
def test_it_stays_within_its_bounds_and_takes_from_nobody_who_has_less(steps: list[Step]) -> None:
    table: FairTable[int, int] = FairTable(CAPACITY, PER_OWNER_MAX)
    model: dict[int, int] = {}

    def count(owner: int) -> int:
        return sum(1 for found in model.values() if found == owner)

    for key, owner, put in steps:
        if not put:
            assert table.pop(key) == model.pop(key, None)
            continue
        unchanged = model.get(key) == owner
        if not unchanged:
            model.pop(key, None)
        evicted = table.put(key, owner)
        assert evicted is None or not unchanged
        if evicted is not None:
            victim = model[evicted]
            has_all_it_may = victim == owner and count(owner) == PER_OWNER_MAX
            assert has_all_it_may or (len(model) == CAPACITY and count(victim) == max(map(count, model.values())))
            # The oldest of that owner.
            assert evicted == next(found for found, whose in model.items() if whose == victim)
            del model[evicted]
        if not unchanged:
            model[key] = owner
        assert {key: table.get(key) for key in model} == model
        assert (len(table), table.owners()) == (len(model), set(model.values()))
        assert len(model) <= CAPACITY
        assert all(count(found) <= PER_OWNER_MAX for found in model.values())


def test_what_belongs_to_somebody_who_is_gone_is_forgotten() -> None:
    table: FairTable[int, str] = FairTable(CAPACITY, PER_OWNER_MAX)
    for key, owner in ((1, "a"), (2, "b"), (3, "a")):
        table.put(key, owner)
    assert table.forget("a") == [1, 3]
    assert (table.get(1), table.get(2), table.owners()) == (None, "b", {"b"})
    assert table.forget("nobody") == []
