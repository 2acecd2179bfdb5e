// Shows the content of /events to an operator.
"use strict";

const shown = new Map();

// Fills an element unless it shows the same content already, so that a text selection stays.
function fill(id, content, build) {
  const key = JSON.stringify(content);
  if (shown.get(id) === key) return;
  shown.set(id, key);
  at(id).replaceChildren(...build(content));
}

// Partitions as short text: "1, 3-5, 9".
function ranges(numbers) {
  const found = [];
  for (const one of [...numbers].sort((a, b) => a - b)) {
    const last = found[found.length - 1];
    if (last && one === last[1] + 1) last[1] = one;
    else found.push([one, one]);
  }
  return found.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}

// Alarms of several partitions with the same reason and remedy become one.
function grouped(alarms) {
  const groups = new Map();
  for (const one of alarms) {
    const { partition, reason } = one.about;
    const key = JSON.stringify([one.level, reason, one.do, partition === undefined ? one.what : 0]);
    if (!groups.has(key)) groups.set(key, { ...one, partitions: [] });
    if (partition !== undefined) groups.get(key).partitions.push(partition);
  }
  return [...groups.values()];
}

function alarm({ level, what, do: remedy, partitions }) {
  const others = partitions.length - 1;
  const more = others === 1 ? "1 more partition has" : `${number(others)} more partitions have`;
  return made(
    "div",
    { class: `alarm ${level}` },
    made("p", { class: "what", text: what }),
    ...(others > 0
      ? [made("p", { text: `${more} the same problem. All of them: ${ranges(partitions)}.` })]
      : []),
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
  const svg = drawn("svg", {
    viewBox: "0 0 119 30",
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": "the last two minutes",
  });
  const highest = Math.max(...rates, 1e-9);
  const first = 120 - rates.length;
  const points = rates.map((rate, place) => `${first + place},${28 - (26 * rate) / highest}`);
  if (points.length > 1) {
    for (const [kind, path] of [
      ["area", `M${first},30L${points.join("L")}L119,30Z`],
      ["line", `M${points.join("L")}`],
    ]) {
      svg.append(drawn("path", { class: kind, d: path }));
    }
  }
  return svg;
}

// The time of each owner's last heartbeat, by the clock of this browser. It advances without new
// events.
const seenAt = new Map();

function noteSeen(service) {
  seenAt.clear();
  const age = service.sides.Redis.age ?? 0;
  for (const { partition, seen } of service.partitions) {
    if (seen !== null) seenAt.set(String(partition), Date.now() - 1000 * (seen + age));
  }
}

function showSeen() {
  for (const cell of document.querySelectorAll("[data-seen]")) {
    const time = seenAt.get(cell.dataset.seen);
    const ago = Math.floor((Date.now() - time) / 1000);
    cell.textContent = time === undefined ? "never" : `${number(Math.max(0, ago))} s ago`;
  }
}

// Greys out an element with outdated values.
function markOld(id, isOld) {
  at(id).closest("section, #people").classList.toggle("old", isOld);
}

// Lists that are longer are folded: rows that are not well come first, and the others open on demand.
const FOLDED_FROM = 12;
const unfolded = new Set();

// Whether a partition fits the text of the filter: numbers and ranges, or a part of owner or state.
function fits(one, text) {
  return text.split(",").some((part) => {
    const word = part.trim().toLowerCase();
    const range = /^(\d+)(?:\s*-\s*(\d+))?$/.exec(word);
    if (range) return one.partition >= +range[1] && one.partition <= +(range[2] ?? range[1]);
    return word !== "" && `${one.state} ${one.owner ?? "none"}`.toLowerCase().includes(word);
  });
}

function fold(name, summary, content) {
  const isOpen = unfolded.has(name);
  const entry = made("details", { class: "fold" }, made("summary", { text: summary }));
  // A region that scrolls has to be reached by keyboard.
  const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": summary };
  if (isOpen) entry.append(made("div", region, content()));
  entry.open = isOpen;
  entry.addEventListener("toggle", () => {
    if (entry.open === unfolded.has(name)) return;
    if (entry.open) unfolded.add(name);
    else unfolded.delete(name);
    showAgain();
  });
  return entry;
}

// A table of the first rows, and the others folded.
function folded(name, columns, rows) {
  const first = table(columns, rows.slice(0, FOLDED_FROM));
  const rest = rows.slice(FOLDED_FROM);
  if (!rest.length) return [first];
  return [first, fold(name, `${rest.length} more`, () => table(columns, rest))];
}

// Only a logged-in operator sees columns and figures with numbers of users.
function partitions({ list, users, text }) {
  if (!list.length) return [nothing("No partition yet.")];
  const columns = [
    ["partition", "word wide named"], ["state", "word"], ["owner", "word broad"], ["decided/s", ""],
    ["lag", ""], ...(users ? [["users", ""]] : []), ["snapshot at", ""], ["heartbeat", ""],
  ];
  const rows = (some) => {
    const shownAs = table(columns, some.map((one) => [
      one.partition,
      made("span", { class: `state ${one.state}`, text: one.state }),
      one.owner ?? "none",
      number(one.rate, 1),
      number(one.lag),
      ...(users ? [number(users.partitions[one.partition])] : []),
      number(one.snapshot),
      made("span", { "data-seen": one.partition }),
    ]));
    if (list.length > FOLDED_FROM) shownAs.classList.add("dense");
    return shownAs;
  };
  if (text) {
    const found = list.filter((one) => fits(one, text));
    const count = made("p", { class: "quiet", text: `${found.length} of ${list.length} partitions` });
    return found.length ? [count, rows(found)] : [count];
  }
  if (list.length <= FOLDED_FROM) return [rows(list)];
  const well = list.filter((one) => one.state === "deciding");
  const others = list.filter((one) => one.state !== "deciding");
  const first = others.slice(0, FOLDED_FROM), rest = others.slice(FOLDED_FROM);
  const waiting = number(well.reduce((sum, one) => sum + one.lag, 0));
  return [
    ...(first.length ? [rows(first)] : []),
    ...(rest.length ? [fold("rest", `${rest.length} more are not deciding`, () => rows(rest))] : []),
    ...(well.length
      ? [fold("well", `${well.length} are deciding; ${waiting} records wait`, () => rows(well))]
      : []),
  ];
}

function showPartitions(service, users) {
  const list = service.partitions.map((one) => ({ ...one, seen: undefined }));
  const text = at("filter").value.trim();
  at("filter-line").hidden = list.length <= FOLDED_FROM;
  fill("partitions", { list, users, text, unfolded: [...unfolded] }, partitions);
  showSeen();
}

let latest = null;

function showAgain() {
  if (latest !== null) showService(...latest);
}

at("filter").addEventListener("input", showAgain);

function datasets({ list, users }) {
  const columns = [
    ["dataset", "word wide"], ["measure", "word"], ["budget", "word"],
    ["epsilon", ""], ["at delta", ""], ...(users ? [["users", ""]] : []),
  ];
  const rows = list.map((one) => [
    one.dataset, one.measure, one.budget,
    one.epsilon === null ? "infinite" : number(Math.ceil(1e4 * one.epsilon) / 1e4, 4),
    one.delta.toExponential(),
    ...(users ? [number(users.datasets[one.dataset])] : []),
  ]);
  return folded("datasets", columns, rows);
}

function workers({ list }) {
  const columns = [
    ["worker", "word wide"], ["health", "word"], ["release", "word"],
    ["partitions", ""], ["applied", ""],
  ];
  const rows = list.map((one) => [
    one.address,
    made("span", {
      class: `state ${one.problem ? "suspended" : "deciding"}`,
      text: one.problem ? "not healthy" : "healthy",
    }),
    one.release ?? "–",
    ranges(one.partitions) || "–",
    number(one.records),
  ]);
  return folded("workers", columns, rows);
}

function bars(counts) {
  const entries = Object.entries(counts);
  if (!entries.length) return [nothing("None.")];
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
  if (!list.length) return [nothing("No run yet.")];
  const columns = [
    ["run", "word wide"], ["dataset", "word"], ["step", ""], ["steps/s", ""],
    ["users", ""], ["halted", ""], ["state", "word"],
  ];
  const rows = list.map((one) => [
    one.run, one.dataset, number(one.step), number(one.rate, 2),
    number(one.users), number(one.halted), one.state,
  ]);
  return [table(columns, rows)];
}

// A count in little space: 1,400,000 as 1.4M.
const brief = (count) =>
  count.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });

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
    const sample = one.one_in > 1 ? `, estimated from one user in ${one.one_in}` : "";
    return made(
      "div",
      {},
      made("h3", { text: one.dataset }),
      made("p", { class: "quiet", text: `${number(one.users)} users${sample}, by the share of the budget spent at most` }),
      made("div", { class: "parts" }, ...columns),
      made("div", { class: "counts" }, ...one.parts.map((count) => made("span", { text: count ? brief(count) : "" }))),
      made("div", { class: "ends" }, made("span", { text: "0 %" }), made("span", { text: "100 %" })),
      made("p", { class: "quiet", text: "Each bar counts users. The last one, in another colour, is of users who have the least left." }),
    );
  });
}

