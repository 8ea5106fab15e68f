// The program after a pass, its fragments and its values.
"use strict";

// A type without the mesh, which the box says: tensor<4x8xf32> and its sharding.
const short = (type) => type.replace(/^!mpmd\.mesh_tensor<"[^"]*", (.*)>$/, "$1").replace(/sharding=<@mesh[^,]*, /, "<");

// ---- program at a pass: meshes are lanes, boxes stand in the order of the program

async function program(here) {
  const at = current(here.pass), view = await explorer.want(`pass${at}`);
  const options = (chosen) => views().map((n) => `<option value="${n}" ${n === chosen ? "selected" : ""}>${n} ${escape(index().passes.find((p) => p.pass === n).spec.slice(0, 70))}</option>`);
  const beside = here.with === undefined ? null : current(here.with);
  const page = `<div class="bar"><select id="pass" aria-label="pass">${options(at).join("")}</select>
    <label>since <select id="with" aria-label="compare with"><option value="">no other pass</option>${options(beside).join("")}</select></label>
    <label>zoom <input type="range" id="zoom" min="-4" max="3" step="0.25" value="${here.zoom ?? 0}"></label>
    <input type="search" id="find" placeholder="find a name" value="${escape(here.find ?? "")}"><span id="legend"></span></div>
    <div id="scroller"><canvas id="lanes" role="img" aria-label="fragments by mesh, in their order"></canvas></div><h3>Text</h3><pre id="text"></pre>`;
  const side = beside === null || here.node !== undefined ? await details(view, here, at)
    : `<h2>From pass ${beside} to ${at}</h2>${told(difference(await explorer.want(`pass${beside}`), view), at)}`;
  return [page, side, () => {
    $("pass").onchange = (event) => go({ pass: event.target.value, node: null });
    $("with").onchange = (event) => go({ with: event.target.value || null, node: null });
    $("find").onchange = (event) => go({ find: event.target.value || null });
    slider("zoom", "zoom", (now) => lanes(view, now));
    lanes(view, here);
    $("text").innerHTML = listing(view, here);
    const row = (i) => view.nodes[i].k === FRAGMENT ? view.nodes[i].m : "";
    move = (by) => {
      const boxes = view.nodes.map((node, i) => i).filter((i) => view.nodes[i].k !== TRANSFER && (here.node === undefined || row(i) === row(Number(here.node))));
      const next = boxes[here.node === undefined ? 0 : boxes.indexOf(Number(here.node)) + by];
      if (next !== undefined) go({ node: next });
    };
  }];
}

function kind(node) {
  if (node.k === TRANSFER) return "T";
  if (!node.a || !node.a.length) return "O";
  return node.a.some(([, count]) => count > 0) ? "B" : "F";
}

function layout(view) {
  const names = [...view.meshes];
  const lane = (node) => {
    const name = node.k === FRAGMENT ? node.m : "no mesh";
    if (!names.includes(name)) names.push(name);
    return names.indexOf(name);
  };
  const boxes = [];
  view.nodes.forEach((node, i) => { if (node.k !== TRANSFER) boxes.push({ i, row: lane(node), column: 0 }); });
  // Columns follow the order of each lane; between lanes they follow the data.
  const ready = new Map(), next = new Map();
  let width = 1;
  const of = new Map(boxes.map((box) => [box.i, box]));
  view.nodes.forEach((node, i) => {
    const at = node.i.reduce((most, v) => Math.max(most, ready.get(v) ?? 0), 0);
    const box = of.get(i);
    let end = at;
    if (box) {
      box.column = Math.max(at, next.get(box.row) ?? 0);
      end = box.column + 1;
      next.set(box.row, end);
      width = Math.max(width, end);
    }
    for (const v of node.o) ready.set(v, end);
  });
  return { names, boxes, of, width };
}

