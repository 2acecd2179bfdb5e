// Shows what /events says. Text goes into the page as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);
const number = (value, digits = 0) =>
  value === null || value === undefined
    ? "–"
    : value.toLocaleString("en", { maximumFractionDigits: digits });

function made(tag, what = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(what)) {
    if (name === "text") element.textContent = value;
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const shown = new Map();

// Fills a place, unless it shows the same already: what somebody reads or selects stays put.
function fill(id, content, build) {
  const key = JSON.stringify(content);
  if (shown.get(id) === key) return;
  shown.set(id, key);
  at(id).replaceChildren(...build(content));
}

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

function alarm({ level, what, do: remedy }) {
  return made(
    "div",
    { class: `alarm ${level}` },
    made("p", { class: "what", text: what }),
    made("p", { text: remedy }),
  );
}

function figure(name, value, ...more) {
  return made(
    "div",
    { class: "figure" },
    made("div", { class: "value", text: value }),
    made("div", { class: "name", text: name }),
    ...more,
  );
}

function line(rates) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 119 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "the last two minutes");
  const highest = Math.max(...rates, 1e-9);
  const first = 120 - rates.length;
  const points = rates.map((rate, place) => `${first + place},${28 - (26 * rate) / highest}`);
  if (points.length > 1) {
    for (const [kind, path] of [
      ["area", `M${first},30L${points.join("L")}L119,30Z`],
      ["line", `M${points.join("L")}`],
    ]) {
      const drawn = document.createElementNS(space, "path");
      drawn.setAttribute("class", kind);
      drawn.setAttribute("d", path);
      svg.append(drawn);
    }
  }
  return svg;
}

// When the owner of each partition was seen, by the clock of this browser: it goes on while nothing
// new is heard.
const seenAt = new Map();

function noteSeen(service) {
  seenAt.clear();
  const age = service.sides.Redis.age ?? 0;
  for (const { partition, seen } of service.partitions) {
    if (seen !== null) seenAt.set(String(partition), Date.now() - 1000 * (seen + age));
  }
}

function tellSeen() {
  for (const cell of document.querySelectorAll("[data-seen]")) {
    const time = seenAt.get(cell.dataset.seen);
    const ago = Math.floor((Date.now() - time) / 1000);
    cell.textContent = time === undefined ? "never" : `${number(Math.max(0, ago))} s ago`;
  }
}

// What is shown of a place is what was seen last, and not how things are.
function old(id, isOld) {
  at(id).closest("section, #people").classList.toggle("old", isOld);
}

// Columns and figures with numbers of users are only there for an operator who has logged in.
function partitions({ list, users }) {
  if (!list.length) return [nothing("None seen yet.")];
  const columns = [
    ["partition", "word wide named"], ["state", "word"], ["owner", "word broad"], ["decided/s", ""],
    ["lag", ""], ...(users ? [["users", ""]] : []), ["checkpoint at", ""], ["seen", ""],
  ];
  const rows = list.map((one) => [
    one.partition,
    made("span", { class: `state ${one.state}`, text: one.state }),
    one.owner ?? "nobody",
    number(one.rate, 1),
    number(one.lag),
    ...(users ? [number(users.partitions[one.partition])] : []),
    number(one.checkpoint),
    made("span", { "data-seen": one.partition }),
  ]);
  return [table(columns, rows)];
}

function datasets({ list, users }) {
  const columns = [
    ["dataset", "word wide"], ["measure", "word"], ["budget", "word"],
    ["epsilon", ""], ["at delta", ""], ...(users ? [["users", ""]] : []),
  ];
  const rows = list.map((one) => [
    one.dataset, one.measure, one.budget,
    number(Math.ceil(1e4 * one.epsilon) / 1e4, 4), one.delta.toExponential(),
    ...(users ? [number(users.datasets[one.dataset])] : []),
  ]);
  return [table(columns, rows)];
}

function workers(list) {
  const columns = [
    ["worker", "word wide"], ["health", "word"], ["release", "word"],
    ["partitions", ""], ["applied", ""],
  ];
  const rows = list.map((one) => [
    one.address,
    made("span", {
      class: `state ${one.problem ? "stopped" : "decides"}`,
      text: one.problem ? "not healthy" : "healthy",
    }),
    one.release ?? "–",
    one.partitions.join(", ") || "–",
    number(one.records),
  ]);
  return [table(columns, rows)];
}

function bars(counts) {
  const entries = Object.entries(counts);
  if (!entries.length) return [nothing("Nothing.")];
  const most = Math.max(...entries.map(([, count]) => count));
  return entries.map(([reason, count]) => {
    const bar = made("div", { class: "fill" });
    bar.style.width = `${(100 * count) / most}%`;
    return made(
      "div",
      { class: "bar" },
      made("span", { text: reason }),
      made("div", { class: "track" }, bar),
      made("span", { class: "count", text: number(count) }),
    );
  });
}

function runs(list) {
  if (!list.length) return [nothing("None has decided anything lately.")];
  const columns = [
    ["run", "word wide"], ["dataset", "word"], ["step", ""], ["steps/s", ""],
    ["active", ""], ["halted", ""], ["exhausted", ""], ["state", "word"],
  ];
  const rows = list.map((one) => [
    one.run, one.dataset, number(one.step), number(one.rate, 2),
    number(one.active), number(one.halted), number(one.exhausted),
    one.closed ? "closed" : one.counted_from ? `open, counted from step ${one.counted_from}` : "open",
  ]);
  return [table(columns, rows)];
}

