"""Which datasets are within which: what each policy says, without asking all of them each time."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from streams.ledger.ledger import Ledger
from streams.records import Policy
from tests.unit.ledger.ledgers import Log, rebuilt

NAMES = ["b", "a", "ab", "a-b", "c", "B", "d"]


def policy(name: str, parents=UNSET, budget: int = 8) -> Policy:
    return Policy(
        dataset=name,
        partitions=1,
        measure="zcdp",
        budget=[budget],
        odometer_step=[1],
        parents=parents,
    )


def around(policies: dict[str, Policy], name: str) -> list[str]:
    """A dataset and its ancestors, as their policies say it."""
    found = [name]
    for each in found:  # which grows
        found += [outer for outer in policies[each].parents or () if outer not in found]
    return found


def outermost(policies: dict[str, Policy], name: str) -> list[str]:
    """The datasets without a parent in a dataset's family, as the policies of all say it."""
    family, before = {name}, set()
    while family != before:
        before = set(family)
        for each in policies:
            chain = around(policies, each)
            family |= set(chain) if family.intersection(chain) else set()
    return sorted(each for each in family if policies[each].parents is UNSET)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.just([]) | st.lists(st.sampled_from(NAMES), unique=True, max_size=3),
            st.integers(1, 2),
        ),
        max_size=30,
    )
)
def test_nesting_follows_the_policies(steps):
    policies, plain = Ledger(0, 1).state.policies, {}
    for name, outer, budget in steps:
        is_used = any(name in (other.parents or ()) for other in plain.values())
        if any(each not in plain or name in around(plain, each) for each in outer):
            if name in plain and not is_used:  # withdrawn
                del policies[name,], plain[name]
        else:  # new, the same, or in place of another one
            policies[name,] = plain[name] = policy(name, sorted(outer) or UNSET, budget)
        for one in NAMES:
            assert policies.has_nested(one) == any(one in (p.parents or ()) for p in plain.values())
            if one in plain:
                inside = sorted(other for other in plain if one in around(plain, other))
                assert policies.with_nested(one) == inside
                assert policies.with_ancestors(one) == around(plain, one)
                assert list(policies.outermost_of(one)) == outermost(plain, one)


def test_policies_may_be_restored_in_any_order():
    log = Log()
    for name, outer in (("z", UNSET), ("m", "z"), ("a", "m"), ("b", "z"), ("y", UNSET)):
        log.create(name, parents=outer if outer is UNSET else [outer])
    pages = {name: log.ledger.state.take_page(name) for name in log.ledger.state.unmerged()}
    for order in (sorted(pages), sorted(pages, reverse=True)):
        again = rebuilt([])
        again.state.load({name: pages[name] for name in order})
        assert again.state.policies.with_nested("z") == ["a", "b", "m", "z"]
        assert again.state.policies.with_nested("m") == ["a", "m"]
