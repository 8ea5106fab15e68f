// The pages of the explorer.  There is no network: data come as scripts that call `explorer.have`.
"use strict";
const FRAGMENT = 0, TRANSFER = 1, NAMED = 2, CALL = 3, OTHER = 4;
const TABS = [["summary", "Summary"], ["passes", "Passes"], ["program", "Program"], ["values", "Values"], ["time", "Timeline"], ["schedules", "Schedules"]];

const explorer = {
  data: new Map(), scripts: new Map(),
  have(name, value) {
    this.data.set(name, value);
    if (name === "index") start();
  },
  // A chunk of data, loaded when it is first wanted.
  async want(name) {
    if (!this.data.has(name)) await this.library(`data/${name}.js`);
    return this.data.get(name);
  },
  // A script, loaded once.
  library(file) {
    if (!this.scripts.has(file)) this.scripts.set(file, new Promise((done, fail) => {
      const script = document.createElement("script");
      script.src = file;
      script.onload = done;
      script.onerror = () => fail(new Error(`${file} cannot be read`));
      document.head.append(script);
    }));
    return this.scripts.get(file);
  },
  // The program after a pass; passes that left the same share it.
  view(pass) { return this.want(`pass${index().same[pass]}`); },
  // How a step is executed; nothing if that is not known.
  plan() { return index().planned ? this.want("plan") : null; },
};

const $ = (id) => document.getElementById(id);
const index = () => explorer.data.get("index");
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const bytes = (n) => n < 1024 ? `${n} B` : n < 1 << 20 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / (1 << 20)).toFixed(1)} MiB`;
// Floating-point operations, and their rate.
const scaled = (n) => { const at = n > 0 ? Math.max(0, Math.min(5, Math.floor(Math.log10(n) / 3))) : 0; return `${Number((n / 1000 ** at).toPrecision(3))} ${["", "K", "M", "G", "T", "P"][at]}`; };
const flops = (n) => `${scaled(n)}FLOPs`, rate = (n) => `${scaled(n)}FLOP/s`;
const number = (n) => n === undefined ? "" : n.toLocaleString("en");

// Where we are is in the address, so that every place has a link.
// Short links are `#pass=35` and `#pass=35&fragment=12`.
function place() {
  const { fragment: node, ...found } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  return node === undefined ? { view: found.pass === undefined ? "summary" : "passes", ...found } : { view: "program", node, ...found };
}
const address = (changes) => `#${new URLSearchParams(Object.entries({ ...place(), ...changes }).filter(([, value]) => value !== null && value !== undefined))}`;
const go = (changes) => { location.hash = address(changes); };
// Another address of what is seen already.
const remember = (changes) => history.replaceState(null, "", address(changes));
const link = (changes, text) => `<a href="${address(changes)}">${escape(text)}</a>`;

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

// What h and l do in the view that is shown: the box before or after the chosen one.
let move = null;

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT"].includes(event.target.tagName)) { if (event.key === "Escape") $("view").focus(); return; }
  if (event.key === "Enter" && event.target.tagName === "TR") return event.target.click();
  if (event.key === "Escape") return go({ node: null, value: null, at: null });
  if (event.key === "/" && $("find")) { event.preventDefault(); return $("find").focus(); }
  if (["+", "-", "0", "ArrowLeft", "ArrowRight"].includes(event.key) && zoomed) { event.preventDefault(); return zoomed(event.key); }
  if ("hl".includes(event.key) && move) return move(event.key === "l" ? 1 : -1);
  const tab = TABS[Number(event.key) - 1];
  if (tab) return go({ view: tab[0] });
  if (event.key !== "j" && event.key !== "k") return;
  const all = views(), at = all.indexOf(current(place().pass)) + (event.key === "j" ? 1 : -1);
  if (all[at] !== undefined) go({ pass: all[at], node: null });
}

