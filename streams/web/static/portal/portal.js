// Shows what /events says of its owner. Text goes into the page as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);
const SPACE = "http://www.w3.org/2000/svg";

function made(tag, what = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(what)) {
    if (name === "text") element.textContent = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function drawn(tag, what, text) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(what)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Amounts are rounded up: no user is shown less than was spent.
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

const STATES = {
  open: "within your budget",
  nearly: "almost spent",
  spent: "budget spent",
  closed: "closed",
  forgotten: "forgotten",
};

function odds(epsilon) {
  const factor = Math.exp(epsilon);
  if (factor > 1e6) return "That is too much to promise anything by itself.";
  return (
    "Whoever tries to tell from all results whether your data was there at all can change their " +
    `odds by a factor of ${up(factor)} at most.`
  );
}

// What was spent has an epsilon of its own, and so has the whole budget. They are two statements:
// where the first is no smaller, only the second is shown.
const below = ({ epsilon }, budget) => epsilon !== null && epsilon < budget;
const shownEpsilon = (spent, budget) => (below(spent, budget) ? spent.epsilon : budget);

function sentence({ state, spent, budget, points }) {
  const little = points.length
    ? ""
    : "So far it is less than the first increment that is counted here, or nothing at all (unless " +
      "you were forgotten here some days ago: nothing is left then that would say so). ";
  switch (state) {
    case "forgotten":
      return (
        "You were forgotten here, as was asked for. The service does not know any more who you " +
        "are, and computes nothing with your data again."
      );
    case "closed":
      return `${little}${odds(shownEpsilon(spent, budget))} Nothing more is computed here.`;
    case "nearly":
      return (
        "Almost all of your budget may be used up: few steps, or none, can still include you. " +
        odds(shownEpsilon(spent, budget))
      );
    case "spent":
      return (
        "Your budget is used up: nothing more is computed with your data here. " +
        odds(shownEpsilon(spent, budget))
      );
  }
  return little + odds(shownEpsilon(spent, budget));
}

// What was spent over time: a line that goes up in steps, and ends at the dashed budget.
function plot(dataset, now, width) {
  const points = dataset.points
    .filter((point) => point.epsilon !== null)
    .map((point) => ({ ...point, epsilon: shownEpsilon(point, dataset.budget) }));
  const height = 190;
  const [left, right, top, bottom] = [44, 10, 18, 26];
  const first = points[0].time;
  const span = Math.max(60, now - first);
  const most = dataset.budget * 1.08;
  const x = (time) => left + ((width - left - right) * Math.min(span, time - first)) / span;
  const y = (epsilon) => height - bottom - ((height - top - bottom) * epsilon) / most;
  const svg = drawn("svg", {
    class: "plot",
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `epsilon from ${moment(first)} until now: ${up(points.at(-1).epsilon)} at most`,
  });
  let line = `M${x(first)},${y(points[0].epsilon)}`;
  for (const point of points.slice(1)) line += `H${x(point.time)}V${y(point.epsilon)}`;
  line += `H${width - right}`;
  svg.append(
    drawn("path", { class: "area", d: `${line}V${y(0)}H${x(first)}Z` }),
    drawn("path", { class: "axis", d: `M${left},${y(0)}H${width - right}` }),
    drawn("path", { class: "budget", d: `M${left},${y(dataset.budget)}H${width - right}` }),
    drawn("text", { x: left - 8, y: y(0) + 4, "text-anchor": "end" }, "0"),
    drawn("text", { x: left - 8, y: y(dataset.budget) + 4, "text-anchor": "end" }, up(dataset.budget)),
    drawn("text", { x: left, y: y(dataset.budget) - 6 }, "your budget"),
    drawn("path", { class: "line", d: line }),
  );
  for (const point of points) {
    const dot = drawn("circle", { class: "point", cx: x(point.time), cy: y(point.epsilon), r: 3.5 });
    dot.append(drawn("title", {}, `${moment(point.time)}: ε at most ${up(point.epsilon)}`));
    svg.append(dot);
  }
  const told = span > 2 * 86400 ? day : span > 3600 ? moment : clock;
  svg.append(
    drawn("text", { x: left, y: height - 6 }, told(first)),
    drawn("text", { x: width - right, y: height - 6, "text-anchor": "end" }, "now"),
  );
  return svg;
}

const REASONS = {
  budget: (one) =>
    `It did not fit into what is left of your budget${one.refused_by ? ` of ${one.refused_by}` : ""}.`,
  "too-soon": () => "You had taken part in this run too short a time before.",
  forgotten: () => "You were forgotten.",
};

function halt(one) {
  let what = `Left out of step ${whole(one.first)} of ${one.run}.`;
  if (one.from_there_on) {
    what = `Left out of ${one.run} from step ${whole(one.last)} on.`;
  } else if (one.times > 1) {
    what =
      `Left out ${whole(one.times)} times of ${one.run}, ` +
      `between its steps ${whole(one.first)} and ${whole(one.last)}.`;
  }
  let when = moment(one.ended);
  if (one.times > 1 && !one.from_there_on) when = `${moment(one.began)} to ${moment(one.ended)}`;
  const cheaper = one.reason === "budget" && !one.exhausted;
  const more = cheaper ? " A step that costs less may still include you." : "";
  return made(
    "li",
    {},
    made("p", { text: `${what} ${REASONS[one.reason](one)}${more}` }),
    made("p", { class: "quiet when", text: when }),
  );
}

// The bar shows the two epsilons beside it. The share of the budget, as the measure counts it, is
// another number.
function filled(spent, budget) {
  if (spent.epsilon === null || !(budget > 0)) return spent.share ?? 1;
  return shownEpsilon(spent, budget) / budget;
}

function card(dataset, own, width) {
  const { state, spent } = dataset;
  const element = made(
    "section",
    { class: `card ${state}` },
    made(
      "div",
      { class: "top" },
      made("h2", { text: dataset.dataset }),
      made("span", { class: `pill ${state}`, text: STATES[state] }),
    ),
  );
  if (dataset.within) {
    element.append(
      made("p", { class: "within quiet", text: `What is spent here counts for ${dataset.within}, too.` }),
    );
  }
  if (spent) {
    const fill = made("div", { class: "fill" });
    fill.style.width = `${100 * filled(spent, dataset.budget)}%`;
    element.append(
      made(
        "div",
        { class: "figure" },
        made("span", { class: "most", text: "ε at most" }),
        made("span", { class: "value", text: up(shownEpsilon(spent, dataset.budget)) }),
        made("span", {
          class: "of",
          text: below(spent, dataset.budget)
            ? `spent; your whole budget: ${up(dataset.budget)}`
            : "by your whole budget",
        }),
      ),
      made("div", { class: "track" }, fill),
    );
  }
  element.append(made("p", { class: "says", text: sentence(dataset) }));
  if (dataset.points.length) {
    element.append(made("h3", { text: "Spent over time" }), plot(dataset, own.now, width));
  }
  if (dataset.halts.length) {
    element.append(
      made("h3", { text: "Computed without you" }),
      made("ul", { class: "halts" }, ...dataset.halts.map(halt)),
    );
  }
  return element;
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
  at("whose").textContent = own.user === null ? "" : `of ${own.user}`;
  at("leave").hidden = false;
  at("ends").textContent =
    `This browser shows the page until ${moment(own.ends)}. Leaving ends that at once, and your link ` +
    "does not work again.";
  at("own").hidden = own.state !== "ready";
  at("as-of").textContent = own.as_of ? `As of ${moment(own.as_of)}.` : "";
  if (own.state === "reading" && !own.is_away) {
    notice("One moment …", "Your numbers are shown as soon as all records have been read.", own.done);
  } else if (own.state !== "ready") {
    notice("Not available now", `Your numbers cannot be read at the moment. ${lastLook(own)}`);
  } else {
    const empty = !own.datasets.length && !own.not_shown;
    if (own.is_away) {
      notice("Perhaps out of date", `New records cannot be read at the moment. ${lastLook(own)}`);
    } else {
      notice(
        empty ? "Nothing is recorded about you yet" : null,
        "Either nothing was computed with your data, or so little that no odometer has counted it: " +
          "less than a first increment in any dataset. If you were forgotten some days ago, nothing is " +
          "left that would say so.",
      );
    }
    at("own").hidden = empty;
    showDatasets(own);
  }
}

function lastLook(own) {
  const again = "This page tries again by itself.";
  if (!own.is_away) return again;
  return own.answered ? `They were last read on ${moment(own.answered)}. ${again}` : again;
}

function showDatasets(own) {
  // Not drawn again while it would look the same: what somebody reads or selects stays put.
  const width = Math.max(240, Math.min(640, at("datasets").clientWidth - 56));
  const minute = Math.floor(own.now / 60);
  const key = JSON.stringify([own.datasets, own.not_shown, own.halts_known, width, minute]);
  if (key === shown) return;
  shown = key;
  at("datasets").replaceChildren(...own.datasets.map((dataset) => card(dataset, own, width)));
  at("delta").textContent = own.delta.toLocaleString(undefined, { maximumSignificantDigits: 3 });
  const rest = [];
  if (own.all) {
    rest.push("In datasets that are not here you have spent a first increment at most, or nothing.");
  }
  if (own.not_shown) {
    rest.push(
      own.not_shown === 1
        ? "One more dataset cannot be shown now."
        : `${own.not_shown} more datasets cannot be shown now.`,
    );
  }
  if (!own.halts_known) rest.push("What was computed without you is still being read.");
  else if (own.halts_since) {
    rest.push(`What was computed without you is known from ${moment(own.halts_since)} on.`);
  }
  at("not-shown").hidden = !rest.length;
  at("not-shown").textContent = rest.join(" ");
}

function showNobody(title, text) {
  notice(title, text);
  at("own").hidden = true;
  at("leave").hidden = true;
  shown = "";
  at("datasets").replaceChildren();
  for (const id of ["whose", "as-of", "ends", "not-shown"]) at(id).textContent = "";
}

const NOBODY = [
  "Open your link",
  "This page shows what is yours to whoever comes with a link of yours. Open the link that you were given; if you have none, ask for it where your data is kept.",
];

let events = null;
let heard = 0;
let last = null;

function listen() {
  if (events) events.close();
  heard = Date.now();
  events = new EventSource("events");
  events.onmessage = ({ data }) => {
    heard = Date.now();
    last = JSON.parse(data);
    if (last === null) {
      events.close();
      events = null;
      showNobody(...NOBODY);
    } else {
      showOwn(last);
    }
  };
}

function refuse(title, text) {
  if (events) events.close();
  events = null;
  last = null;
  showNobody(title, text);
}

// The token of a link is exchanged once for a cookie that no script can read. The browser keeps the
// link in its history all the same.
async function enter() {
  const token = location.hash.slice(1);
  if (!token) return listen();
  history.replaceState(null, "", location.pathname);
  try {
    const answer = await fetch("enter", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
    if (answer.ok) return listen();
    const said = await answer.text();
    return refuse("This link does not work", `${said.charAt(0).toUpperCase()}${said.slice(1)}.`);
  } catch {
    return refuse("Not available now", "The page does not answer. Open your link again later.");
  }
}

setInterval(() => {
  if (!events || Date.now() - heard < 20000) return;
  notice("Not available now", "This page tries again by itself.");
  listen();
}, 1000);

at("leave").addEventListener("click", async () => {
  await fetch("leave", { method: "POST" }).catch(() => null);
  refuse("You have left", "To come back, ask for another link where you got this one.");
});
addEventListener("hashchange", enter);
addEventListener("resize", () => last && last.state === "ready" && showDatasets(last));

enter();
