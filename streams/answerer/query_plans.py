"""Plans: the errors of a query's answers for several settings, computed from old events.

A plan runs the answerer itself on a service in memory (``Turnstile.in_memory``), and looks at what
each of its charges admitted, without the noise. So its admissions are those of the service, if
nothing else charges the dataset and it has no parent.

A plan is a function of the events, without noise. It is as private as they are.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from accounting import noise_for_norm_budget
from accounting.exact.invalid_input import quoted
from accounting.release.clipping import row_norms
from streams.answerer.corrections import MissingRatio, correct, ratio_of
from streams.answerer.events import UserEvent
from streams.answerer.kinds import Floats, Kind
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.pricing import Costs, costs_of, rho_of
from streams.answerer.published_answers import AnswerRecord, Correction
from streams.answerer.query_file import Blocks, QueryFile, parse_queries
from streams.answerer.query_keys import Label, UnusableQueries
from streams.answerer.window_answering import Answering
from streams.answerer.windows import Calendar, InputState, Window, iso
from streams.config import Config
from streams.queries.continual_monitoring import quantile_of_noise
from streams.records import Policy, User
from streams.sdk.client import Turnstile
from streams.sdk.dataset_requests import create
from streams.sdk.memory_connection import MemoryConnection

_REPETITIONS: Final = 20
_SEED: Final = 1
_SETTINGS: Final = 12
_SLACK: Final = 0.05
"""How far below the confidence of the file the coverage of a month that holds may be."""


class Part(NamedTuple):
    """The contributions to one window.

    Attributes:
        users: (n,) numbers of users, in the order of the charge.
        rows: (n, d).
        keys: the private keys of each user.
        sizes: (n, 2), the contributions without bounds and with them, as ``Kind.sizes``.
    """

    users: NDArray[np.int64]
    rows: Floats
    keys: list[list[int]]
    sizes: Floats


@dataclass(frozen=True)
class Population:
    """The contributions of all users to all windows of a file of queries.

    Attributes:
        users: how many there are.
        parts: by query and window number.
    """

    users: int
    parts: dict[tuple[int, int], Part]

    def windows(self, query: int) -> int:
        """Return the number of windows of a query."""
        return sum(one == query for one, _ in self.parts)


def population_of(query_file: QueryFile, events: Sequence[UserEvent]) -> Population:
    """Return the contributions of events, in the order of their times, to every window."""
    state = InputState(replace(query_file, blocks=(Blocks(),) * len(query_file.queries)))
    numbers: dict[User, int] = {}
    parts: dict[tuple[int, int], Part] = {}

    def close(clock: int | None) -> None:
        while state.is_due(clock):
            window = state.calendar.next
            users, rows, keys = state.content_of(window)
            sizes = state.queries[window.query].sizes(state.unbounded(window), rows)
            present = np.flatnonzero(row_norms(rows)).tolist() if len(rows) else []
            parts[window.query, window.number] = Part(
                np.array([numbers.setdefault(users[at], len(numbers)) for at in present], np.int64),
                rows[present],
                [keys[at] for at in present] if keys else [],
                sizes[present],
            )
            state.close(window)

    for event in events:
        close(event.time)
        state.take_event(event)
    close(query_file.closed)
    return Population(len(numbers), parts)


class Charges(NamedTuple):
    """The result of charging a population.

    Attributes:
        admitted: by query, the sums of the admitted contributions to each window, (T, d).
        truth: by query, the sums of all contributions, (T, d).
        left_out: by query and window, the numbers of the users who were not admitted in full.
        added_back: by query, the sums of what the windows left out, within the limit of each block,
            (blocks, d).
    """

    admitted: dict[int, Floats]
    truth: dict[int, Floats]
    left_out: dict[int, list[NDArray[np.int64]]]
    added_back: dict[int, Floats]


class _Recorded(InputState):
    """An input whose windows have the contributions of a population, already summed."""

    def __init__(self, query_file: QueryFile, people: Population) -> None:
        super().__init__(query_file)
        self._parts = people.parts

    def content_of(self, window: Window) -> tuple[list[User], Floats, list[list[int]]]:
        part = self._parts[window.query, window.number]
        return part.users.tolist(), part.rows, part.keys


def charge_all(query_file: QueryFile, policy: Policy, people: Population) -> Charges:
    """Answer every window and every block of a file for a population, in memory."""
    numbers = {query.name: number for number, query in enumerate(query_file.queries)}
    admitted: defaultdict[int, list[Floats]] = defaultdict(list)
    truth: defaultdict[int, list[Floats]] = defaultdict(list)
    left_out: defaultdict[int, list[NDArray[np.int64]]] = defaultdict(list)
    added_back: defaultdict[int, list[Floats]] = defaultdict(list)

    def look(record: AnswerRecord) -> None:
        charge, number = answering.last_charge, numbers[record.query]
        assert charge is not None
        found = charge.admitted.sum(axis=0)
        if isinstance(record, Correction):
            added_back[number].append(found)
            return
        admitted[number].append(found)
        truth[number].append(found + charge.left_out.sum(axis=0))
        places = np.flatnonzero(charge.left_out.any(axis=1))
        left_out[number].append(np.array(list(charge.users.select(places)), dtype=np.int64))

    connection = MemoryConnection(1, Config().timeout)
    alone: dict[str, Any] = dict.fromkeys(("parents", "share_of", "allow", "pseudonyms"), UNSET)
    name = query_file.dataset
    # Nothing reads the odometer records of a plan, so there are none before a budget ends.
    alone |= {"partitions": 1, "user_ids": "mixed", "odometer_step": policy.budget}
    held = msgspec.structs.replace(policy, dataset=name, **alone)
    create(connection, held, connection.deadline(None))
    with Turnstile(connection=connection) as turnstile:
        answering = Answering(
            query_file,
            "plan",
            lambda released: turnstile.run(name, query_file.run, released=released),
            MemoryJournal(MemoryTopics(), name),
            look,
            noise=np.random.default_rng(_SEED),
        )
        answering.state = _Recorded(query_file, people)
        answering.close_due(query_file.closed)
    sums, all_sums, added = (
        {number: np.array(rows) for number, rows in found.items()}
        for found in (admitted, truth, added_back)
    )
    return Charges(sums, all_sums, dict(left_out), added)


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
    query_file: QueryFile, number: int, raw: Floats, truth: Floats, noise: float
) -> Errors:
    """Return the errors of the answers of a query that are not corrected."""
    query = query_file.queries[number]

    def answered(sums: Floats, stddev: float) -> Floats:
        found = [query.answered(row, stddev, query_file.confidence) for row in sums]
        numbers = [(one.value, one.lower, one.upper) for one in found]
        return np.array(numbers, dtype=np.float64).reshape(len(sums), 3, -1)

    noisy = _noisy(np.random.default_rng(_SEED), raw, noise)
    found = np.array([answered(sums, noise) for sums in noisy])
    # Without an interval, a ratio can be anything, and its mean square error is infinite.
    found[1:, :, 0][np.isnan(found[1:, :, 1])] = np.nan
    values, lower, upper = (found[:, :, part] for part in range(3))
    return Errors.of(values, lower, upper, answered(truth, 0.0)[:, 0])


def corrected_errors(
    query_file: QueryFile, number: int, charges: Charges, costs: Costs, *, seed: int
) -> Errors:
    """Return the errors of the corrected answers of a query."""
    query, blocks = query_file.queries[number], query_file.blocks[number]
    raw, noise, stddev = charges.admitted[number], costs.noises[number], costs.corrections[number]
    added_back, confidence = charges.added_back[number], query_file.confidence
    # The first window of which a user can be left out.
    first = costs.worst_case.exhaustible_since(Calendar(query_file), number, len(raw) - 1)
    random, dimension = np.random.default_rng(seed), raw.shape[1]
    width = noise * quantile_of_noise(confidence, dimension)
    values = _noisy(random, raw, noise)
    lower, upper = values - width, values + width
    drawn = stddev * random.standard_normal((len(values), *added_back.shape))
    drawn[0] = 0.0  # for the bias
    for run in range(len(values)):
        before: MissingRatio | None = None
        for block, left_out in enumerate(added_back + drawn[run]):
            where = slice(block * blocks.size, blocks.last_of(block) + 1)
            answers, spread = values[run, where].copy(), stddev
            if first is None or where.stop <= first:
                left_out, spread = np.zeros(dimension), 0.0
            elif query.is_never_negative:
                left_out = np.maximum(left_out, 0.0)
            found = correct(answers, noise, left_out, spread, before, confidence)
            values[run, where], lower[run, where], upper[run, where] = found
            before = ratio_of(answers, noise, left_out, spread)
    return Errors.of(values, lower, upper, charges.truth[number])


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
class Scale:
    """The size of the answers and of users' contributions, by which errors can be judged.

    Attributes:
        labels: of the numbers; None if there is one.
        mean_answers: the true numbers for all users' bounded contributions, averaged over windows.
        windows: the number of windows.
        filled_windows: those with a contribution.
        users: the users with a contribution to a window.
        cut_users: those of whom a bound (``each``, ``groups`` or ``clip``) cuts something.
        cut_share: the part of all contributions that the bounds cut.
    """

    labels: list[Label] | None
    mean_answers: list[float]
    windows: int
    filled_windows: int
    users: int
    cut_users: int
    cut_share: float


def scale_of(query_file: QueryFile, number: int, people: Population) -> Scale:
    """Return the scale of a query's answers."""
    query = query_file.queries[number]
    parts = [people.parts[number, window] for window in range(people.windows(number))]
    answers = [query.answered(part.rows.sum(axis=0), 0.0, query_file.confidence) for part in parts]
    values = np.array([one.value for one in answers], dtype=np.float64).reshape(len(parts), -1)
    users = np.concatenate([part.users for part in parts])
    before, after = np.concatenate([part.sizes for part in parts]).T
    # Numbers are rounded, but not by so much.
    is_cut = after < before * (1.0 - 1e-9)
    return Scale(
        labels=answers[0].labels,
        mean_answers=[_mean(column) for column in values.T],
        windows=len(parts),
        filled_windows=sum(part.users.size > 0 for part in parts),
        users=len(np.unique(users)),
        cut_users=len(np.unique(users[is_cut])),
        cut_share=1.0 - float(after.sum() / before.sum()) if is_cut.any() else 0.0,
    )


