// Shows the answers to one query: a chart over time for each label, and a table.
"use strict";

const HEIGHT = 240, SMALL = 120; // of a chart; of each if there are several
const LEFT = 58, RIGHT = 10, TOP = 10, BOTTOM = 24;
const MOST_CHARTS = 12, MOST_ROWS = 400;

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

function chart(shown, line, ends, height, places) {
  const width = Math.max(260, at("charts").clientWidth);
  const times = [shown.start[0], Math.max(...shown.end)];
  const margins = [LEFT, RIGHT, TOP, BOTTOM];
  const drawing = emptyChart({ height, "aria-hidden": "true" }, [width, height], margins, times, ends);
  const { add, x, y } = drawing;
  const bottom = height - BOTTOM;
  for (const value of rounds(...ends, height > SMALL ? 5 : 3)) {
    add("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) });
    add("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, number(value, 9));
  }
  // The windows have their names at the axis as in the table, as far as there is room.
  const room = 8 * Math.max(...shown.name.map(({ length }) => length));
  let free = LEFT;
  shown.start.forEach((start, place) => {
    if (x(start) < free || x(start) + room > width) return;
    free = x(start) + room;
    add("line", { class: "axis", x1: x(start), x2: x(start), y1: bottom, y2: bottom + 4 });
    add("text", { x: x(start), y: height - 6 }, shown.name[place]);
  });
  for (const { start, end } of shown.gaps) {
    const wide = Math.max(2, x(end) - x(start));
    add("rect", { class: "gap", x: x(start), y: TOP, width: wide, height: bottom - TOP });
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
    add("path", { class: `band${kind}`, d: `M${[...upper, ...lower].join("L")}Z` });
    add("path", { class: `line${kind}`, d: values.join("") });
  }
  add("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom });
  return pointed(shown, line, drawing, bottom, places);
}

const interval = (line, place, places) =>
  `${exact(line.lower[place], places)} to ${exact(line.upper[place], places)}`;

function reading(shown, line, place, places) {
  const value = exact(line.value[place], places), state = shown.state[place];
  let text = `${value} (${interval(line, place, places)})${state && `, ${state}`}`;
  if (line.lower[place] === null) {
    text = line.value[place] === null ? "no answer" : `${value} (no interval: too much noise)`;
  }
  return `${shown.name[place]}: ${text}`;
}

// A chart whose windows can be read with the pointer or with the arrow keys.
function pointed(shown, line, { svg, x, y }, bottom, places) {
  const count = shown.start.length;
  const text = made("span", { class: "quiet" });
  const slider = made("div", {
    role: "slider", tabindex: "0", "aria-valuemin": "1", "aria-valuemax": String(count),
    "aria-label": `Answers to ${shown.query}${line.label === null ? "" : `, ${line.label}`}: window`,
  }, svg);
  const mark = drawn("line", { class: "mark", y1: TOP, y2: bottom });
  const dot = drawn("circle", { r: 4 });
  let place = count - 1;
  const point = (to, isMarked = true) => {
    place = Math.max(0, Math.min(count - 1, to));
    const middle = (x(shown.start[place]) + x(shown.end[place])) / 2;
    text.textContent = reading(shown, line, place, places);
    slider.setAttribute("aria-valuenow", String(place + 1));
    slider.setAttribute("aria-valuetext", text.textContent);
    mark.remove();
    dot.remove();
    if (!isMarked) return;
    for (const end of ["x1", "x2"]) mark.setAttribute(end, middle);
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
  slider.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -count, End: count };
    if (steps[event.key] === undefined) return;
    event.preventDefault();
    point(place + steps[event.key]);
  });
  point(count - 1, false);
  const caption = made("figcaption", {}, made("strong", { text: line.label ?? "" }), text);
  return made("figure", {}, caption, slider);
}

function legend(shown) {
  const item = (text, ...shapes) => {
    const svg = drawn("svg", { viewBox: "0 0 30 14", "aria-hidden": "true" });
    svg.append(...shapes);
    return made("li", {}, svg, made("span", { text }));
  };
  const box = (kind) => drawn("rect", { class: kind, width: 30, height: 14 });
  const line = (kind) => drawn("path", { class: kind, d: "M0,7L30,7" });
  const items = [];
  if (shown.can_miss_users.includes(false)) {
    const held = `${number(100 * shown.confidence, 4)} % interval`;
    items.push(item(`all users, ${held}`, box("band"), line("line")));
  }
  if (shown.can_miss_users.includes(true)) {
    const isCorrected = shown.state.some((one) => one.includes("provisional"));
    const text = `users can be missing${isCorrected ? ", to be corrected" : ""}`;
    items.push(item(text, box("band care"), line("line care")));
  }
  if (shown.gaps.length) items.push(item("not answered", box("gap")));
  return items;
}

function rows(shown, lines, places) {
  const found = [];
  for (let place = shown.start.length - 1; place >= 0 && found.length < MOST_ROWS; place--) {
    const answered = lines.filter((line) => line.lower[place] !== null);
    found.push(...answered.map((line) => ({ line, place })));
  }
  if (!found.length) return [nothing("No key was published.")];
  return longTable("windows", [
    ["window", "word", ({ place }) => shown.name[place]],
    shown.lines.length > 1 && ["label", "word", ({ line }) => line.label],
    ["value", "", ({ line, place }) => exact(line.value[place], places)],
    ["interval", "", ({ line, place }) => interval(line, place, places)],
    shown.state.some(Boolean) && ["state", "word", ({ place }) => shown.state[place] || "–"],
  ], found);
}

let shownNow = null;

function showAnswers(shown) {
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
  const label = at("label").value;
  const chosen = label === "" ? shown.lines : [shown.lines[+label]];
  const places = digits(chosen);
  const charts = chosen.slice(0, MOST_CHARTS);
  const left = chosen.length - charts.length;
  const more = left ? `. ${left} more labels are in the table and in the list of labels` : "";
  at("title").textContent = shown.query;
  at("about").textContent = `${shown.unit}, dataset ${shown.dataset}${more}`;
  const ends = range(charts);
  const height = charts.length > 1 ? SMALL : HEIGHT;
  at("charts").replaceChildren(...charts.map((line) => chart(shown, line, ends, height, places)));
  at("legend").replaceChildren(...legend(shown));
  at("gaps").hidden = !shown.gaps.length;
  const times = shown.gaps.map(({ name }) => name);
  const earlier = times.length > 5 ? `, and ${times.length - 5} earlier times` : "";
  at("gaps").textContent = `Not answered: ${times.slice(-5).reverse().join("; ")}${earlier}`;
  at("table").replaceChildren(...present(rows(shown, chosen, places)));
}

let queries = [];
let drawnRecords = "";

function chosenQuery() {
  return queries.find((one) => key(one) === at("query").value) ?? queries[0];
}

async function fetchAnswers() {
  const wanted = chosenQuery();
  if (!wanted || drawnRecords === JSON.stringify(wanted)) return;
  drawnRecords = JSON.stringify(wanted);
  try {
    const given = new URLSearchParams({ dataset: wanted.dataset, query: wanted.query });
    const answer = await fetch(`answers-of?${given}`);
    if (!answer.ok) throw new Error(answer.statusText);
    const shown = await answer.json();
    if (key(shown) === key(chosenQuery())) showAnswers(shown);
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
  fetchAnswers();
}

at("query").addEventListener("change", () => {
  at("label").value = "";
  fetchAnswers();
});
at("label").addEventListener("change", draw);
let width = 0;
new ResizeObserver(() => {
  if (at("charts").clientWidth === width) return;
  width = at("charts").clientWidth;
  draw();
}).observe(at("charts"));

const show = ({ answers }) => {
  at("clock").textContent = new Date().toLocaleTimeString();
  showOverview(answers);
};
follow("answers-events", 5, show, () => pill("wrong", "the dashboard does not answer")).open();
