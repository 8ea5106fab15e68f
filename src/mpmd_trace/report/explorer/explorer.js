// The pages of the explorer.  No library and no network: data come as scripts that call `explorer.have`.
"use strict";
const FRAGMENT = 0, TRANSFER = 1, NAMED = 2, CALL = 3, OTHER = 4;
const TABS = [["passes", "Passes"], ["program", "Program"], ["values", "Values"], ["time", "Timeline"], ["schedules", "Schedules"]];
const ROW = 26, BOX = 18, LEFT = 90;

const explorer = {
  data: new Map(), waiting: new Map(),
  have(name, value) {
    this.data.set(name, value);
    for (const done of this.waiting.get(name) || []) done(value);
    this.waiting.delete(name);
    if (name === "index") start();
  },
  // A chunk of data, loaded when it is first wanted.
  want(name) {
    if (this.data.has(name)) return Promise.resolve(this.data.get(name));
    return new Promise((done, fail) => {
      const others = this.waiting.get(name);
      if (others) { others.push(done); return; }
      this.waiting.set(name, [done]);
      const script = document.createElement("script");
      script.src = `data/${name}.js`;
      script.onerror = () => fail(new Error(`data/${name}.js cannot be read`));
      document.head.append(script);
    });
  },
};

const $ = (id) => document.getElementById(id);
const index = () => explorer.data.get("index");
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const bytes = (n) => n < 1024 ? `${n} B` : n < 1 << 20 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / (1 << 20)).toFixed(1)} MiB`;
const number = (n) => n === undefined ? "" : n.toLocaleString("en");

// Where we are is in the address, so that every place has a link.
function place() {
  const found = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return { view: "passes", ...found };
}
function go(changes) {
  const next = { ...place(), ...changes };
  for (const key of Object.keys(next)) if (next[key] === null || next[key] === undefined) delete next[key];
  location.hash = new URLSearchParams(next).toString();
}
const link = (changes, text) => {
  const next = { ...place(), ...changes };
  for (const key of Object.keys(next)) if (next[key] === null) delete next[key];
  return `<a href="#${new URLSearchParams(next)}">${escape(text)}</a>`;
};

function views() { return index().passes.filter((row) => row.changed && row.ops !== undefined).map((row) => row.pass); }
function current(at) { const all = views(); const n = Number(at ?? all[all.length - 1]); return all.includes(n) ? n : all.filter((p) => p <= n).pop() ?? all[0]; }

function start() {
  $("title").textContent = index().title;
  document.title = `${index().title} - mpmd_trace explorer`;
  addEventListener("hashchange", show);
  addEventListener("keydown", key);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  addEventListener("resize", show);
  show();
}

function key(event) {
  if (["INPUT", "SELECT"].includes(event.target.tagName) || event.ctrlKey || event.metaKey) return;
  const tab = TABS[Number(event.key) - 1];
  if (tab) return go({ view: tab[0] });
  if (event.key !== "j" && event.key !== "k") return;
  const all = views(), at = all.indexOf(current(place().pass)) + (event.key === "j" ? 1 : -1);
  if (all[at] !== undefined) go({ pass: all[at], node: null, value: place().value ?? null });
}

let shown = 0;
async function show() {
  const here = place(), turn = ++shown;
  $("tabs").innerHTML = TABS.map(([id, name]) =>
    `<a role="tab" aria-selected="${here.view === id}" href="#${new URLSearchParams({ ...here, view: id })}">${name}</a>`).join("");
  const draw = { passes, program, values, time, schedules }[here.view] || passes;
  try {
    const [page, side, after] = await draw(here);
    if (turn !== shown) return;
    $("view").innerHTML = page;
    $("side").innerHTML = side;
    $("status").textContent = "1-5 views, j/k next and previous pass";
    if (after) after();
  } catch (error) {
    $("view").textContent = String(error.message || error);
    throw error;
  }
}

// ---- passes

async function passes(here) {
  const rows = index().passes, at = current(here.pass);
  const errors = index().tolerance;
  let last = {};
  const lines = rows.map((row) => {
    const cells = ["ops", "fragments", "transfers", "bytes", "bodies", "work"].map((name) => {
      const value = row[name], mark = value !== undefined && last[name] !== undefined && value !== last[name];
      const text = value === undefined ? "" : name === "bytes" ? bytes(value) : name === "work" ? value.toFixed(2) : number(value);
      const kind = mark ? (value < last[name] ? "new" : "moved") : "";
      return `<td class="n ${kind}">${text}</td>`;
    });
    if (row.changed) last = row;
    if (errors) cells.push(`<td class="n ${row.error === undefined || row.error <= errors ? "" : "gone"}" title="${escape(row.error_at ?? "")}">${row.error === undefined ? "" : Number(row.error).toExponential(1)}</td>`);
    const classes = [row.changed ? "" : "still", row.pass === at ? "on" : ""].join(" ");
    return `<tr class="${classes}" data-pass="${row.pass}"><td class="n">${row.pass}</td><td class="spec" title="${escape(row.spec)}">${escape(row.spec)}</td>${cells.join("")}<td class="n">${row.ms.toFixed(1)}</td></tr>`;
  });
  const page = `<h2>Passes</h2><table><thead><tr><th class="n"></th><th>pass</th><th class="n">ops</th><th class="n">fragments</th><th class="n">transfers</th><th class="n">sent</th><th class="n">bodies</th><th class="n" title="the longest way through the step, each mesh in its order, in millions of operations">Mflop to the end</th>${errors ? `<th class="n" title="the largest difference of a result from plain jax.jit, relative to its norm; more than ${errors.toExponential(1)} is wrong">error</th>` : ""}<th class="n">ms</th></tr></thead><tbody>${lines.join("")}</tbody></table>`;
  const side = await changes(at);
  return [page, side, () => {
    for (const row of document.querySelectorAll("tbody tr")) row.onclick = () => go({ pass: row.dataset.pass, node: null });
  }];
}

// What a pass did to things, with links to those that are there.
async function changes(at) {
  const row = index().passes.find((one) => one.pass === at), found = row.changes;
  let text = `<h2>${escape(row.spec)}</h2><p>${link({ view: "program", pass: at, node: null }, "the program after it")}</p>`;
  if (!found) return text;
  text += found.head.map((line) => `<p>${escape(line)}</p>`).join("");
  for (const [kind, list] of Object.entries(found.lists)) {
    const items = list.map(([name, node]) => `<li>${node === null ? escape(name) : link({ view: "program", pass: at, node }, name)}</li>`);
    text += `<h3 class="${kind}">${found.counts[kind]} ${kind}</h3><ul>${items.join("")}${found.counts[kind] > list.length ? "<li>...</li>" : ""}</ul>`;
  }
  return text;
}