@dataclass(frozen=True)
class QueryPlan:
    """The errors of a query's answers for several settings.

    Attributes:
        query: the name of the query.
        scale: of its answers.
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
    scale: Scale
    settings: list[Setting]
    worst_case: Setting
    contribution_bounding: Setting
    whole_vector: Setting
    recommended: Setting
    least_coverage: float
    unplanned: list[str]


def plan_of(
    content: Mapping[str, Any], query: str | None, policy: Policy, events: Sequence[UserEvent]
) -> QueryPlan:
    """Return the plan of a query.

    Args:
        content: the tables of a file of queries.
        query: the name of the query; None for the first one that can be planned.
        policy: the policy of the dataset.
        events: in the order of their times.

    Raises:
        UnusableQueries: the query cannot be planned.
    """
    query_file = parse_queries(content).for_a_file()
    number = _planned(query_file, query)
    population = population_of(query_file, events)
    windows, asked = population.windows(number), query_file.queries[number]
    if not windows:
        raise UnusableQueries(f"no window of query {asked.name!r} ends by the end of the input")

    settings = []
    for active in _grid(windows, asked.active_windows):
        for is_corrected in (False, True):
            changed = _changed(content, number, active, is_corrected).for_a_file()
            if bool(changed.blocks[number].size) is is_corrected:
                settings.append(_setting(changed, number, policy, population))
    least = query_file.confidence - _SLACK
    best = min(settings, key=lambda setting: (bool(setting.failing(least)), setting.rmse))
    share = rho_of(policy) * query_file.shares[number]
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
        scale_of(query_file, number, population),
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
    if query["kind"] in ("count", "distinct", "sum"):
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


def _can_be_planned(query: Kind) -> bool:
    return bool(query.active_windows) and query.kind != "top" and not query.has_private_keys


def _grid(windows: int, own: float) -> list[int]:
    """Return the settings of ``active_windows`` to try, among them the file's own."""
    steps = np.geomspace(max(1.0, windows / 50.0), windows, _SETTINGS)
    return sorted({*np.unique(np.rint(steps).astype(int)).tolist(), min(math.ceil(own), windows)})


