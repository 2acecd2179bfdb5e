"""Plans: the errors of a query's answers for several settings, computed from old events.

A plan charges nothing and draws no noise from the operating system. It closes the windows of a file
of events as an answerer does, and applies the ledger's rule to them, for all users at once. Its
admissions are those of the service, if nothing else charges the dataset and it has no parent.

A plan is a function of the events, without noise. It is as private as they are.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accounting import Gaussian, noise_for_norm_budget
from accounting.exact.invalid_input import quoted
from accounting.filters.payment import grant
from accounting.release.clipping import clip_rows, row_norms
from streams.answerer.corrections import Ratio, correct, ratio_of
from streams.answerer.event_file import EventFile
from streams.answerer.events import EventPlace
from streams.answerer.kinds import AskedQuery, Floats
from streams.answerer.pricing import Costs, costs_of, rho_of
from streams.answerer.query_file import (
    Query,
    QueryFile,
    UnusableQueries,
    parse_queries,
)
from streams.answerer.windows import Calendar, InputState, Window, iso
from streams.ledger.rule import Rule
from streams.queries.continual_monitoring import quantile_of_noise
from streams.records import Policy, User

_REPETITIONS: Final = 20
_SEED: Final = 1
_SETTINGS: Final = 12
_SLACK: Final = 0.05
"""How far below the confidence of the file the coverage of a month that holds may be."""
_CORRECTABLE: Final = ("count", "distinct", "sum")


class Part(NamedTuple):
    """The contributions to one window.

    Attributes:
        users: (n,) numbers of users, in the order of the charge.
        rows: (n, d).
        norms: (n,).
    """

    users: NDArray[np.int64]
    rows: Floats
    norms: Floats


@dataclass(frozen=True)
class Population:
    """The contributions of all users to all windows of a file of queries.

    Attributes:
        users: the ids, by number.
        parts: by query and window number.
    """

    users: list[User]
    parts: dict[tuple[int, int], Part]

    def windows(self, query: int) -> int:
        """Return the number of windows of a query."""
        return sum(one == query for one, _ in self.parts)


def population_of(query_file: QueryFile, file: EventFile) -> Population:
    """Return the contributions of a file of events to every window of a file of queries."""
    queries = tuple(replace(one, left_out=0.0, block=0, corrected=0) for one in query_file.queries)
    state = InputState(replace(query_file, queries=queries))
    numbers: dict[User, int] = {}
    parts: dict[tuple[int, int], Part] = {}

    def close(clock: int | None) -> None:
        while state.is_due(clock):
            window = state.calendar.next
            users, rows = state.content_of(window)
            norms = row_norms(rows) if len(rows) else np.zeros(0)
            present = np.flatnonzero(norms)
            found = [numbers.setdefault(users[place], len(numbers)) for place in present.tolist()]
            bound = state.asked[window.query].bound
            parts[window.query, window.number] = Part(
                np.array(found, dtype=np.int64), rows[present], np.minimum(norms[present], bound)
            )
            state.close(window)

    for offset, event in enumerate(file.events):
        state.take_event(EventPlace(0, offset), event)
        close(state.clock(1, {}))
    close(query_file.source.closed)
    return Population(list(numbers), parts)


class Charges(NamedTuple):
    """The result of charging a population.

    Attributes:
        admitted: by query, the sums of the admitted contributions to each window, (T, d).
        truth: by query, the sums of all contributions, (T, d).
        left_out: by query and window, the numbers of the users who were not admitted in full.
        added_back: by query and block, the sum of what the windows left out, within the limit of a
            block, (d,).
        spent: (users, ...) in units.
    """

    admitted: dict[int, Floats]
    truth: dict[int, Floats]
    left_out: dict[tuple[int, int], NDArray[np.int64]]
    added_back: dict[tuple[int, int], Floats]
    spent: NDArray[np.int64]


class _Accounts:
    """The balances of all users under one policy."""

    def __init__(self, policy: Policy, users: int) -> None:
        self._rule, self._clips = Rule(policy), policy.on_exhaustion == "clip"
        shape = (users,) if self._rule.orders is None else (users, self._rule.orders)
        self.spent = np.zeros(shape, dtype=np.int64)
        self.base = self.spent  # a plan has no odometers
        self.order, self.bound = np.zeros(users, dtype=np.uint8), np.zeros(users, dtype=np.uint8)

    def charge(self, part: Part, noise: float, reserve: float) -> Floats:
        """Charge users for a step, and return the granted norms."""
        payment, _ = self._rule.payment(self, part.users, Gaussian(noise), part.norms, reserve)
        granted, _ = grant([payment], part.norms, clip=self._clips)
        self.spent[part.users] += payment.cost
        return granted


def charge_all(query_file: QueryFile, policy: Policy, population: Population) -> Charges:
    """Charge every window and every block of a file to a population, as an answerer does."""
    costs = costs_of(query_file, [policy])
    accounts = _Accounts(policy, len(population.users))
    queries, dimensions = query_file.queries, [one.dimension for one in costs.asked]
    windows = [population.windows(number) for number in range(len(queries))]
    admitted = {n: np.zeros((windows[n], dimensions[n])) for n in range(len(queries))}
    truth = {n: np.zeros((windows[n], dimensions[n])) for n in range(len(queries))}
    left_out: dict[tuple[int, int], NDArray[np.int64]] = {}
    missing: defaultdict[int, list[Part]] = defaultdict(list)
    lost_in: dict[tuple[int, int], Floats] = {}
    calendar = Calendar(query_file)
    while calendar.step < sum(windows) + len(lost_in) or calendar.next.is_block:
        if (window := calendar.next).is_block:
            lost_in[window.query, window.number] = _charge_block(
                accounts, costs, window, missing[window.query]
            )
            missing[window.query] = []
            calendar.advance()
            continue
        query, part = window.query, population.parts[window.query, window.number]
        granted = accounts.charge(part, costs.noises[query], costs.reserve)
        rows = clip_rows(part.rows, granted) if len(part.rows) else part.rows
        admitted[query][window.number] = rows.sum(axis=0)
        truth[query][window.number] = part.rows.sum(axis=0)
        lost = part.rows - rows
        places = np.flatnonzero(lost.any(axis=1))
        left_out[query, window.number] = part.users[places]
        if window.number < queries[query].corrected:
            missing[query].append(Part(part.users[places], lost[places], part.norms[places]))
        calendar.advance()
    return Charges(admitted, truth, left_out, lost_in, accounts.spent)


def _charge_block(accounts: _Accounts, costs: Costs, window: Window, missing: list[Part]) -> Floats:
    """Charge a block, and return the admitted sum of what its windows left out, (d,)."""
    asked = costs.asked[window.query]
    users = np.concatenate([part.users for part in missing])
    unique, places = np.unique(users, return_inverse=True)
    rows = np.zeros((len(unique), asked.dimension))
    np.add.at(rows, places, np.concatenate([part.rows for part in missing]))
    if not len(unique):
        return np.zeros(asked.dimension)
    norms = np.minimum(row_norms(rows), asked.bound * asked.query.block)
    part = Part(unique, rows, norms)
    granted = accounts.charge(part, costs.corrections[window.query], 0.0)
    return np.asarray(clip_rows(rows, granted).sum(axis=0))


class Errors(NamedTuple):
    """The errors of answers; (T, n), and (repetitions, T, n) for the noisy ones.

    They are NaN where there is no number.

    Attributes:
        bias: the errors without noise.
        off: the errors of the values.
        lower, upper: the errors of the ends of the intervals.
    """

    bias: Floats
    off: Floats
    lower: Floats
    upper: Floats

    @classmethod
    def of(cls, values: Floats, lower: Floats, upper: Floats, truth: Floats) -> Errors:
        """Compare answers, (repetitions + 1, T, n) of which the first are without noise."""
        return cls(values[0] - truth, *(part[1:] - truth for part in (values, lower, upper)))


def _noisy(random: np.random.Generator, sums: Floats, stddev: float) -> Floats:
    """Return sums without noise, and then so many times with it, (repetitions + 1, ...)."""
    drawn = stddev * random.standard_normal((_REPETITIONS, *sums.shape))
    return np.asarray(sums + np.concatenate([np.zeros((1, *sums.shape)), drawn]))


def errors_of(
    raw: Floats, truth: Floats, noise: float, *, dimension: int, confidence: float, seed: int
) -> Errors:
    """Return the errors of answers that are not corrected."""
    values = _noisy(np.random.default_rng(seed), raw, noise)
    half = noise * quantile_of_noise(confidence, dimension)
    return Errors.of(values, values - half, values + half, truth)


def estimated_errors(
    asked: AskedQuery, raw: Floats, truth: Floats, noise: float, *, confidence: float, seed: int
) -> Errors:
    """Return the errors of numbers that are computed from noisy sums, such as ratios."""

    def answered(sums: Floats, stddev: float) -> Floats:
        found = [asked.answered(row, stddev, confidence) for row in sums]
        numbers = [(one.value, one.lower, one.upper) for one in found]
        return np.array(numbers, dtype=np.float64).reshape(len(sums), 3, -1)

    noisy = _noisy(np.random.default_rng(seed), raw, noise)
    found = np.array([answered(sums, noise) for sums in noisy])
    # Without an interval, a ratio can be anything, and its mean square error is infinite.
    found[1:, :, 0][np.isnan(found[1:, :, 1])] = np.nan
    values, lower, upper = (found[:, :, part] for part in range(3))
    return Errors.of(values, lower, upper, answered(truth, 0.0)[:, 0])


def added_back(charges: Charges, query: int, dimension: int) -> Floats:
    """Return what the corrections of a query add back, (blocks, d)."""
    sums = [found for (one, _), found in sorted(charges.added_back.items()) if one == query]
    return np.array(sums).reshape(-1, dimension)


def corrected_errors(
    query: Query,
    raw: Floats,
    truth: Floats,
    added_back: Floats,
    noise: float,
    stddev: float,
    first: int | None,
    *,
    confidence: float,
    seed: int,
) -> Errors:
    """Return the errors of corrected answers.

    Args:
        query: the query.
        raw: (T, d), the admitted sums.
        truth: (T, d), the sums of all users.
        added_back: (blocks, d), the sums of what the windows of each block left out.
        noise: the standard deviation of the noise in answers.
        stddev: of the noise in corrections.
        first: the first window of which a user can be left out; None if there is none.
        confidence: of the intervals.
        seed: of the noise.
    """
    random, dimension = np.random.default_rng(seed), raw.shape[1]
    width = noise * quantile_of_noise(confidence, dimension)
    values = _noisy(random, raw, noise)
    lower, upper = values - width, values + width
    drawn = stddev * random.standard_normal((len(values), *added_back.shape))
    drawn[0] = 0.0  # for the bias
    for run in range(len(values)):
        before: Ratio | None = None
        for block, left_out in enumerate(added_back + drawn[run]):
            where = slice(block * query.block, min((block + 1) * query.block, query.corrected))
            answers, spread = values[run, where].copy(), stddev
            if first is None or where.stop <= first:
                left_out, spread = np.zeros(dimension), 0.0
            elif query.is_never_negative:
                left_out = np.maximum(left_out, 0.0)
            found = correct(answers, noise, left_out, spread, before, confidence)
            values[run, where], lower[run, where], upper[run, where] = found
            before = ratio_of(answers, noise, left_out, spread)
    return Errors.of(values, lower, upper, truth)


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """The errors of some windows.

    Attributes:
        rmse: the root mean square error of a window, against the number for all users' bounded
            contributions: noise and missing users together. Windows without an interval do not
            count in the means.
        bias: the mean error of a window, without noise.
        halted_users: users who were left out of a window.
        interval_half_width: the mean over the windows.
        coverage: the share of windows whose interval contains the number of all users.
        unbounded: the share of windows without an interval, because the noise of a ratio leaves no
            ends.
    """

    rmse: float
    bias: float
    halted_users: int
    interval_half_width: float
    coverage: float
    unbounded: float


@dataclass(frozen=True, kw_only=True)
class Month(ErrorSummary):
    """The errors of the windows that begin in one month."""

    month: str


@dataclass(frozen=True, kw_only=True)
class Setting(ErrorSummary):
    """The errors of a query's answers with one setting.

    Attributes:
        active_windows: how many full windows each user's budget pays for.
        block_windows: the number of windows that are corrected together; 0 without corrections.
        left_out: the part of the query's budget that is kept back for corrections.
        noise_stddev: of the noise in an answer, before the correction.
        months: those with at least half as many windows as the fullest one. One day of a month that
            the input cuts off would say little of whether intervals hold.
    """

    active_windows: float
    block_windows: int
    left_out: float
    noise_stddev: float
    months: list[Month]

    def failing(self, least_coverage: float) -> list[str]:
        """Return the months of which fewer intervals hold."""
        return [one.month for one in self.months if one.coverage < least_coverage]


@dataclass(frozen=True)
class QueryPlan:
    """The errors of a query's answers for several settings.

    Attributes:
        query: the name of the query.
        settings: with individual accounting, as the answerer does it: without corrections and,
            where the answerer would make them, with corrections.
        worst_case: every user can pay for all windows.
        contribution_bounding: a user counts in the first few windows with a contribution, as many
            as give the least error.
        whole_vector: a user's contributions to all windows are scaled together to the L2 norm of a
            few full windows, with the least error, and all windows are released at once. It needs
            all events first, so a stream has not got it.
        recommended: the setting with the least error of those whose intervals hold in every month;
            if there is none, the one with the least error.
        least_coverage: the coverage at which a month holds.
        unplanned: the names of the queries that no plan can be about. Their charges count.
    """

    query: str
    settings: list[Setting]
    worst_case: Setting
    contribution_bounding: Setting
    whole_vector: Setting
    recommended: Setting
    least_coverage: float
    unplanned: list[str]


def plan_of(
    content: Mapping[str, Any], query: str | None, policy: Policy, file: EventFile
) -> QueryPlan:
    """Return the plan of a query.

    Args:
        content: the tables of a file of queries.
        query: the name of the query; None for the first one that can be planned.
        policy: the policy of the dataset.
        file: the events.

    Raises:
        UnusableQueries: the query cannot be planned.
    """
    query_file = parse_queries(content).for_a_file()
    number = _planned(query_file, query)
    population = population_of(query_file, file)
    windows, asked = population.windows(number), query_file.queries[number]
    if not windows:
        raise UnusableQueries(f"no window of query {asked.name!r} ends by the end of the input")

    settings = []
    for active in _grid(windows, asked.active_windows):
        for is_corrected in (False, True):
            changed = _changed(content, number, active, is_corrected).for_a_file()
            if bool(changed.queries[number].block) is is_corrected:
                settings.append(_setting(changed, number, policy, population))
    least = query_file.confidence - _SLACK
    best = min(settings, key=lambda setting: (bool(setting.failing(least)), setting.rmse))
    share = rho_of(policy) * asked.share
    bounded, whole = (
        min(
            (
                baseline(query_file, number, share, population, count, is_whole)
                for count in _grid(windows, asked.active_windows)
            ),
            key=lambda setting: setting.rmse,
        )
        for is_whole in (False, True)
    )
    return QueryPlan(
        asked.name,
        settings,
        baseline(query_file, number, share, population, windows, is_whole=False),
        bounded,
        whole,
        best,
        least,
        [one.name for one in query_file.queries if not _can_be_planned(one)],
    )


def _changed(content: Mapping[str, Any], number: int, active: int, is_corrected: bool) -> QueryFile:
    """Return a file with other ``active_windows`` of a query, corrected or not."""
    query = {**content["query"][number], "active_windows": active}
    if query["kind"] in _CORRECTABLE:
        query["correct"] = is_corrected
    queries = list(content["query"])
    queries[number] = query
    return parse_queries({**content, "query": queries})


def _planned(query_file: QueryFile, name: str | None) -> int:
    """Return the index of the query to plan."""
    names = [query.name for query in query_file.queries]
    if name is not None and name not in names:
        raise UnusableQueries(f"no query is named {quoted(name)}; the file has {', '.join(names)}")
    for number, query in enumerate(query_file.queries):
        if _can_be_planned(query) and name in (None, query.name):
            return number
    raise UnusableQueries(
        "a plan is about a query whose noise follows from active_windows, without private keys, "
        "and not about a top"
        + (f"; query {quoted(name)} is not" if name else "; the file has none")
    )


def _can_be_planned(query: Query) -> bool:
    return bool(query.active_windows) and query.kind != "top" and not query.has_private_keys


def _grid(windows: int, own: float) -> list[int]:
    """Return the settings of ``active_windows`` to try, among them the file's own."""
    steps = np.geomspace(max(1.0, windows / 50.0), windows, _SETTINGS)
    return sorted({*np.unique(np.rint(steps).astype(int)).tolist(), min(math.ceil(own), windows)})


