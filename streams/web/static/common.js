// Shared by the dashboard and the portal. Text goes into a page as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);

function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function drawn(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function post(path, content) {
  return fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(content),
  });
}

const number = (value, digits = 0) =>
  value === null || value === undefined
    ? "–"
    : value.toLocaleString("en", { maximumFractionDigits: digits });

function table(columns, rows) {
  const head = made("tr");
  for (const [name, kind] of columns) head.append(made("th", { class: kind, text: name }));
  const body = made("tbody");
  for (const row of rows) {
    const line = made("tr");
    row.forEach((value, place) => {
      const [name, kind] = columns[place];
      const cell = made("td", { class: kind, "data-name": name });
      cell.append(value instanceof Node ? value : String(value));
      line.append(cell);
    });
    body.append(line);
  }
  return made("table", {}, made("thead", {}, head), body);
}

const nothing = (text) => made("p", { class: "quiet", text });