def _setting(query_file: QueryFile, number: int, policy: Policy, people: Population) -> Setting:
    costs, charges = costs_of(query_file, [policy]), charge_all(query_file, policy, people)
    noise = costs.noises[number]
    if query_file.blocks[number].size:
        errors = corrected_errors(query_file, number, charges, costs, seed=_SEED)
    else:
        raw, truth = charges.admitted[number], charges.truth[number]
        errors = errors_of(query_file, number, raw, truth, noise)
    return _described(query_file, number, noise, errors, charges.left_out[number])


def baseline(
    query_file: QueryFile, number: int, rho: float, people: Population, count: int, is_whole: bool
) -> Setting:
    """Return the errors without individual accounting, at the noise of so many full windows.

    Every user counts in the first so many windows with a contribution, or, if ``is_whole``, the
    whole vector of a user is scaled to the norm of so many full windows.
    """
    query = query_file.queries[number]
    parts = [people.parts[number, window] for window in range(people.windows(number))]
    counted, squares = np.zeros(people.users), np.zeros(people.users)
    for part in parts:
        squares[part.users] += np.square(np.minimum(row_norms(part.rows), query.bound))
    longest = math.sqrt(count) * query.bound
    scales = longest / np.maximum(np.sqrt(squares), longest)
    raw, truth, left_out = [], [], []
    for part in parts:
        kept = scales[part.users] if is_whole else 1.0 * (counted[part.users] < count)
        raw.append((part.rows * kept[:, np.newaxis]).sum(axis=0))
        truth.append(part.rows.sum(axis=0))
        left_out.append(part.users[kept < 1.0])
        counted[part.users] += 1
    noise = noise_for_norm_budget(count * query.bound**2, rho)
    errors = errors_of(query_file, number, np.array(raw), np.array(truth), noise)
    found = _described(query_file, number, noise, errors, left_out)
    return replace(found, active_windows=float(count), block_windows=0, left_out=0.0)


def _described(
    query_file: QueryFile,
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
        active_windows=query_file.queries[number].active_windows,
        block_windows=query_file.blocks[number].size,
        left_out=query_file.blocks[number].left_out,
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