// A slider, and what is to be done when it is moved: the address follows it without a new page, so that it can be dragged,
// and `draw` shows what it changes.
const range = (id, name, low, high, step, value, said = "") => `<label>${name} <input type="range" id="${id}" min="${low}" max="${high}" step="${step}" value="${value}"> <output id="${id}-is">${said}</output></label>`;
const slider = (id, draw) => { $(id).oninput = (event) => { remember({ [id]: event.target.value }); draw(place()); }; };

// A choice among [value, name].
const choice = (id, label, all, chosen) => `<select id="${id}" aria-label="${label}">${all.map(([value, name]) => `<option value="${value}" ${value === chosen ? "selected" : ""}>${escape(name)}</option>`).join("")}</select>`;

function clickable(selector, act) {
  for (const row of document.querySelectorAll(selector)) { row.tabIndex = 0; row.onclick = () => act(row.dataset); }
}

const SCROLLED = ["view", "side", "text"];
let shown = 0, before = {};
async function show() {
  const here = place(), turn = ++shown;
  $("tabs").innerHTML = TABS.map(([id, name]) =>
    `<a role="tab" aria-selected="${here.view === id}" href="${address({ view: id })}">${name}</a>`).join("");
  const draw = { summary, passes, program, values, time, schedules }[here.view] || summary;
  try {
    const [page, side, after] = await draw(here);
    if (turn !== shown) return;
    // What is seen stays where it is when something is chosen in it.
    const same = before.view === here.view && before.pass === here.pass, focus = document.activeElement && document.activeElement.id;
    const places = SCROLLED.map((id) => $(id)).map((one) => one && [one.scrollLeft, one.scrollTop]);
    $("view").innerHTML = page;
    $("side").innerHTML = side;
    $("status").textContent = "1-6 views, j k passes, h l boxes, + − 0 ← → zoom, / find, Esc nothing chosen";
    move = zoomed = null;
    const top = after && after() || 0;
    SCROLLED.forEach((id, i) => { if ($(id) && id !== "side") [$(id).scrollLeft, $(id).scrollTop] = same && places[i] ? places[i] : [$(id).scrollLeft, id === "view" ? top : 0]; });
    if (focus && $(focus)) $(focus).focus({ preventScroll: true });
    const line = document.querySelector("#text .chosen");
    if (line && here.node !== before.node) $("text").scrollTop = line.offsetTop - $("text").offsetTop - $("text").clientHeight / 3;
    $("side").scrollTop = same && before.node === here.node && before.value === here.value && before.at === here.at ? places[1][1] : 0;
    before = here;
    document.body.dataset.shown = turn;
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
      const text = value === undefined ? "" : name === "bytes" ? bytes(value) : name === "work" ? Number(value.toPrecision(3)) : number(value);
      const kind = mark ? (value < last[name] ? "new" : "moved") : "";
      return `<td class="n ${kind}">${text}</td>`;
    });
    if (row.changed) last = row;
    if (errors) cells.push(`<td class="n ${row.error === undefined || row.error <= errors ? "" : "gone"}" title="${escape(row.error_at ?? "")}">${row.error === undefined ? "" : Number(row.error).toExponential(1)}</td>`);
    const classes = [row.changed ? "" : "still", row.pass === at ? "on" : ""].join(" ");
    return `<tr class="${classes}" data-pass="${row.pass}"><td class="n">${row.pass}</td><td class="spec" title="${escape(row.spec)}">${escape(row.spec)}</td>${cells.join("")}<td class="n">${row.ms.toFixed(1)}</td></tr>`;
  });
  const page = `<h2>Passes</h2><table><thead><tr><th class="n"></th><th>pass</th><th class="n">ops</th><th class="n">fragments</th><th class="n">transfers</th><th class="n">sent</th><th class="n">bodies</th><th class="n" title="the longest way through the step, each mesh in its order, in millions of floating-point operations">MFLOPs to the end</th>${errors ? `<th class="n" title="the largest difference of a result from plain jax.jit, relative to its norm; more than ${errors.toExponential(1)} is wrong">error</th>` : ""}<th class="n">ms</th></tr></thead><tbody>${lines.join("")}</tbody></table>`;
  const side = await changes(at);
  return [page, side, () => {
    clickable("tbody tr", (data) => go({ pass: data.pass, node: null }));
  }];
}