def _setting(query_file: QueryFile, number: int, policy: Policy, people: Population) -> Setting:
    costs, query = costs_of(query_file, [policy]), query_file.queries[number]
    windows = people.windows(number)
    charges = charge_all(query_file, policy, people)
    raw, truth, noise = charges.admitted[number], charges.truth[number], costs.noises[number]
    if query.block:
        first = costs.worst_case.exhaustible_since(Calendar(query_file), number, len(raw) - 1)
        errors = corrected_errors(
            query,
            raw,
            truth,
            added_back(charges, number, raw.shape[1]),
            noise,
            costs.corrections[number],
            first,
            confidence=query_file.confidence,
            seed=_SEED,
        )
    else:
        errors = _uncorrected(query_file, query, raw, truth, noise)
    left_out = [charges.left_out[number, window] for window in range(windows)]
    return _described(query_file, query, number, noise, errors, left_out)


def _uncorrected(
    query_file: QueryFile, query: Query, raw: Floats, truth: Floats, noise: float
) -> Errors:
    confidence = query_file.confidence
    if query.kind in _CORRECTABLE:
        dimension = raw.shape[1]
        return errors_of(raw, truth, noise, dimension=dimension, confidence=confidence, seed=_SEED)
    asked = AskedQuery(query)
    return estimated_errors(asked, raw, truth, noise, confidence=confidence, seed=_SEED)


