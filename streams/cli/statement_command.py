"""The command that states a dataset's guarantee, backed by a verification of the log."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from accounting import InvalidInput
from streams.cli.commands import command
from streams.cli.log_commands import check_same_log, opened, receipt_in, receipt_of
from streams.cli.options import AT_DELTA, FILE_OBSERVER, OF_DATASET, SIGNING_KEY, arg
from streams.cli.printing import UnusableInput, note, plain, say, show
from streams.cli.subjects import no_dataset
from streams.config import Config
from streams.failures import Exit
from streams.operations.statement import Statement, rounded_up, statement_of
from streams.operations.status import read_datasets
from streams.records import Policy
from streams.replay.findings import Verified
from streams.replay.receipts import Receipt, UnusableReceipt, policies_digest
from streams.replay.verify import verify


@command(
    "statement",
    FILE_OBSERVER,
    OF_DATASET,
    AT_DELTA,
    SIGNING_KEY,
    arg(
        "--verified RECEIPT",
        "the receipt of an earlier `turnstile verify`, instead of verifying now",
    ),
    arg("--public-key FILE", "the public key of that receipt's signer"),
    lines=("statement",),
)
def statement(options: argparse.Namespace, config: Config) -> int:
    """State the guarantee of a dataset for model cards and registries, backed by verify.

    The log is replayed and compared with all that was stored and published. If anything differs,
    nothing is stated, and the exit code is 1. The statement has the heads of the log's hash chain.
    It has no number of users, and may be published.
    """
    if options.key and options.verified:
        raise UnusableReceipt("--key signs a new receipt, and --verified names one: give one")
    if options.public_key and not options.verified:
        raise UnusableReceipt("--public-key is for a receipt: give --verified RECEIPT as well")
    if options.verified:
        receipt, policies = _from_receipt(options, config)
    else:
        with opened(config) as archive:
            verified = verify(archive)
        if not verified.fits:
            note("turnstile: log and service differ: `turnstile verify` shows where")
            return Exit.REFUSED
        receipt, policies = receipt_of(verified, options.key, config), _policies(verified)
    if options.dataset not in policies:
        return no_dataset(options.dataset)
    try:
        stated = statement_of(_chain(policies, options.dataset), options.delta)
    except InvalidInput as problem:
        raise UnusableInput(str(problem)) from problem
    if options.json:
        fields = {**asdict(stated), "text": stated.text(), "registry": registry_fields(stated)}
        show("statement", {**fields, "receipt": msgspec.to_builtins(receipt)}, True)
    else:
        _say(stated, receipt)
    return Exit.OK


def _from_receipt(
    options: argparse.Namespace, config: Config
) -> tuple[Receipt, Mapping[str, Policy]]:
    """Return the receipt of an earlier verification, and the policies, which must be its."""
    receipt = receipt_in(options.verified, options.public_key)
    with opened(config) as archive:
        check_same_log(receipt, archive, config)
    policies = {name: found.policy for name, found in read_datasets(config).items()}
    packed = {name: msgspec.msgpack.encode(policy) for name, policy in policies.items()}
    if policies_digest([packed] * receipt.partitions) != receipt.policies:
        raise UnusableReceipt(
            f"datasets were created or withdrawn after the receipt of {receipt.time}: run the "
            "command without --verified"
        )
    return receipt, policies


def _policies(verified: Verified) -> dict[str, Policy]:
    """Return the replayed policies.

    Raises:
        UnusableInput: the partitions have different ones.
    """
    first, *others = [part.policies for part in verified.partitions]
    if any(other != first for other in others):
        raise UnusableInput(
            "only some partitions have all datasets: repeat the creation or withdrawal that was "
            "interrupted"
        )
    return {name: msgspec.msgpack.decode(packed, type=Policy) for name, packed in first.items()}


def _chain(policies: Mapping[str, Policy], name: str) -> list[Policy]:
    """Return the policies of a dataset and of all that its charges draw on, the nearest first."""
    names = [name]
    for each in names:  # which grows
        policy = policies[each]
        above = policy.parents or ([policy.share_of] if policy.share_of else [])
        names += [outer for outer in above if outer not in names]
    return [policies[each] for each in names]


def registry_fields(stated: Statement) -> dict[str, Any]:
    """Return the fields of an entry in the OpenDP deployments registry that a policy decides."""
    rho = {"rho": stated.budget.amounts[0]} if stated.budget.unit == "rho" else {}
    delta = {"delta": stated.delta} if stated.delta else {}
    return {
        "dp_flavor": {
            "name": stated.budget.kind,
            "input_metric": f"symmetric distance of users: {stated.neighbours}",
            "bound_on_input_distance": 1,
            "unprotected_quantities": "; ".join(stated.not_covered),
        },
        "privacy_loss": {
            "privacy_unit": "User-level",
            "privacy_unit_description": stated.text(),
            "privacy_parameters": {"epsilon": stated.epsilon, **delta, **rho},
            "privacy_parameters_description": _amount(stated),
        },
        "model": {"model_name": "Central", "release_type": "Many releases"},
        "accounting": {"composition": "; ".join(stated.ensured)},
    }


def _amount(stated: Statement) -> str:
    budget = stated.budget
    if not budget.orders:
        return f"{budget.unit} {rounded_up(budget.amounts[0])} ({budget.kind})"
    which = "at one of the orders, each user its own" if budget.any_order else "at every order"
    return f"{budget.unit}, {len(budget.orders)} orders ({budget.kind}), {which}"


def _say(stated: Statement, receipt: Receipt) -> None:
    say(stated.text())
    say("")
    say(f"Budget: {_amount(stated)}, of dataset {plain(stated.budget.dataset)}.")
    for other in stated.parents:
        if other != stated.budget:
            say(
                f"Every charge also fits the budget of {plain(other.dataset)}, of epsilon "
                f"{rounded_up(other.epsilon)}."
            )
    _say_list("The service ensures:", stated.ensured)
    _say_list("The operator and the trainers ensure:", stated.assumed)
    say("")
    say(
        f"Verified at {receipt.time}: the log {receipt.topic} with prefix {plain(receipt.prefix)} "
        "was replayed, and fits all that was stored and published. Heads of its hash chain:"
    )
    for head in receipt.heads:
        say(f"  partition {head.partition}, offset {head.next}: {head.head}")
    if receipt.signature is not None:
        say(f"Signature of the receipt: {receipt.signature}")


def _say_list(title: str, items: Sequence[str]) -> None:
    say("")
    say(title)
    for item in items:
        say(f"- {item}")
