from __future__ import annotations

from streams.records import BUDGET, HALT_REASONS, MAX_BUDGETS, halt_reason


def test_every_byte_has_one_name_and_texts() -> None:
    names = [reason.name for reason in HALT_REASONS.values()]
    assert len({*names, BUDGET}) == len(names) + 1
    assert all(all(reason) for reason in HALT_REASONS.values())
    assert [halt_reason(byte) for byte in HALT_REASONS] == names


def test_bytes_of_budgets_are_no_other_reason() -> None:
    assert min(HALT_REASONS) >= MAX_BUDGETS
    assert {halt_reason(byte) for byte in range(MAX_BUDGETS)} == {BUDGET}