def baseline(
    query_file: QueryFile, number: int, rho: float, people: Population, count: int, is_whole: bool
) -> Setting:
    """Return the errors without individual accounting, at the noise of so many full windows.

    Every user counts in the first so many windows with a contribution, or, if ``is_whole``, the
    whole vector of a user is scaled to the norm of so many full windows.
    """
    asked = AskedQuery(query_file.queries[number])
    parts = [people.parts[number, window] for window in range(people.windows(number))]
    counted, squares = np.zeros(len(people.users)), np.zeros(len(people.users))
    for part in parts:
        squares[part.users] += np.square(part.norms)
    longest = math.sqrt(count) * asked.bound
    scales = longest / np.maximum(np.sqrt(squares), longest)
    raw, truth, left_out = [], [], []
    for part in parts:
        kept = scales[part.users] if is_whole else 1.0 * (counted[part.users] < count)
        raw.append((part.rows * kept[:, np.newaxis]).sum(axis=0))
        truth.append(part.rows.sum(axis=0))
        left_out.append(part.users[kept < 1.0])
        counted[part.users] += 1
    noise = noise_for_norm_budget(count * asked.bound**2, rho)
    errors = _uncorrected(query_file, asked.query, np.array(raw), np.array(truth), noise)
    query = replace(asked.query, active_windows=float(count), left_out=0.0, block=0)
    return _described(query_file, query, number, noise, errors, left_out)


