"""Names of those who were forgotten: who has one, and that many of them cost a step nothing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.ledger.names import Names
from streams.schemas import ERASED, Forget
from tests.unit.ledger.ledgers import Log, halted_for, rebuilt

integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)
users = integers | st.text(max_size=3)


@given(
    st.lists(st.tuples(users, st.lists(integers, max_size=20), st.lists(users, max_size=9))),
)
def test_who_has_a_name_is_what_a_set_says_after_each_of_them(steps):
    names, plain = Names(), set()
    for name, numbers, mixed in steps:
        names.add(name)
        plain.add(name)
        assert len(names) == len(plain)
        array = np.array(numbers, dtype=np.int64)
        assert names.among(array).tolist() == [number in plain for number in numbers]
        assert names.among(mixed).tolist() == [user in plain for user in mixed]
        assert [user in names for user in mixed] == [user in plain for user in mixed]


class Listed(set):
    """A set that counts how often all of it was gone through."""

    times = 0

    def __iter__(self):
        type(self).times += 1
        return super().__iter__()


def test_a_step_does_not_go_through_all_who_were_forgotten():
    log, packed = Log(), np.arange(60, dtype="<i8").tobytes()
    log.create()
    log.create("inner", within="d")
    log.open("inner")
    log.charge(0, packed[: 8 * 50], np.ones(50), dataset="inner")
    for user in range(0, 50, 2):
        log.send(Forget(request="f", user=user))
    again = rebuilt(log.changes)
    for ledger in (log.ledger, again):
        names = ledger.policies.budgets("inner").own.forgotten
        assert len(names) == 25
        names._all = Listed(names._all)
    for step in (1, 2):
        decided = log.charge(step, packed, np.full(60, 0.1), dataset="inner")
        outputs = again.apply(len(log.records) - 1, log.records[-1])
        assert [out.value for out in outputs] == [out.value for out in log.outputs[-1]]
        gone = [user < 50 and user % 2 == 0 for user in range(60)]
        assert halted_for(decided, ERASED) == gone
    assert Listed.times == 0