// What a pass did to things, with links to those that are there.
async function changes(at) {
  const row = index().passes.find((one) => one.pass === at), found = row.changes;
  let text = `<h2>${escape(row.spec)}</h2><p>${link({ view: "program", pass: at, node: null }, "the program after it")}</p>`;
  return found ? text + told(found, at) : text;
}

function told(found, at) {
  let text = found.head.map((line) => `<p>${escape(line)}</p>`).join("");
  for (const [kind, list] of Object.entries(found.lists)) {
    const items = list.map(([name, node]) => `<li>${node === null ? escape(name) : link({ view: "program", pass: at, node }, name)}</li>`);
    text += `<h3 class="${kind}">${found.counts[kind]} ${kind}</h3><ul>${items.join("")}${found.counts[kind] > list.length ? "<li>...</li>" : ""}</ul>`;
  }
  return text;
}

// What became of the fragments of one view in another: as `told` wants it.
function difference(old, now) {
  const things = (view) => view.nodes.map((node, i) => ({ i, mesh: node.k === FRAGMENT ? node.m : "", call: node.c, names: (node.a || []).map(([name, count]) => count ? `${name}(${count})` : name) })).filter((thing) => thing.names.length);
  const table = (all) => d3.group(all.flatMap((one) => [...new Set(one.names)].map((name) => [name, one])), ([name]) => name);
  const a = things(old), b = things(now), was = table(a), is = table(b), list = { merged: [], split: [], moved: [], new: [], gone: [] };
  const same = (x, y) => x.call === undefined || y.call === undefined || x.call === y.call;
  const label = (one) => `${one.names.length > 4 ? `${one.names.slice(0, 3).join(", ")} and ${one.names.length - 3} more` : one.names.join(", ")}${one.call === undefined ? "" : ` #${one.call}`}${one.mesh ? ` on ${one.mesh}` : ""}`;
  for (const one of b) {
    const from = one.names.flatMap((name) => (was.get(name) || []).map(([, other]) => other).filter((other) => same(other, one))), row = [label(one), one.i];
    if (!from.length) list.new.push(row);
    else if (new Set(from.map((f) => `${f.names}|${f.call}`)).size > 1 && String(one.names) !== String(from[0].names)) list.merged.push(row);
    else if (from.every((f) => f.mesh && f.mesh !== one.mesh)) list.moved.push(row);
    if (one.names.some((name) => was.has(name) && is.get(name).length > was.get(name).length)) list.split.push(row);
  }
  for (const one of a) if (one.names.every((name) => !(is.get(name) || []).some(([, other]) => same(one, other)))) list.gone.push([label(one), null]);
  const sent = (view) => d3.rollup(view.nodes.filter((node) => node.k === TRANSFER), (all) => all.length, (node) => `${node.f} → ${node.m}`);
  const before = sent(old), after = sent(now), head = [];
  for (const pair of [...new Set([...before.keys(), ...after.keys()])].sort(new Intl.Collator("en", { numeric: true }).compare)) {
    const more = (after.get(pair) || 0) - (before.get(pair) || 0);
    if (more) head.push(`${more > 0 ? "+" : ""}${more} transfers ${pair}`);
  }
  const order = (all) => all.map((one) => `${one.mesh} ${label(one)}`), [x, y] = [order(a), order(b)];
  if (String(x) !== String(y) && String([...x].sort()) === String([...y].sort())) head.push("the same fragments in another order");
  const lists = {}, counts = {};
  for (const [kind, all] of Object.entries(list)) if (all.length) { lists[kind] = all.slice(0, 40); counts[kind] = all.length; }
  if (!head.length && !Object.keys(lists).length) head.push("the same fragments and transfers");
  return { head, lists, counts };
}
