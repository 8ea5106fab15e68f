// The program after a pass, its fragments and its values.
"use strict";

// A type without the mesh, which the box says: tensor<4x8xf32> and its sharding.
const short = (type) => type.replace(/^!mpmd\.mesh_tensor<"[^"]*", (.*)>$/, "$1").replace(/sharding=<@mesh[^,]*, /, "<");

// ---- program at a pass: meshes are lanes, boxes stand in the order of the program

async function program(here) {
  const at = current(here.pass), view = await explorer.view(at);
  const passes = views().map((n) => [n, `${n} ${index().passes.find((p) => p.pass === n).spec.slice(0, 70)}`]);
  const beside = here.with === undefined ? null : current(here.with);
  const page = `<div class="bar">${choice("pass", "pass", passes, at)} <label>since ${choice("with", "compare with", [["", "no other pass"], ...passes], beside)}</label>
    <input type="search" id="find" placeholder="find a name" value="${escape(here.find ?? "")}">${ZOOM}<span>${legend(["F", "B", "O", "T"])}</span></div>
    <div id="lanes" data-says="fragments by mesh, in their order"></div><h3>Text</h3><pre id="text"></pre>`;
  const side = beside === null || here.node !== undefined ? await details(view, here, at)
    : `<h2>From pass ${beside} to ${at}</h2>${told(difference(await explorer.view(beside), view), at)}`;
  return [page, side, () => {
    $("pass").onchange = (event) => go({ pass: event.target.value, node: null });
    $("with").onchange = (event) => go({ with: event.target.value || null, node: null });
    $("find").onchange = (event) => go({ find: event.target.value || null });
    const boxed = lanes(view, here);
    if (here.node !== undefined && $("around")) around(view, Number(here.node));
    $("text").innerHTML = listing(view, here);
    const row = (i) => view.nodes[i].k === FRAGMENT ? view.nodes[i].m : "";
    move = (by) => {
      const boxes = view.nodes.map((node, i) => i).filter((i) => view.nodes[i].k !== TRANSFER && (here.node === undefined || row(i) === row(Number(here.node))));
      const next = boxes[here.node === undefined ? 0 : boxes.indexOf(Number(here.node)) + by];
      if (next !== undefined) go({ node: next });
    };
    return boxed && boxed.row * ROW > 500 ? boxed.row * ROW - 250 : 0;
  }];
}

function kind(node) {
  if (node.k === TRANSFER) return "T";
  if (!node.a || !node.a.length) return "O";
  return node.a.some(([, count]) => count > 0) ? "B" : "F";
}

// Which node makes each value, and which read it.
const makers = (view) => view.makers ??= new Map(view.nodes.flatMap((node, i) => node.o.map((v) => [v, i])));
const readers = (view) => view.readers ??= d3.group(view.nodes.flatMap((node, i) => [...new Set(node.i)].map((v) => [v, i])), ([v]) => v);
const reading = (view, v) => (readers(view).get(v) ?? []).map(([, i]) => i);

// The box of each node: its row, and its column, which follows the order of the row and, between rows, the data.
function layout(view) {
  const names = [...view.meshes], boxes = new Map(), ready = new Map(), next = [];
  view.nodes.forEach((node, i) => {
    let end = node.i.reduce((most, v) => Math.max(most, ready.get(v) ?? 0), 0);
    if (node.k !== TRANSFER) {
      const name = node.k === FRAGMENT ? node.m : "no mesh";
      if (!names.includes(name)) names.push(name);
      const row = names.indexOf(name), column = Math.max(end, next[row] ?? 0);
      boxes.set(i, { i, row, column });
      end = next[row] = column + 1;
    }
    for (const v of node.o) ready.set(v, end);
  });
  return { names, boxes, width: d3.max(boxes.values(), (one) => one.column + 1) ?? 1 };
}

