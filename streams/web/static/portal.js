// Shows the content of /events to the user of the session.
"use strict";

// Rounds up, so that the page never shows less than was spent.
function up(value) {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : value >= 0.1 ? 2 : 3;
  const scale = 10 ** digits;
  const rounded = Math.ceil(value * scale - 1e-9) / scale;
  return rounded.toLocaleString(undefined, { maximumFractionDigits: digits });
}

const whole = (number) => number.toLocaleString();
const day = (time) => new Date(1000 * time).toLocaleDateString(undefined, { dateStyle: "medium" });
const moment = (time) =>
  new Date(1000 * time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
const clock = (time) =>
  new Date(1000 * time).toLocaleTimeString(undefined, { timeStyle: "medium" });

// The states of a dataset: in short, and what to know about them.
const STATES = {
  open: ["within your budget", ""],
  nearly: [
    "almost used up",
    "Your budget may be almost used up: few steps, or none, can still include your data.",
  ],
  spent: ["budget used up", "Your budget is used up: your data is not used here any more."],
  closed: ["closed", "This dataset is closed: it is not used any more."],
  erased: [
    "erased",
    "Your identity was erased here, as requested. The service no longer knows who you are and " +
      "never uses your data again.",
  ],
};

const MANY = 1000;

// Says in numbers of people what a budget allows an attacker. Rounds up, like the amounts.
function guesses({ false_positive_rate, true_positive_rate, advantage }) {
  const many = whole(MANY);
  const right = (probability) => whole(Math.min(MANY, Math.ceil(MANY * probability - 1e-9)));
  return (
    `Your whole budget also limits guesses. Suppose half of ${many} people are in the data, and ` +
    "somebody guesses from all results which ones. On average at most " +
    `${right((1 + advantage) / 2)} guesses are right; without the results, ${whole(MANY / 2)}. ` +
    `A guesser who wrongly suspects ${whole(MANY * false_positive_rate)} of ${many} people outside ` +
    `the data identifies at most ${right(true_positive_rate)} of ${many} people in it.`
  );
}

function odds(epsilon) {
  if (epsilon === null) return "No bound is known for what the results can reveal about you.";
  const factor = Math.exp(epsilon);
  if (factor > 1e6) return "A value this large gives no protection by itself.";
  return (
    "The results can change the odds of a guess whether your data was used by a factor of " +
    `${up(factor)} at most.`
  );
}

// The spending and the whole budget each have an epsilon, and the two are separate statements. The
// page shows only the second one unless the first is smaller.
const below = ({ epsilon }, budget) => epsilon !== null && epsilon < budget;
const shownEpsilon = (spent, budget) => (below(spent, budget) ? spent.epsilon : budget);

// A dataset whose norm levels may follow sampling coins has no epsilon below its budget.
const ONLY_BUDGET =
  "Only your whole budget has an ε here. Steps may include you at random, and how strongly your " +
  "data counts in later steps may depend on that. So no smaller ε is certain, however little of " +
  "your budget is used.";
const LITTLE =
  "So far you have spent at most the smallest amount that is recorded here, or nothing. (If " +
  "your data was erased here some days ago, there is no record of that.)";

function sentences({ only_budget, state, spent, budget, points }) {
  const text = STATES[state][1];
  if (state === "erased") return text;
  const isLittle = !points.length && state !== "spent";
  const parts = [only_budget && ONLY_BUDGET, isLittle && LITTLE, text];
  return [...parts, odds(shownEpsilon(spent, budget))].filter(Boolean).join(" ");
}

const percent = (share) => `${Math.ceil(100 * share - 1e-9)} %`;

// Plots the spending over time as steps, below the dashed budget. It shows epsilons or, if only the
// budget has one, shares of the budget.
function plot(dataset, now, width) {
  const only = dataset.only_budget;
  const budget = only ? 1 : dataset.budget;
  const amount = (point) => (only ? point.share : shownEpsilon(point, budget));
  const shownAs = only ? percent : up;
  const said = (value) => (only ? `${percent(value)} of your budget` : `ε at most ${up(value)}`);
  const points = dataset.points.map((point) => ({ time: point.time, amount: amount(point) }));
  const height = 190;
  const [left, right, top, bottom] = [44, 10, 18, 26];
  const first = points[0].time, span = Math.max(60, now - first);
  const { svg, add, x, y } = emptyChart(
    {
      class: "plot", role: "img",
      "aria-label": `spent from ${moment(first)} until now: ${said(points.at(-1).amount)}`,
    },
    [width, height], [left, right, top, bottom], [first, first + span], [0, budget * 1.08],
  );
  let line = `M${x(first)},${y(points[0].amount)}`;
  for (const point of points.slice(1)) line += `H${x(point.time)}V${y(point.amount)}`;
  line += `H${width - right}`;
  add("path", { class: "area", d: `${line}V${y(0)}H${x(first)}Z` });
  add("path", { class: "axis", d: `M${left},${y(0)}H${width - right}` });
  add("path", { class: "budget", d: `M${left},${y(budget)}H${width - right}` });
  add("text", { x: left - 8, y: y(0) + 4, "text-anchor": "end" }, "0");
  add("text", { x: left - 8, y: y(budget) + 4, "text-anchor": "end" }, shownAs(budget));
  add("text", { x: left, y: y(budget) - 6 }, "your budget");
  add("path", { class: "line", d: line });
  for (const { time, amount } of points) {
    const dot = add("circle", { class: "point", cx: x(time), cy: y(amount), r: 3.5 });
    dot.append(drawn("title", {}, `${moment(time)}: ${said(amount)}`));
  }
  const label = span > 2 * 86400 ? day : span > 3600 ? moment : clock;
  add("text", { x: left, y: height - 6 }, label(first));
  add("text", { x: width - right, y: height - 6, "text-anchor": "end" }, "now");
  return svg;
}

function because(one) {
  const where = one.refused_by ? ` in ${one.refused_by}` : "";
  return one.because || `Its cost exceeded the rest of your budget${where}.`;
}

function halt(one) {
  let what = `Your data was left out of step ${whole(one.first)} of ${one.run}.`;
  if (one.is_roster) {
    what = `Your data is left out of ${one.run} from step ${whole(one.last)} on.`;
  } else if (one.times > 1) {
    what =
      `Your data was left out of ${whole(one.times)} steps of ${one.run}, ` +
      `between steps ${whole(one.first)} and ${whole(one.last)}.`;
  }
  let when = moment(one.ended);
  if (one.times > 1 && !one.is_roster) when = `${moment(one.began)} to ${moment(one.ended)}`;
  const cheaper = one.reason === "budget" && !one.exhausted;
  const more = cheaper ? " A step that costs less may still include your data." : "";
  return made(
    "li",
    {},
    made("p", { text: `${what} ${because(one)}${more}` }),
    made("p", { class: "quiet when", text: when }),
  );
}

// The bar shows the two epsilons beside it. If only the budget has an epsilon, the bar shows the
// share of the budget, as the measure counts it.
function filled(spent, budget) {
  if (spent.epsilon === null || !(budget > 0)) return spent.share;
  return shownEpsilon(spent, budget) / budget;
}

function beside({ only_budget, spent, budget }) {
  if (only_budget) return `by your whole budget; ${percent(spent.share)} of it is used at most`;
  return below(spent, budget) ? `spent; your whole budget: ${up(budget)}` : "by your whole budget";
}

function amount(dataset) {
  const { spent, budget } = dataset;
  const fill = made("div", { class: "fill" });
  fill.style.width = `${100 * filled(spent, budget)}%`;
  const figure = made(
    "div",
    { class: "figure" },
    made("span", { class: "most", text: "ε at most" }),
    made("span", { class: "value", text: up(shownEpsilon(spent, budget)) }),
    made("span", { class: "of", text: beside(dataset) }),
  );
  return [figure, made("div", { class: "track" }, fill)];
}

function card(dataset, own, width) {
  const { state, spent, parents, points, halts } = dataset;
  const towards = `Spending here also counts towards ${parents.join(", ")}.`;
  return made(
    "section",
    { class: `card ${state}` },
    made(
      "div",
      { class: "top" },
      made("h2", { text: dataset.dataset }),
      made("span", { class: `pill ${state}`, text: STATES[state][0] }),
    ),
    parents.length > 0 && made("p", { class: "parent quiet", text: towards }),
    spent && amount(dataset),
    made("p", { class: "says", text: sentences(dataset) }),
    state !== "erased" && made("p", { class: "quiet risk", text: guesses(dataset.risk) }),
    points.length > 0 && [
      made("h3", { text: "Spending over time" }),
      plot(dataset, own.now, width),
    ],
    halts.length > 0 && [
      made("h3", { text: "Results without your data" }),
      made("ul", { class: "halts" }, halts.map(halt)),
    ],
  );
}

function notice(title, text = "", done = null) {
  at("notice").hidden = title === null;
  at("notice-title").textContent = title ?? "";
  at("notice-text").textContent = text;
  at("notice-bar").hidden = done === null;
  at("notice-bar").firstElementChild.style.width = `${100 * (done ?? 0)}%`;
}

let shown = "";

function showOwn(own) {
  at("whose").textContent = own.user ?? "";
  at("leave").hidden = false;
  at("ends").textContent =
    `This browser can show the page until ${moment(own.ends)}. If you leave, you need a new link to ` +
    "come back.";
  at("own").hidden = own.state !== "ready";
  at("as-of").textContent = own.as_of ? `As of ${moment(own.as_of)}.` : "";
  if (own.state === "reading" && !own.is_away) {
    notice("One moment …", "Your numbers appear when all records have been read.", own.done);
  } else if (own.state !== "ready") {
    notice("Not available", `Your numbers cannot be read at the moment. ${lastLook(own)}`);
  } else {
    const empty = !own.datasets.length && !own.not_shown;
    if (own.is_away) {
      notice("Possibly outdated", `New records cannot be read at the moment. ${lastLook(own)}`);
    } else {
      notice(
        empty ? "No spending is recorded yet" : null,
        "Either no result has used your data, or you have spent at most the smallest amount that " +
          "is recorded. If your data was erased some days ago, there is no record of that.",
      );
    }
    at("own").hidden = empty;
    showDatasets(own);
  }
}

function lastLook(own) {
  const again = "This page tries again automatically.";
  return own.as_of ? `They were last read on ${moment(own.as_of)}. ${again}` : again;
}

function showDatasets(own) {
  // Draw the datasets only if they look different, so that a text selection stays.
  const width = Math.max(240, Math.min(640, at("datasets").clientWidth - 56));
  const minute = Math.floor(own.now / 60);
  const key = JSON.stringify([own.datasets, own.not_shown, own.halts_since, width, minute]);
  if (key === shown) return;
  shown = key;
  at("datasets").replaceChildren(...own.datasets.map((dataset) => card(dataset, own, width)));
  at("delta").textContent = own.delta.toLocaleString(undefined, { maximumSignificantDigits: 3 });
  const rest = [];
  if (own.all) {
    rest.push("In datasets that are not listed you have spent at most the smallest recorded amount, or nothing.");
  }
  if (own.not_shown) {
    rest.push(
      own.not_shown === 1
        ? "One more dataset cannot be shown at the moment."
        : `${own.not_shown} more datasets cannot be shown at the moment.`,
    );
  }
  if (own.halts_since) {
    rest.push(`The lists of results without your data begin on ${moment(own.halts_since)}.`);
  }
  at("not-shown").hidden = !rest.length;
  at("not-shown").textContent = rest.join(" ");
}

function showNothing(title, text) {
  notice(title, text);
  at("own").hidden = true;
  at("leave").hidden = true;
  shown = "";
  at("datasets").replaceChildren();
  for (const id of ["whose", "as-of", "ends", "not-shown"]) at(id).textContent = "";
}

const NO_LINK = [
  "Open your link",
  "This page needs a personal link. Open the link that you received; if you have none, ask the operator of the service for one.",
];

let last = null;

const events = follow("events", 20, show, () =>
  notice("Not available", "This page tries again automatically."),
);

function show(own) {
  last = own;
  if (own === null) refuse(...NO_LINK);
  else showOwn(own);
}

function refuse(title, text) {
  events.close();
  last = null;
  showNothing(title, text);
}

// Exchanges the token of a link, once, for a cookie that scripts cannot read. The browser still stores
// the link in its history.
async function enter() {
  const token = location.hash.slice(1);
  if (!token) return events.open();
  history.replaceState(null, "", location.pathname);
  try {
    const answer = await post("enter", { token });
    if (answer.ok) return events.open();
    const reason = await answer.text();
    return refuse("This link does not work", `${reason.charAt(0).toUpperCase()}${reason.slice(1)}.`);
  } catch {
    return refuse("Not available", "The service does not answer. Open your link again later.");
  }
}

at("leave").addEventListener("click", async () => {
  await post("leave").catch(() => null);
  refuse("You have left", "To come back, ask for a new link where you got this one.");
});
addEventListener("hashchange", enter);
addEventListener("resize", () => last && last.state === "ready" && showDatasets(last));

enter();
