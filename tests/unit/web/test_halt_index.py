"""Of every user it is known what the user was left out of, however often records come."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from streams.records import TOO_SOON, Decision, Halted, User
from streams.records.packing import pack_bits
from streams.records.users import UserIds
from streams.web.indexes import HaltIndex


def decided(
    step: int, halted: list[User], exhausted: list[User] | None = None, run: str = "r"
) -> Decision:
    """One step of partition 0, of these users and one who is admitted."""
    users = [*halted, 10**6]
    packed = np.array(halted, dtype=np.int64) if all(type(u) is int for u in halted) else halted
    return Decision(
        dataset="d",
        run=run,
        attempt=1,
        step=step,
        partition=0,
        offset=step,
        digest=b"",
        users=len(users),
        admitted=pack_bits(np.array([user == 10**6 for user in users])),
        exhausted=pack_bits(np.array([user in (exhausted or ()) for user in users])),
        halted=UserIds(packed).pack(),
        reasons=bytes(len(halted)),
        budgets=["d"],
    )


def test_a_user_is_told_how_often_and_of_which_steps() -> None:
    known = HaltIndex()
    for step, halted in enumerate([[3], [1, 3], [], [3, 2], [1]]):
        known.see(decided(step, list(halted), exhausted=[3] if step == 3 else []), 100.0 + step)
    (three,) = known.of(0, 3)
    assert (three.first, three.last, three.times) == (0, 3, 3)
    assert (three.began, three.ended) == (100.0, 103.0)
    assert (three.exhausted, three.reason, three.refused_by) == (True, "budget", "d")
    (one,) = known.of(0, 1)
    assert (one.first, one.last, one.times, one.exhausted) == (1, 4, 2, False)
    assert known.of(0, 4) == known.of(1, 3) == known.of(0, "3") == []


def test_what_is_published_again_is_counted_once() -> None:
    known = HaltIndex()
    for step in (0, 1, 0, 1, 1, 2):
        known.see(decided(step, [7]), float(step))
    (episode,) = known.of(0, 7)
    assert (episode.times, episode.last) == (3, 2)


def test_strings_and_integers_are_told_apart() -> None:
    known = HaltIndex()
    known.see(decided(0, ["1", 2, "ada"]), 0.0)
    assert [len(known.of(0, user)) for user in ("1", 1, 2, "2", "ada", "Ada")] == [1, 0, 1, 0, 1, 0]


def test_members_of_a_roster_are_left_out_from_a_step_on() -> None:
    known = HaltIndex()
    for part, user in enumerate((5, 6)):
        known.see(
            Halted(
                dataset="d",
                run="r",
                attempt=1,
                step=9,
                partition=0,
                offset=9,
                part=part,
                parts=2,
                users=UserIds(np.array([user])).pack(),
                exhausted=b"\0",
                reasons=b"\0",
                budgets=["d"],
            ),
            0.0,
        )
    for user in (5, 6):
        (episode,) = known.of(0, user)
        assert (episode.is_roster, episode.last) == (True, 9)


def test_the_budget_that_refused_and_who_came_too_soon_are_told() -> None:
    known = HaltIndex()
    plain = decided(0, [1, 2])
    known.see(replace(plain, budgets=["d", "person"], reasons=b"\1\0"), 0.0)
    assert [known.of(0, user)[0].refused_by for user in (1, 2)] == ["person", "d"]
    known.see(replace(plain, step=1, reasons=bytes([TOO_SOON, 0])), 0.0)
    (first,), (second,) = known.of(0, 1), known.of(0, 2)
    assert (first.reason, first.refused_by) == ("too-soon", None)
    assert (second.reason, second.refused_by) == ("budget", "d")


@pytest.mark.parametrize("most", [100, 1000])
def test_runs_that_were_decided_longest_ago_go_first_and_it_is_said_since_when(most: int) -> None:
    known = HaltIndex(most=most)
    for number in range(50):
        known.see(decided(0, list(range(30)), run=f"run-{number}"), float(number))
    kept = [episode.run for episode in known.of(0, 7)]
    assert kept == [f"run-{number}" for number in range(49, 49 - most // 30, -1)]
    assert known.since == 50.0 - len(kept) - 1.0


def test_many_steps_of_many_users_agree_with_a_count() -> None:
    generator, known = np.random.default_rng(5), HaltIndex()
    counts = np.zeros(40, dtype=int)
    for step in range(60):
        halted = generator.permutation(40)[: int(generator.integers(0, 20))]
        counts[halted] += 1
        known.see(decided(step, halted.tolist()), 0.0)
    found = [sum(episode.times for episode in known.of(0, user)) for user in range(40)]
    assert found == counts.tolist()
