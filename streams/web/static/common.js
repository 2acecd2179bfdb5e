// Shared by all pages. Text goes into a page as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);

// Children may be lists; those that are false or null are left out.
const present = (children) => children.flat().filter((one) => one !== false && one !== null);

function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else element.setAttribute(name, value);
  }
  element.append(...present(children));
  return element;
}

function drawn(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

// An empty chart, what adds to it, and the places of times and amounts in it.
function emptyChart(attributes, [width, height], [left, right, top, bottom], [from, to], [low, high]) {
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, ...attributes });
  return {
    svg,
    add: (tag, attributes, text) => svg.appendChild(drawn(tag, attributes, text)),
    x: (time) => left + ((width - left - right) * (time - from)) / (to - from),
    y: (value) => top + ((height - top - bottom) * (high - value)) / (high - low),
  };
}

const number = (value, digits = 0) =>
  value === null || value === undefined
    ? "–"
    : value.toLocaleString("en", { maximumFractionDigits: digits });

const nothing = (text) => made("p", { class: "quiet", text });

// Only a changed text is announced by screen readers, and a selection in it stays otherwise.
function say(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

function pill(kind, text) {
  at("pill").className = `pill ${kind}`;
  say("pill", text);
}

// A column is its name, its class, and its cell in a row; a column that is false is left out.
function table(columns, rows, kind = "") {
  const shown = columns.filter(Boolean);
  const names = shown.map(([name, kind]) => made("th", { class: kind, text: name }));
  const lines = rows.map((row) => {
    const cells = shown.map(([name, kind, cell]) =>
      made("td", { class: kind, "data-name": name }, cell(row)),
    );
    return made("tr", {}, cells);
  });
  const head = made("thead", {}, made("tr", {}, names));
  return made("table", { class: kind }, head, made("tbody", {}, lines));
}

const unfolded = new Set();

// Content that is built when it is opened, and stays open when it is built again.
function fold(name, attributes, summary, build) {
  const entry = made("details", attributes, made("summary", {}, summary));
  const show = () => entry.open && entry.children.length === 1 && entry.append(...present(build()));
  entry.open = unfolded.has(name);
  show();
  entry.addEventListener("toggle", () => {
    if (entry.open) unfolded.add(name);
    else unfolded.delete(name);
    show();
  });
  return entry;
}

function foldedTable(name, summary, columns, rows, kind) {
  // A region that scrolls has to be reached by keyboard.
  const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": summary };
  const build = () => [made("div", region, table(columns, rows, kind))];
  return fold(name, { class: "fold" }, summary, build);
}

const FOLDED_FROM = 12;

// A table of the first rows, and the others folded.
function longTable(name, columns, rows) {
  const rest = rows.slice(FOLDED_FROM);
  return [
    table(columns, rows.slice(0, FOLDED_FROM)),
    rest.length > 0 && foldedTable(name, `${number(rest.length)} more`, columns, rest),
  ];
}

function post(path, content) {
  return fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(content),
  });
}

// Shows the events of a path. After some seconds of silence it says so and asks again, because
// browsers stop asking after some kinds of failures.
function follow(path, seconds, show, silence) {
  let source = null, heard = 0;
  function close() {
    source?.close();
    source = null;
  }
  function open() {
    close();
    heard = Date.now();
    source = new EventSource(path);
    source.onmessage = ({ data }) => {
      heard = Date.now();
      show(JSON.parse(data));
    };
  }
  setInterval(() => {
    if (source === null || Date.now() - heard < 1000 * seconds) return;
    silence();
    open();
  }, 1000);
  return { open, close };
}