function lanes(view, here) {
  const { names, boxes, width } = layout(view), chosen = here.node === undefined ? null : Number(here.node), wanted = here.value === undefined ? null : Number(here.value.replace("%", ""));
  const from = makers(view), at = (one) => boxes.get(one), arrows = [], link = (pen) => d3.linkHorizontal().context(pen);
  for (const one of boxes.values()) for (const v of view.nodes[one.i].i) {
    const sender = from.get(v);
    if (sender === undefined || view.nodes[sender].k !== TRANSFER) continue;
    let source = sender;
    while (source !== undefined && view.nodes[source].k === TRANSFER) source = from.get(view.nodes[source].i[0]);
    if (at(source)) arrows.push([at(source), one, [one.i, source, sender].includes(chosen)]);
  }
  const many = Math.min(width, Math.max(1, Math.floor($("lanes").clientWidth / 60))), middle = chosen === null || !at(chosen) ? 0 : at(chosen).column - many / 3;
  const start = Math.max(0, Math.min(middle, width - many));
  picture("lanes", {
    names, extent: width, seen: [start, start + many], key: "seen",
    draw(pen, x) {
      const [low, high] = x.domain(), y = (one) => one.row * ROW + ROW / 2, seen = arrows.filter(([a, b]) => Math.max(a.column, b.column) > low - 1 && Math.min(a.column, b.column) < high);
      pen.strokeStyle = color("T"); pen.lineWidth = 1;
      const faint = Math.min(chosen === null ? 0.8 : 0.12, 200 / seen.length); // many lines are a haze at most
      for (const [a, b, near] of seen) {
        if (!near && seen.length > 4000) continue;
        pen.globalAlpha = near ? 0.8 : faint;
        pen.beginPath(); link(pen)({ source: [x(a.column + 0.95), y(a)], target: [x(b.column + 0.02), y(b)] }); pen.stroke();
      }
      pen.globalAlpha = 1;
      for (const one of boxes.values()) {
        if (one.column + 1 < low || one.column > high) continue;
        const node = view.nodes[one.i], marked = one.i === chosen || here.find && node.l.includes(here.find) || wanted !== null && (node.i.includes(wanted) || node.o.includes(wanted));
        box(pen, x(one.column), x(one.column + 1) - 1, one.row * ROW + (ROW - BOX) / 2, BOX, marked ? "hot" : kind(node), `${node.c === undefined ? "" : `#${node.c} `}${node.l}`, one.i === chosen);
      }
    },
    find(value, row) { for (const one of boxes.values()) if (one.row === row && one.column === Math.floor(value)) return one.i; },
    say: (i) => named(view, i),
    choose: (i) => go({ node: i }),
  });
  return at(chosen);
}

// A node in words.
function named(view, i) {
  const node = view.nodes[i];
  return `${node.l.length > 60 ? `${node.l.slice(0, 57)}...` : node.l}${node.c === undefined ? "" : ` #${node.c}`}${node.m ? ` on ${node.m}` : ""}`;
}

// What is before and after a node, with what is sent between them, as a graph.
function around(view, at) {
  const from = makers(view), most = 6, near = [], edges = [];
  const before = [...new Set(view.nodes[at].i.map((v) => from.get(v)).filter((i) => i !== undefined))], after = d3.sort(new Set(view.nodes[at].o.flatMap((v) => reading(view, v))));
  const shorter = (text) => text.length > 30 ? `${text.slice(0, 29)}…` : text;
  const add = (i) => {
    const node = view.nodes[i];
    if (!near.some(([id]) => id === String(i))) near.push([String(i), node.k === TRANSFER ? `${bytes(node.n)} to ${node.m}` : shorter(named(view, i)), i === at ? "hot" : kind(node), address({ node: i, value: null })]);
    return String(i);
  };
  add(at);
  for (const i of before.slice(0, most)) {
    edges.push([add(i), String(at)]);
    const source = view.nodes[i].k === TRANSFER ? from.get(view.nodes[i].i[0]) : undefined;
    if (source !== undefined) edges.push([add(source), String(i)]);
  }
  for (const i of after.slice(0, most)) {
    edges.push([String(at), add(i)]);
    if (view.nodes[i].k === TRANSFER) for (const k of reading(view, view.nodes[i].o[0])) edges.push([String(i), add(k)]);
  }
  for (const [list, id] of [[before, "more before"], [after, "more after"]]) if (list.length > most) {
    near.push([id, `${list.length - most} more`, "O", null]);
    edges.push(list === before ? [id, String(at)] : [String(at), id]);
  }
  return graph("around", near, edges);
}

// The text of the main function, with the bodies folded.
function listing(view, here) {
  const type = (v) => index().types[view.types[v]], at = current(here.pass), name = (v) => link({ view: "values", pass: at, value: `%${v}`, node: null }, `%${v}`);
  const most = 1200, first = Math.max(0, Math.min(Number(here.node ?? 0) - most / 2, view.nodes.length - most));
  const given = view.arguments.slice(0, 12).map(([called, v]) => `${name(v)}: <span class="ty">${escape(type(v))}</span> ${link({ view: "values", value: called }, called)}`);
  if (view.arguments.length > 12) given.push(`... ${view.arguments.length} in all`);
  const head = `func @main(${given.join(",\n           ")}) {`;
  const lines = view.nodes.slice(first, first + most).map((node, k) => {
    const i = first + k, results = node.o.length < 4 ? node.o.map(name).join(", ") : `${name(node.o[0])}..${name(node.o[node.o.length - 1])}`;
    const what = node.k === FRAGMENT ? `<span class="op">fragment</span>&lt;${escape(node.m)}&gt; <span class="str">${escape(node.l)}</span>${node.c === undefined ? "" : ` call ${node.c}`}${node.s === undefined ? "" : ` stage ${node.s}`}`
      : node.k === TRANSFER ? `<span class="op">transfer</span> ${escape(node.f)} → ${escape(node.m)}`
      : node.k === NAMED ? `<span class="op">named</span> <span class="str">${escape(node.l)}</span>`
      : node.k === CALL ? `<span class="op">call</span> @${escape(node.l)}${node.c === undefined ? "" : ` call ${node.c}`}` : `<span class="op">${escape(node.l)}</span>`;
    const body = node.b === undefined ? "" : ` {${node.b}}`;
    const types = [...new Set(node.o.map((v) => escape(short(type(v)))))].slice(0, 4).join(", ");
    return `<span class="${String(i) === here.node ? "chosen" : ""}">  ${link({ node: i }, String(i))} ${results ? `${results} = ` : ""}${what}(${node.i.length > 12 ? `${node.i.slice(0, 12).map(name).join(", ")}, ... ${node.i.length} in all` : node.i.map(name).join(", ")})${body} <span class="ty">${types}</span></span>`;
  });
  return `${head}\n${first ? "  ...\n" : ""}${lines.join("\n")}${first + most < view.nodes.length ? "\n  ..." : ""}\n  return ${view.results.map(([, v]) => name(v)).join(", ")}\n}`;
}

async function body(n) {
  const [file, at] = index().bodies[n].in;
  return (await explorer.want(`bodies${file}`))[at];
}

// The runs of a mesh are its fragments in the last module, in their order; between meshes a plan has an order of its own.
const fragments = (view) => view.nodes.map((node, i) => [node, i]).filter(([node]) => node.k === FRAGMENT).map(([, i]) => i);
const runs = (plan) => plan.instructions.map((one, at) => [one, at]).filter(([one]) => one[0] === "R").map(([, at]) => at);
function nodeOf(plan, view, at) {
  const mesh = plan.instructions[at][1], nth = runs(plan).filter((other) => plan.instructions[other][1] === mesh).indexOf(at);
  return fragments(view).filter((i) => view.nodes[i].m === plan.meshes[mesh])[nth] ?? null;
}
function runOf(plan, view, node) {
  const mesh = plan.meshes.indexOf(view.nodes[node].m), nth = fragments(view).filter((i) => view.nodes[i].m === view.nodes[node].m).indexOf(node);
  return runs(plan).filter((at) => plan.instructions[at][1] === mesh)[nth];
}

// What is known of the program of a fragment after the last pass: cost, memory, times, and what XLA made of it.
async function executable(view, here, at, pass) {
  const plan = await explorer.plan();
  if (!plan || pass !== views()[views().length - 1]) return "";
  const run = view.nodes[Number(at)].k === FRAGMENT ? runOf(plan, view, Number(at)) : undefined;
  if (run === undefined) return "";
  const program = plan.instructions[run][2], facts = (plan.facts || []).find((one) => one.name === plan.programs[program][0] && one.mesh === plan.programs[program][1]);
  const rows = [["FLOPs", flops(facts && facts.flops > 0 ? facts.flops : plan.costs[program])]];
  if (facts) for (const [key, name] of [["accessed", "bytes read and written"], ["arguments", "arguments"], ["results", "results"], ["scratch", "scratch memory"]])
    if (facts[key] !== null && facts[key] !== undefined) rows.push([name, bytes(facts[key])]);
  const times = (plan.measured || []).flatMap((step) => step.filter((e) => e[0] === run).map((e) => ms((e[2] - e[1]) / 1000)));
  if (times.length) rows.push(["measured", times.join(", ")]);
  let text = `<h3>Program</h3><p>@${escape(plan.programs[program][0])}, of one device; ${link({ view: "time", at: run }, "in the timeline")}</p><table>${rows.map(([name, value]) => `<tr><td>${name}</td><td class="n">${value}</td></tr>`).join("")}</table>`;
  if (facts) text += here.hlo ? `<h3>Optimized HLO</h3><p>${link({ hlo: null }, "hide")}</p>${code(bare(await explorer.want(facts.hlo)), "hlo")}` : `<p>${link({ hlo: 1 }, "its optimized HLO")}</p>`;
  return text;
}

// Without tables of files and functions, and what each op says of its place.
const bare = (text) => text.replace(/\nFileNames\n[\s\S]*?\n(?=%|ENTRY )/, "\n").replace(/, (metadata|backend_config)=\{[^{}]*(\{[^{}]*\}[^{}]*)*\}/g, "");

async function details(view, here, pass) {
  const at = here.node, node = view.nodes[Number(at)];
  if (at === undefined || !node) return `<h2>Nothing chosen</h2><p>Click a box, or a number in the text. What is chosen is in the address: copy it to show somebody.</p>`;
  const maker = makers(view), given = new Map(view.arguments.map(([name, v]) => [v, name]));
  const ssa = (v) => link({ view: "values", pass, value: `%${v}`, node: null }, `%${v}`);
  const returned = new Map(view.results.map(([name, v]) => [v, name]));
  const label = (i) => named(view, i);
  const from = node.i.map((v) => `<tr><td>${ssa(v)}</td><td>${given.has(v) ? link({ view: "values", value: given.get(v) }, given.get(v)) : link({ node: maker.get(v) }, label(maker.get(v)))}</td><td class="ty">${escape(short(index().types[view.types[v]]))}</td></tr>`);
  const to = node.o.map((v) => `<tr><td>${ssa(v)}</td><td>${[...reading(view, v).slice(0, 12).map((i) => link({ node: i }, label(i))), ...(returned.has(v) ? [escape(returned.get(v))] : [])].join(", ") || "nobody"}</td><td class="ty">${escape(short(index().types[view.types[v]]))}</td></tr>`);
  let text = `<h2>${escape(label(Number(at)))}</h2>`;
  if (node.n) text += `<p>${bytes(node.n)} on each device</p>`;
  if (node.b !== undefined) {
    const facts = index().bodies[node.b], same = view.nodes.filter((one) => one.b === node.b).length;
    text += `<p>body ${node.b}: ${facts.ops} ops, ${flops(facts.flops)}; run ${same} times in the step</p>`;
    if (facts.sources.length) text += `<h3>Written in</h3>${facts.sources.map((s) => `<p class="ty">${escape(s)}<br><code class="code">${Prism.highlight((index().lines || {})[s] ?? "", Prism.languages.python, "python")}</code></p>`).join("")}`;
  }
  text += await reason(node);
  text += await executable(view, here, at, pass);
  text += `<h3>Around it</h3><div id="around" class="graph"></div><h3>Takes</h3><table>${from.join("") || "nothing"}</table><h3>Gives, and to whom</h3><table>${to.join("")}</table>`;
  if (node.b !== undefined) text += `<h3>Body</h3>${code(await body(node.b), "mlir")}`;
  return text;
}

// Why a fragment is on its mesh: the names in it, and what was found of unnamed code that it comes from.
async function reason(node) {
  if (node.k !== FRAGMENT) return "";
  const names = new Set((node.a || []).map(([name]) => name)), given = index().assignment || {};
  const told = [...names].filter((name) => name in given).slice(0, 8).map((name) => `<li>${escape(name)} is assigned to ${escape(given[name])}</li>`);
  const found = index().why ? (await explorer.want("why")).places : {};
  const inferred = (node.b === undefined ? [] : index().bodies[node.b].sources).flatMap((place) => (found[place] || []).filter(([meshes]) => meshes.includes(node.m)).map(([, text]) => text));
  return told.length || inferred.length ? `<h3>Why it is on ${escape(node.m)}</h3><ul>${told.join("")}</ul>${inferred.length ? `<pre class="said">${escape(inferred.slice(0, 4).join("\n"))}</pre>` : ""}` : "";
}