const opened = new Set();

const moment = (time) => (time ? `${time.slice(0, 19).replace("T", " ")} UTC` : "unknown time");

function refused(list) {
  if (!list.length) return [nothing("None.")];
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
      made("pre", { text: one.record || `${one.bytes} bytes that cannot be decoded` }),
    );
    entry.open = opened.has(name);
    entry.addEventListener("toggle", () => {
      if (entry.open) opened.add(name);
      else opened.delete(name);
    });
    return entry;
  });
}

// The header stays in view. It repeats the first alarm while the alarms themselves are out of view.
let alarmsAreInView = true;

function showFirstAlarm() {
  at("first-alarm").hidden = at("alarms").hidden || alarmsAreInView;
}

new IntersectionObserver(([entry]) => {
  alarmsAreInView = entry.isIntersecting;
  showFirstAlarm();
}).observe(at("alarms"));

function showService(service, users = null) {
  at("service").hidden = service === null;
  if (service === null) {
    at("alarms").hidden = true;
    showFirstAlarm();
    pill("care", "login required");
    return;
  }
  const wrong = service.alarms.filter((one) => one.level === "wrong").length;
  const all = service.alarms.length;
  if (wrong) pill("wrong", wrong === 1 ? "1 error" : `${wrong} errors`);
  else if (all) pill("care", all === 1 ? "1 warning" : `${all} warnings`);
  else pill("well", "no alarms");
  at("alarms").hidden = !all;
  fill("alarms", service.alarms, (alarms) => grouped(alarms).map(alarm));
  at("first-alarm").textContent = all ? service.alarms[0].what : "";
  at("first-alarm").className = wrong ? "wrong" : "care";
  showFirstAlarm();
  const decided = service.partitions.filter((one) => one.state === "deciding").length;
  const allUsers = users && Object.values(users.datasets).reduce((sum, one) => sum + one, 0);
  fill(
    "figures",
    [service.rate, service.rates, service.lag, decided, service.partitions.length, allUsers],
    () => [
      figure(
        "records decided per second",
        number(service.rate, 1),
        line(service.rates),
        made("div", {
          class: "name",
          text: `the last two minutes, from 0 to ${number(Math.max(...service.rates, 0), 1)}`,
        }),
      ),
      figure("records waiting", number(service.lag)),
      figure("active partitions", `${decided} of ${service.partitions.length}`),
      ...(users ? [figure("users in all datasets", number(allUsers))] : []),
    ],
  );
  noteSeen(service);
  latest = [service, users];
  showPartitions(service, users);
  at("datasets-section").hidden = !service.datasets.length;
  fill("datasets", { list: service.datasets, users, unfolded: [...unfolded] }, datasets);
  at("workers-section").hidden = !service.workers.length;
  const ill = [...service.workers].sort((a, b) => Boolean(b.problem) - Boolean(a.problem));
  fill("workers", { list: ill, unfolded: [...unfolded] }, workers);
  fill("reasons", service.rejects, bars);
  const { Kafka, Redis } = service.sides;
  for (const id of ["figures", "partitions"]) markOld(id, Kafka.away || Redis.away);
  markOld("datasets", Redis.away);
  for (const id of ["reasons", "people"]) markOld(id, Kafka.away);
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

// Browsers stop asking after some kinds of failures, so this timer asks again.
setInterval(() => {
  showSeen();
  if (Date.now() - heard < 5000) return;
  document.body.classList.add("stale");
  pill("wrong", "the dashboard does not answer");
  if (!events || events.readyState === EventSource.CLOSED) listen();
}, 1000);

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("error").textContent = "";
  try {
    const answer = await post("login", { password: at("password").value });
    if (!answer.ok) {
      at("error").textContent = await answer.text();
      return;
    }
    at("form").reset();
    listen();
  } catch {
    at("error").textContent = "the dashboard does not answer";
  }
});

at("leave").addEventListener("click", async () => {
  await post("logout").catch(() => null);
  listen();
});

heard = Date.now();
listen();
