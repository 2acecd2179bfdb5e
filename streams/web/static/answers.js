// Shows the answers to one query: a chart over time for each label, and a table.
"use strict";

const HEIGHT = 240, SMALL = 120; // of a chart; of each if there are several
const LEFT = 58, RIGHT = 10, TOP = 10, BOTTOM = 24;
const MOST_CHARTS = 12, FIRST_ROWS = 12, MOST_ROWS = 400;
const MINUTE = 60e3, HOUR = 60 * MINUTE, DAY = 24 * HOUR;

const key = (one) => JSON.stringify([one.dataset, one.query]);

// Two digits of half an interval, as in the table of `turnstile answers`.
function digits(lines) {
  const widths = lines.flatMap(({ lower, upper }) => lower.map((low, at) => (upper[at] - low) / 2));
  const least = Math.min(...widths.filter((width) => width > 0));
  return Number.isFinite(least) ? Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(least)))) : 0;
}

const exact = (value, places) =>
  value === null
    ? "no estimate"
    : (+value.toFixed(places) || 0).toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });

// Round numbers that divide a range into about so many parts.
function rounds(low, high, parts) {
  const rough = (high - low) / parts;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) found.push(at * step || 0);
  return found;
}

// Moments for the axis of time, with their texts: round times, days, or first days of months.
function ticks(from, to, most) {
  const steps = [MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY];
  const step = steps.find((one) => (to - from) / one <= most);
  const found = [];
  if (step) {
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  } else {
    const months = [1, 3, 6, 12, 60].find((one) => (to - from) / (one * 30 * DAY) <= most) ?? 120;
    const first = new Date(from);
    const begun = first.getUTCMonth() - (first.getUTCMonth() % months);
    for (let month = begun; ; month += months) {
      const at = Date.UTC(first.getUTCFullYear(), month);
      if (at > to) break;
      if (at >= from) found.push(at);
    }
  }
  const shape = !step
    ? (at) => ({ month: "short", ...(at === found[0] || !new Date(at).getUTCMonth() ? { year: "numeric" } : {}) })
    : step >= DAY ? () => ({ day: "numeric", month: "short" }) : () => ({ hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return found.map((at) => [at, new Date(at).toLocaleString("en-GB", { timeZone: "UTC", ...shape(at) })]);
}

// Windows that follow one another without a gap, all with users missing or none, as index ranges.
function parts(shown, line) {
  const found = [];
  shown.start.forEach((start, at) => {
    if (line.lower[at] === null) return;
    const last = found[found.length - 1];
    const follows = last && last.to === at - 1 && start <= shown.end[at - 1];
    if (follows && last.care === shown.can_miss_users[at]) last.to = at;
    else found.push({ from: at, to: at, care: shown.can_miss_users[at] });
  });
  return found;
}

function range(lines) {
  const ends = lines.flatMap(({ lower, upper }) => [...lower, ...upper]).filter((one) => one !== null);
  if (!ends.length) return [0, 1];
  let low = Math.min(...ends), high = Math.max(...ends);
  if (low >= 0 && low < 0.4 * high) low = 0; // so that a line near 0 shows it
  const room = (high - low || Math.abs(high) || 1) * 0.04;
  return [low === 0 ? 0 : low - room, high + room];
}

function chart(shown, line, [low, high], height, places) {
  const width = Math.max(260, at("charts").clientWidth);
  const from = shown.start[0], to = Math.max(...shown.end);
  const x = (time) => LEFT + ((width - LEFT - RIGHT) * (time - from)) / (to - from);
  const y = (value) => TOP + ((height - TOP - BOTTOM) * (high - value)) / (high - low);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  for (const value of rounds(low, high, height > SMALL ? 5 : 3)) {
    svg.append(drawn("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, number(value, 9)));
  }
  for (const [time, text] of ticks(from, to, width / 90)) {
    svg.append(drawn("line", { class: "axis", x1: x(time), x2: x(time), y1: height - BOTTOM, y2: height - BOTTOM + 4 }));
    const anchor = x(time) < LEFT + 20 ? "start" : x(time) > width - 30 ? "end" : "middle";
    svg.append(drawn("text", { x: x(time), y: height - 6, "text-anchor": anchor }, text));
  }
  for (const { start: begins, end: ends } of shown.gaps) {
    const wide = Math.max(2, x(ends) - x(begins));
    svg.append(drawn("rect", { class: "gap", x: x(begins), y: TOP, width: wide, height: height - TOP - BOTTOM }));
  }
  for (const { from: first, to: last, care } of parts(shown, line)) {
    const upper = [], lower = [], values = [];
    for (let place = first; place <= last; place++) {
      // A window lasts until the next one begins; the last one until its end.
      const ends = place < last ? shown.start[place + 1] : shown.end[place];
      const [left, right] = [x(shown.start[place]), x(ends)].map((one) => one.toFixed(1));
      const level = (value) => `${left},${y(value).toFixed(1)}L${right},${y(value).toFixed(1)}`;
      upper.push(level(line.upper[place]));
      lower.unshift(`${right},${y(line.lower[place]).toFixed(1)}L${left},${y(line.lower[place]).toFixed(1)}`);
      const value = line.value[place];
      const joins = values.length && line.value[place - 1] !== null;
      if (value !== null) values.push(`${joins ? "L" : "M"}${level(value)}`);
    }
    const kind = care ? " care" : "";
    svg.append(drawn("path", { class: `band${kind}`, d: `M${[...upper, ...lower].join("L")}Z` }));
    svg.append(drawn("path", { class: `line${kind}`, d: values.join("") }));
  }
  svg.append(drawn("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM }));
  return pointed(shown, line, svg, x, y, height, places);
}

const reading = (shown, line, place, places) =>
  line.lower[place] === null
    ? `${shown.name[place]}: ` +
      (line.value[place] === null ? "no answer" : `${exact(line.value[place], places)} (no interval: too much noise)`)
    : `${shown.name[place]}: ${exact(line.value[place], places)} ` +
      [`(${exact(line.lower[place], places)} to ${exact(line.upper[place], places)})`, shown.state[place]]
        .filter(Boolean).join(", ");

// A chart whose windows can be read with the pointer or with the arrow keys.
function pointed(shown, line, svg, x, y, height, places) {
  const count = shown.start.length;
  const text = made("span", { class: "quiet" });
  const caption = made("figcaption", {}, made("strong", { text: line.label ?? "" }), text);
  const figure = made("figure", {
    role: "slider", tabindex: "0", "aria-valuemin": "1", "aria-valuemax": String(count),
    "aria-label": `Answers to ${shown.query}${line.label === null ? "" : `, ${line.label}`}: window`,
  }, caption, svg);
  const mark = drawn("line", { class: "mark", y1: TOP, y2: height - BOTTOM });
  const dot = drawn("circle", { r: 4 });
  let place = count - 1;
  const point = (to, isMarked = true) => {
    place = Math.max(0, Math.min(count - 1, to));
    const middle = (x(shown.start[place]) + x(shown.end[place])) / 2;
    for (const end of ["x1", "x2"]) mark.setAttribute(end, middle);
    text.textContent = reading(shown, line, place, places);
    figure.setAttribute("aria-valuenow", String(place + 1));
    figure.setAttribute("aria-valuetext", text.textContent);
    mark.remove();
    dot.remove();
    if (!isMarked) return;
    svg.append(mark);
    if (line.value[place] === null) return;
    dot.setAttribute("cx", middle);
    dot.setAttribute("cy", y(line.value[place]));
    svg.append(dot);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const across = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const after = shown.start.findIndex((start) => x(start) > across);
    point((after < 0 ? count : after) - 1);
  });
  svg.addEventListener("pointerleave", () => point(count - 1, false));
  figure.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: place - 1, ArrowRight: place + 1, PageDown: place - 10, PageUp: place + 10, Home: 0, End: count - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    point(to);
  });
  point(count - 1, false);
  return figure;
}

function legend(shown) {
  const item = (text, ...shapes) => {
    const svg = drawn("svg", { viewBox: "0 0 30 14", "aria-hidden": "true" });
    svg.append(...shapes);
    return made("li", {}, svg, made("span", { text }));
  };
  const band = (kind) => drawn("rect", { class: `band${kind}`, width: 30, height: 14 });
  const line = (kind) => drawn("path", { class: `line${kind}`, d: "M0,7L30,7" });
  const held = `${number(100 * shown.confidence, 4)} % interval`;
  return [
    ...(shown.can_miss_users.includes(false) ? [item(`all users, ${held}`, band(""), line(""))] : []),
    ...(shown.can_miss_users.includes(true)
      ? [item(`users can be missing${shown.state.some((one) => one.includes("provisional")) ? ", to be corrected" : ""}`, band(" care"), line(" care"))]
      : []),
    ...(shown.gaps.length ? [item("not answered", drawn("rect", { class: "gap", width: 30, height: 14 }))] : []),
  ];
}

function rows(shown, lines, places) {
  const several = shown.lines.length > 1;
  const hasState = shown.state.some(Boolean);
  const columns = [
    ["window", "word"], ...(several ? [["label", "word"]] : []), ["value", ""], ["interval", ""],
    ...(hasState ? [["state", "word"]] : []),
  ];
  const found = [];
  for (let place = shown.start.length - 1; place >= 0 && found.length < MOST_ROWS; place--) {
    for (const line of lines) {
      if (line.lower[place] === null) continue;
      found.push([
        shown.name[place],
        ...(several ? [line.label] : []),
        exact(line.value[place], places),
        `${exact(line.lower[place], places)} to ${exact(line.upper[place], places)}`,
        ...(hasState ? [shown.state[place] || "–"] : []),
      ]);
    }
  }
  const rest = found.slice(FIRST_ROWS);
  const first = table(columns, found.slice(0, FIRST_ROWS));
  if (!found.length) return [nothing("No key was published.")];
  if (!rest.length) return [first];
  const more = made("details", { class: "fold" }, made("summary", { text: `${number(rest.length)} more` }));
  more.addEventListener("toggle", () => more.open && more.children.length < 2 && more.append(table(columns, rest)));
  return [first, more];
}

let shownNow = null;

function show(shown) {
  shownNow = shown;
  const names = shown.lines.map(({ label }) => label);
  const wanted = at("label").value;
  at("label-choice").hidden = names.length < 2;
  at("label").replaceChildren(
    made("option", { value: "", text: "all labels" }),
    ...names.map((name, place) => made("option", { value: String(place), text: name ?? "" })),
  );
  at("label").value = names[+wanted] === undefined ? "" : wanted;
  draw();
}

function draw() {
  const shown = shownNow;
  if (shown === null) return;
  const chosen = !shown.lines[+at("label").value] || at("label").value === "" ? shown.lines : [shown.lines[+at("label").value]];
  const places = digits(chosen);
  const charts = chosen.slice(0, MOST_CHARTS);
  at("title").textContent = shown.query;
  const left = chosen.length - charts.length;
  at("about").textContent = `${shown.unit}, dataset ${shown.dataset}` +
    (left > 0 ? `. ${left} more labels are in the table and in the list of labels` : "");
  const ends = range(charts);
  const height = charts.length > 1 ? SMALL : HEIGHT;
  at("charts").replaceChildren(...charts.map((line) => chart(shown, line, ends, height, places)));
  at("legend").replaceChildren(...legend(shown));
  at("gaps").hidden = !shown.gaps.length;
  const times = shown.gaps.map(({ name }) => name);
  at("gaps").textContent = `Not answered: ${times.slice(-5).reverse().join("; ")}` +
    (times.length > 5 ? `, and ${times.length - 5} earlier times` : "");
  at("table").replaceChildren(...rows(shown, chosen, places));
}

let queries = [];
let drawnRecords = "";

function chosenQuery() {
  return queries.find((one) => key(one) === at("query").value) ?? queries[0];
}

async function follow() {
  const wanted = chosenQuery();
  if (!wanted || drawnRecords === JSON.stringify(wanted)) return;
  drawnRecords = JSON.stringify(wanted);
  try {
    const given = new URLSearchParams({ dataset: wanted.dataset, query: wanted.query });
    const answer = await fetch(`answers-of?${given}`);
    if (!answer.ok) throw new Error(answer.statusText);
    const shown = await answer.json();
    if (key(shown) === key(chosenQuery())) show(shown);
  } catch {
    drawnRecords = ""; // asked again after the next event
  }
}

function showOverview(answers) {
  at("problem").hidden = !answers?.problem;
  say("problem", answers?.problem ?? "");
  queries = answers?.queries ?? [];
  at("none").hidden = answers === null || queries.length > 0 || answers.problem !== null;
  at("answers").hidden = !queries.length;
  const several = new Set(queries.map(({ dataset }) => dataset)).size > 1;
  const options = queries.map((one) => [key(one), several ? `${one.query} (${one.dataset})` : one.query]);
  if (JSON.stringify(options) !== at("query").dataset.shown) {
    const kept = at("query").value;
    at("query").dataset.shown = JSON.stringify(options);
    at("query").replaceChildren(...options.map(([value, text]) => made("option", { value, text })));
    if (options.some(([value]) => value === kept)) at("query").value = kept;
  }
  if (answers === null) pill("care", "log in on the page Service");
  else if (answers.problem) pill(queries.length ? "wrong" : "care", queries.length ? "not up to date" : "no answers");
  else pill("well", `${number(queries.reduce((sum, one) => sum + one.records, 0))} records`);
  follow();
}

function pill(kind, text) {
  at("pill").className = `pill ${kind}`;
  say("pill", text);
}

// Only a changed text is announced by screen readers.
function say(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

let events = null;
let heard = Date.now();

function listen() {
  if (events) events.close();
  events = new EventSource("answers-events");
  events.onmessage = ({ data }) => {
    heard = Date.now();
    at("clock").textContent = new Date().toLocaleTimeString();
    showOverview(JSON.parse(data).answers);
  };
}

setInterval(() => {
  if (Date.now() - heard < 5000) return;
  pill("wrong", "the dashboard does not answer");
  if (!events || events.readyState === EventSource.CLOSED) listen();
}, 1000);

at("query").addEventListener("change", () => {
  at("label").value = "";
  follow();
});
at("label").addEventListener("change", draw);
let width = 0;
new ResizeObserver(() => {
  if (at("charts").clientWidth === width) return;
  width = at("charts").clientWidth;
  draw();
}).observe(at("charts"));
listen();