def _described(
    query_file: QueryFile,
    query: Query,
    number: int,
    noise: float,
    errors: Errors,
    left_out: Sequence[NDArray[np.int64]],
) -> Setting:
    calendar = Calendar(query_file)
    starts = [calendar.window(number, window).start for window in range(len(left_out))]
    names = [iso(start, query_file.timezone)[: len("2026-01")] for start in starts]
    fullest = max(Counter(names).values())
    months = []
    for name in dict.fromkeys(names):
        places = np.flatnonzero(np.array(names) == name)
        if 2 * len(places) >= fullest:
            months.append(Month(month=name, **_summary(errors, places, left_out)))
    return Setting(
        active_windows=query.active_windows,
        block_windows=query.block,
        left_out=query.left_out,
        noise_stddev=noise,
        **_summary(errors, np.arange(len(names)), left_out),
        months=months,
    )


def _summary(
    errors: Errors, places: NDArray[np.int64], left_out: Sequence[NDArray[np.int64]]
) -> dict[str, Any]:
    """Return the errors of some windows."""
    off, lower, upper = (part[:, places] for part in (errors.off, errors.lower, errors.upper))
    halted = np.unique(np.concatenate([left_out[place] for place in places.tolist()]))
    return {
        "rmse": math.sqrt(_mean(np.square(off))),
        "bias": _mean(errors.bias[places]),
        "halted_users": len(halted),
        "interval_half_width": _mean(upper - lower) / 2.0,
        # NaN is no end, which holds.
        "coverage": float((~(lower > 0.0) & ~(upper < 0.0)).all(axis=2).mean()),
        "unbounded": float(np.isnan(upper - lower).any(axis=2).mean()),
    }


def _mean(numbers: Floats) -> float:
    """Return the mean of the numbers that are not NaN; infinity without any."""
    found = numbers[~np.isnan(numbers)]
    return float(found.mean()) if found.size else math.inf