function spending(list) {
  if (!list.length) return [nothing("No dataset yet.")];
  return list.map((one) => {
    const most = Math.max(...one.parts, 1);
    const columns = one.parts.map((count, place) => {
      const column = made("div", {
        class: place === one.parts.length - 1 ? "last" : "",
        title: `at most ${(100 * (place + 1)) / one.parts.length} %: ${number(count)} users`,
      });
      column.style.height = count ? `max(2px, ${(100 * count) / most}%)` : "0";
      return column;
    });
    const sample = one.one_in > 1 ? `, from one in ${one.one_in}` : "";
    return made(
      "div",
      {},
      made("h3", { text: one.dataset }),
      made("p", { class: "quiet", text: `${number(one.users)} users${sample}; spent at most:` }),
      made("div", { class: "parts" }, ...columns),
      made("div", { class: "ends" }, made("span", { text: "0 %" }), made("span", { text: "all of it" })),
    );
  });
}

const opened = new Set();

const moment = (time) => (time ? `${time.slice(0, 19).replace("T", " ")} UTC` : "no time");

function refused(list) {
  if (!list.length) return [nothing("Nothing.")];
  return list.map((one) => {
    const name = `${one.partition}/${one.offset}`;
    const run = one.run ? `${one.dataset} / ${one.run}` : (one.dataset ?? "");
    const entry = made(
      "details",
      {},
      made(
        "summary",
        {},
        made("span", { class: "reason", text: one.reason }),
        made("span", { text: run }),
        made("span", { class: "quiet", text: `${moment(one.time)}  partition ${one.partition}, offset ${one.offset}` }),
      ),
      made("p", { text: one.detail }),
      made("pre", { text: one.record || `${one.bytes} bytes that are no record` }),
    );
    entry.open = opened.has(name);
    entry.addEventListener("toggle", () => {
      if (entry.open) opened.add(name);
      else opened.delete(name);
    });
    return entry;
  });
}

function showService(service, users = null) {
  at("service").hidden = service === null;
  if (service === null) {
    at("alarms").hidden = true;
    pill("care", "log in to see");
    return;
  }
  const wrong = service.alarms.filter((one) => one.level === "wrong").length;
  const all = service.alarms.length;
  if (wrong) pill("wrong", wrong === 1 ? "1 thing is wrong" : `${wrong} things are wrong`);
  else if (all) pill("care", all === 1 ? "1 warning" : `${all} warnings`);
  else pill("well", "all is well");
  at("alarms").hidden = !all;
  fill("alarms", service.alarms, (alarms) => alarms.map(alarm));
  const decided = service.partitions.filter((one) => one.state === "decides").length;
  const allUsers = users && Object.values(users.datasets).reduce((sum, one) => sum + one, 0);
  fill(
    "figures",
    [service.rate, service.rates, service.lag, decided, service.partitions.length, allUsers],
    () => [
      figure("records decided a second", number(service.rate, 1), line(service.rates)),
      figure("records wait", number(service.lag)),
      figure("partitions decided", `${decided} of ${service.partitions.length}`),
      ...(users ? [figure("users, of all datasets", number(allUsers))] : []),
    ],
  );
  const seldom = service.partitions.map((one) => ({ ...one, seen: undefined }));
  fill("partitions", { list: seldom, users }, partitions);
  noteSeen(service);
  tellSeen();
  at("datasets-section").hidden = !service.datasets.length;
  fill("datasets", { list: service.datasets, users }, datasets);
  at("workers-section").hidden = !service.workers.length;
  fill("workers", service.workers, workers);
  fill("reasons", service.rejects, bars);
  const { Kafka, Redis } = service.sides;
  for (const id of ["figures", "partitions"]) old(id, Kafka.away || Redis.away);
  old("datasets", Redis.away);
  for (const id of ["reasons", "people"]) old(id, Kafka.away);
}

function showPeople(people, known) {
  at("login").hidden = known;
  at("leave").hidden = !known;
  at("people").hidden = people === null;
  if (people === null) {
    for (const id of ["runs", "spending", "refused"]) {
      at(id).replaceChildren();
      shown.delete(id);
    }
    return;
  }
  fill("runs", people.runs, runs);
  fill("spending", people.spending, spending);
  fill("refused", people.refused, refused);
}

function pill(kind, text) {
  at("pill").className = `pill ${kind}`;
  at("pill").textContent = text;
}

let events = null;
let heard = 0;

function listen() {
  if (events) events.close();
  events = new EventSource("events");
  events.onmessage = ({ data }) => {
    heard = Date.now();
    const seen = JSON.parse(data);
    document.body.classList.remove("stale");
    showService(seen.service, seen.people && seen.people.users);
    showPeople(seen.people, seen.known);
    at("clock").textContent = new Date().toLocaleTimeString();
  };
}

// A server that is away, in whatever way: a browser gives up on some of them, so this does not.
setInterval(() => {
  tellSeen();
  if (Date.now() - heard < 5000) return;
  document.body.classList.add("stale");
  pill("wrong", "the dashboard does not answer");
  if (!events || events.readyState === EventSource.CLOSED) listen();
}, 1000);

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("said").textContent = "";
  try {
    const answer = await fetch("login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ password: at("password").value }),
    });
    if (!answer.ok) {
      at("said").textContent = await answer.text();
      return;
    }
    at("form").reset();
    listen();
  } catch {
    at("said").textContent = "the dashboard does not answer";
  }
});

at("leave").addEventListener("click", async () => {
  await fetch("logout", { method: "POST" }).catch(() => null);
  listen();
});

heard = Date.now();
listen();
