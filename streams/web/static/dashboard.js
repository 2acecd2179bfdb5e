// Shows the content of /events to an operator.
"use strict";

const shown = new Map();

// Fills an element unless it shows the same content already, so that a text selection stays.
function fill(id, content, build) {
  const key = JSON.stringify(content);
  if (shown.get(id) === key) return;
  shown.set(id, key);
  at(id).replaceChildren(...present(build(content)));
}

// Partitions as short text: "1, 3-5, 9".
function ranges(numbers) {
  const found = [];
  for (const one of [...numbers].sort((a, b) => a - b)) {
    const last = found.at(-1);
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
  const all = `${more} the same problem. All of them: ${ranges(partitions)}.`;
  return made(
    "div",
    { class: `alarm ${level}` },
    made("p", { class: "what", text: what }),
    others > 0 && made("p", { text: all }),
    made("p", { text: remedy }),
  );
}

function figure(name, value, ...more) {
  return made(
    "div",
    { class: "figure" },
    made("div", { class: "value", text: value }),
    made("div", { class: "name", text: name }),
    more,
  );
}

function line(rates) {
  const { svg, add, x, y } = emptyChart(
    { preserveAspectRatio: "none", role: "img", "aria-label": "the last two minutes" },
    [119, 30], [0, 0, 2, 2], [0, 119], [0, Math.max(...rates, 1e-9)],
  );
  const first = 120 - rates.length;
  const points = rates.map((rate, place) => `${x(first + place)},${y(rate)}`);
  if (points.length > 1) {
    add("path", { class: "area", d: `M${x(first)},30L${points.join("L")}L119,30Z` });
    add("path", { class: "line", d: `M${points.join("L")}` });
  }
  return svg;
}

// Greys out an element with outdated values.
function markOld(id, isOld) {
  at(id).closest("section, #people").classList.toggle("old", isOld);
}

const state = (kind, text = kind) => made("span", { class: `state ${kind}`, text });

// Only a logged-in operator sees columns and figures with numbers of users. In a long list,
// partitions that are not deciding come first, and the others open on demand.
function partitions({ list, users }) {
  if (!list.length) return [nothing("No partition yet.")];
  const columns = [
    ["partition", "word wide named", (one) => one.partition],
    ["state", "word", (one) => state(one.state)],
    ["owner", "word broad", (one) => one.owner ?? "none"],
    ["decided/s", "", (one) => number(one.rate, 1)],
    ["lag", "", (one) => number(one.lag)],
    users && ["users", "", (one) => number(users.partitions[one.partition])],
    ["snapshot at", "", (one) => number(one.snapshot)],
  ];
  if (list.length <= FOLDED_FROM) return [table(columns, list)];
  const well = list.filter((one) => one.state === "deciding");
  const others = list.filter((one) => one.state !== "deciding");
  const first = others.slice(0, FOLDED_FROM), rest = others.slice(FOLDED_FROM);
  const waiting = number(well.reduce((sum, one) => sum + one.lag, 0));
  const folded = (name, summary, some) =>
    some.length > 0 && foldedTable(name, summary, columns, some, "dense");
  return [
    first.length > 0 && table(columns, first, "dense"),
    folded("rest", `${rest.length} more are not deciding`, rest),
    folded("well", `${well.length} are deciding; ${waiting} records wait`, well),
  ];
}

function datasets({ list, users }) {
  const up = (epsilon) => number(Math.ceil(1e4 * epsilon) / 1e4, 4);
  return longTable("datasets", [
    ["dataset", "word wide", (one) => one.dataset],
    ["measure", "word", (one) => one.measure],
    ["budget", "word", (one) => one.budget],
    ["epsilon", "", (one) => (one.epsilon === null ? "infinite" : up(one.epsilon))],
    ["at delta", "", (one) => one.delta.toExponential()],
    users && ["users", "", (one) => number(users.datasets[one.dataset])],
    users && ["exhausted", "", (one) => number(users.exhausted[one.dataset])],
  ], list);
}

function workers(list) {
  return longTable("workers", [
    ["worker", "word wide", (one) => one.address],
    ["health", "word", (one) =>
      one.problem ? state("suspended", "not healthy") : state("deciding", "healthy")],
    ["release", "word", (one) => one.release ?? "–"],
    ["partitions", "", (one) => ranges(one.partitions) || "–"],
    ["applied", "", (one) => number(one.records)],
  ], list);
}

function reasons(counts) {
  if (!counts.length) return [nothing("None.")];
  return [table([
    ["reason", "word wide", ([reason]) => reason],
    ["records", "", ([, count]) => number(count)],
  ], counts)];
}

function runs(list) {
  if (!list.length) return [nothing("No run yet.")];
  return [table([
    ["run", "word wide", (one) => one.run],
    ["dataset", "word", (one) => one.dataset],
    ["step", "", (one) => number(one.step)],
    ["steps/s", "", (one) => number(one.rate, 2)],
    ["users", "", (one) => number(one.users)],
    ["halted", "", (one) => number(one.halted)],
    ["state", "word", (one) => one.state],
  ], list)];
}

const moment = (time) => (time ? `${time.slice(0, 19).replace("T", " ")} UTC` : "unknown time");

function refused(list) {
  if (!list.length) return [nothing("None.")];
  return list.map((one) => {
    const place = `${moment(one.time)}  partition ${one.partition}, offset ${one.offset}`;
    const summary = [
      made("span", { class: "reason", text: one.reason }),
      made("span", { text: one.run ? `${one.dataset} / ${one.run}` : (one.dataset ?? "") }),
      made("span", { class: "quiet", text: place }),
    ];
    return fold(`refused ${one.partition}/${one.offset}`, {}, summary, () => [
      made("p", { text: one.detail }),
      made("pre", { text: one.record || `${one.bytes} bytes that cannot be decoded` }),
    ]);
  });
}

function showAlarms(alarms) {
  const wrong = alarms.filter((one) => one.level === "wrong").length;
  const all = alarms.length;
  if (wrong) pill("wrong", wrong === 1 ? "1 error" : `${wrong} errors`);
  else if (all) pill("care", all === 1 ? "1 warning" : `${all} warnings`);
  else pill("well", "no alarms");
  at("alarms").hidden = !all;
  fill("alarms", alarms, (alarms) => grouped(alarms).map(alarm));
}

function figures({ rate, rates, lag, partitions, users }) {
  const deciding = partitions.filter((state) => state === "deciding").length;
  const scale = `the last two minutes, from 0 to ${number(Math.max(...rates, 0), 1)}`;
  const name = made("div", { class: "name", text: scale });
  return [
    figure("records decided per second", number(rate, 1), line(rates), name),
    figure("records waiting", number(lag)),
    figure("active partitions", `${deciding} of ${partitions.length}`),
    users !== null && figure("users in all datasets", number(users)),
  ];
}

function showService(service, users = null) {
  at("service").hidden = service === null;
  if (service === null) {
    at("alarms").hidden = true;
    pill("care", "login required");
    return;
  }
  showAlarms(service.alarms);
  const { rate, rates, lag } = service;
  const allUsers = users && Object.values(users.datasets).reduce((sum, one) => sum + one, 0);
  const states = service.partitions.map((one) => one.state);
  fill("figures", { rate, rates, lag, partitions: states, users: allUsers }, figures);
  fill("partitions", { list: service.partitions, users }, partitions);
  at("datasets-section").hidden = !service.datasets.length;
  fill("datasets", { list: service.datasets, users }, datasets);
  at("workers-section").hidden = !service.workers.length;
  const ill = [...service.workers].sort((a, b) => Boolean(b.problem) - Boolean(a.problem));
  fill("workers", ill, workers);
  fill("reasons", Object.entries(service.rejects), reasons);
  const { Kafka, Redis } = service.away;
  for (const id of ["figures", "partitions"]) markOld(id, Kafka || Redis);
  markOld("datasets", Redis);
  for (const id of ["reasons", "people"]) markOld(id, Kafka);
}

function showPeople(people, known) {
  at("login").hidden = known;
  at("leave").hidden = !known;
  at("people").hidden = people === null;
  const builders = { runs, refused };
  for (const [id, build] of Object.entries(builders)) {
    fill(id, people && people[id], (content) => (content === null ? [] : build(content)));
  }
}

function show(seen) {
  document.body.classList.remove("stale");
  showService(seen.service, seen.people && seen.people.users);
  showPeople(seen.people, seen.known);
  at("clock").textContent = new Date().toLocaleTimeString();
}

const events = follow("events", 5, show, () => {
  document.body.classList.add("stale");
  pill("wrong", "the dashboard does not answer");
});

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  say("error", "");
  try {
    const answer = await post("login", { password: at("password").value });
    if (!answer.ok) return say("error", await answer.text());
    at("form").reset();
    events.open();
  } catch {
    say("error", "the dashboard does not answer");
  }
});

at("leave").addEventListener("click", async () => {
  await post("logout").catch(() => null);
  events.open();
});

events.open();