function lanes(view, here) {
  const { names, boxes, of, width } = layout(view);
  const canvas = $("lanes"), scale = 2 ** Number(here.zoom ?? 0), unit = 54 * scale, ratio = devicePixelRatio || 1;
  const wide = Math.min(LEFT + width * unit + 20, 30000), high = names.length * ROW + 10;
  canvas.style.width = `${wide}px`; canvas.style.height = `${high}px`;
  canvas.width = Math.min(wide * ratio, 32000); canvas.height = high * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(canvas.width / wide, ratio);
  pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
  names.forEach((name, row) => {
    if (row % 2 === 0) { pen.fillStyle = color("band"); pen.fillRect(0, row * ROW, wide, ROW); }
    pen.fillStyle = color("ink"); pen.fillText(name, 6, row * ROW + ROW / 2);
  });
  const middle = (box, end) => [LEFT + (box.column + (end ? 0.95 : 0.02)) * unit, box.row * ROW + ROW / 2];
  const maker = new Map();
  view.nodes.forEach((node, i) => node.o.forEach((v) => maker.set(v, i)));
  const chosen = here.node === undefined ? null : Number(here.node);
  const wanted = here.value === undefined ? null : Number(here.value);
  const through = (v) => { let n = maker.get(v); while (n !== undefined && view.nodes[n].k === TRANSFER) n = maker.get(view.nodes[n].i[0]); return n; };
  pen.lineWidth = 1;
  if (view.nodes.length < 6000 || chosen !== null) view.nodes.forEach((node, i) => {
    const target = of.get(i);
    if (!target) return;
    for (const v of node.i) {
      const sender = maker.get(v), source = of.get(through(v));
      if (sender === undefined || !source || view.nodes[sender].k !== TRANSFER) continue;
      const near = chosen === null || chosen === i || chosen === source.i || chosen === sender;
      if (!near && view.nodes.length >= 6000) continue;
      pen.strokeStyle = color("T"); pen.globalAlpha = near ? 0.8 : 0.12;
      const [x0, y0] = middle(source, true), [x1, y1] = middle(target, false);
      pen.beginPath(); pen.moveTo(x0, y0); pen.bezierCurveTo(x0 + unit / 2, y0, x1 - unit / 2, y1, x1, y1); pen.stroke();
    }
  });
  pen.globalAlpha = 1;
  for (const box of boxes) {
    const node = view.nodes[box.i], x = LEFT + box.column * unit, y = box.row * ROW + (ROW - BOX) / 2;
    const found = here.find && node.l.includes(here.find), holds = wanted !== null && (node.i.includes(wanted) || node.o.includes(wanted));
    pen.fillStyle = box.i === chosen || found || holds ? color("hot") : color(kind(node));
    pen.fillRect(x, y, Math.max(unit - 2, 1), BOX);
    if (box.i === chosen) { pen.strokeStyle = color("ink"); pen.strokeRect(x, y, unit - 2, BOX); }
    if (unit < 24) continue;
    pen.save(); pen.beginPath(); pen.rect(x, y, unit - 3, BOX); pen.clip();
    pen.fillStyle = color("ink"); pen.fillText(`${node.c === undefined ? "" : `${node.c} `}${node.l}`, x + 3, y + BOX / 2);
    pen.restore();
  }
  canvas.onclick = (event) => {
    const x = event.offsetX, y = event.offsetY;
    const hit = boxes.find((b) => x >= LEFT + b.column * unit && x < LEFT + (b.column + 1) * unit && y >= b.row * ROW && y < (b.row + 1) * ROW);
    go({ node: hit ? hit.i : null });
  };
  $("legend").innerHTML = [["F", "forward"], ["B", "backward"], ["O", "inferred"], ["T", "transfer"]]
    .map(([id, name]) => `<span class="key" style="background:var(--${id})"></span>${name}&ensp;`).join("");
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

const pretty = (text) => escape(text).replace(/&quot;([a-z_]+\.[a-z_.]+)&quot;\(/g, '<span class="op">$1</span>(');

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
  const plan = index().plan;
  if (!plan || pass !== views()[views().length - 1]) return "";
  const run = view.nodes[Number(at)].k === FRAGMENT ? runOf(plan, view, Number(at)) : undefined;
  if (run === undefined) return "";
  const program = plan.instructions[run][2], facts = (index().programs || []).find((one) => one.name === plan.programs[program][0] && one.mesh === plan.programs[program][1]);
  const rows = [["operations", number(Math.round(facts && facts.flops > 0 ? facts.flops : index().costs[program]))]];
  if (facts) for (const [key, name] of [["accessed", "bytes read and written"], ["arguments", "arguments"], ["results", "results"], ["scratch", "scratch memory"]])
    if (facts[key] !== null && facts[key] !== undefined) rows.push([name, bytes(facts[key])]);
  const times = (index().measured || []).flatMap((step) => step.filter((e) => e[0] === run).map((e) => ms((e[2] - e[1]) / 1000)));
  if (times.length) rows.push(["measured", times.join(", ")]);
  let text = `<h3>Program</h3><p>@${escape(plan.programs[program][0])}, of one device; ${link({ view: "time", at: run }, "in the timeline")}</p><table>${rows.map(([name, value]) => `<tr><td>${name}</td><td class="n">${value}</td></tr>`).join("")}</table>`;
  if (facts) text += here.hlo ? `<h3>Optimised HLO</h3><p>${link({ hlo: null }, "hide")}</p><pre>${hlo(await explorer.want(facts.hlo))}</pre>` : `<p>${link({ hlo: 1 }, "its optimised HLO")}</p>`;
  return text;
}

// Without tables of files and functions, and what each op says of its place.
const hlo = (text) => escape(text.replace(/\nFileNames\n[\s\S]*?\n(?=%|ENTRY )/, "\n").replace(/, (metadata|backend_config)=\{[^{}]*(\{[^{}]*\}[^{}]*)*\}/g, "")).replace(/ ([a-z][a-z0-9-]*)\(/g, ' <span class="op">$1</span>(').replace(/([a-z][a-z0-9]*\[[0-9,]*\]\{?[0-9,]*\}?)/g, '<span class="ty">$1</span>');

async function details(view, here, pass) {
  const at = here.node, node = view.nodes[Number(at)];
  if (at === undefined || !node) return `<h2>Nothing chosen</h2><p>Click a box, or a number in the text. What is chosen is in the address: copy it to show somebody.</p>`;
  const maker = new Map();
  view.nodes.forEach((one, i) => one.o.forEach((v) => maker.set(v, i)));
  const given = new Map(view.arguments.map(([name, v]) => [v, name]));
  const users = new Map();
  view.nodes.forEach((one, i) => one.i.forEach((v) => users.set(v, [...(users.get(v) || []), i])));
  const ssa = (v) => link({ view: "values", pass, value: `%${v}`, node: null }, `%${v}`);
  const returned = new Map(view.results.map(([name, v]) => [v, name]));
  const label = (i) => `${view.nodes[i].l.length > 60 ? `${view.nodes[i].l.slice(0, 57)}...` : view.nodes[i].l}${view.nodes[i].c === undefined ? "" : ` (${view.nodes[i].c})`}${view.nodes[i].m ? ` on ${view.nodes[i].m}` : ""}`;
  const from = node.i.map((v) => `<tr><td>${ssa(v)}</td><td>${given.has(v) ? link({ view: "values", value: given.get(v) }, given.get(v)) : link({ node: maker.get(v) }, label(maker.get(v)))}</td><td class="ty">${escape(short(index().types[view.types[v]]))}</td></tr>`);
  const to = node.o.map((v) => `<tr><td>${ssa(v)}</td><td>${[...(users.get(v) || []).slice(0, 12).map((i) => link({ node: i }, label(i))), ...(returned.has(v) ? [escape(returned.get(v))] : [])].join(", ") || "nobody"}</td><td class="ty">${escape(short(index().types[view.types[v]]))}</td></tr>`);
  let text = `<h2>${escape(label(Number(at)))}</h2>`;
  if (node.n) text += `<p>${bytes(node.n)} on each device</p>`;
  if (node.b !== undefined) {
    const facts = index().bodies[node.b], same = view.nodes.filter((one) => one.b === node.b).length;
    text += `<p>body ${node.b}: ${facts.ops} ops, ${number(Math.round(facts.flops))} operations; run ${same} times in the step</p>`;
    if (facts.sources.length) text += `<h3>Written in</h3><table>${facts.sources.map((s) => `<tr><td>${escape(s)}</td><td><code>${escape((index().lines || {})[s] ?? "")}</code></td></tr>`).join("")}</table>`;
  }
  text += await reason(node);
  text += await executable(view, here, at, pass);
  text += `<h3>Takes</h3><table>${from.join("") || "nothing"}</table><h3>Gives, and to whom</h3><table>${to.join("")}</table>`;
  if (node.b !== undefined) text += `<h3>Body</h3><pre>${pretty(await body(node.b))}</pre>`;
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
