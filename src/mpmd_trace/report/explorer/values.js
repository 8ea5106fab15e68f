// One value through all passes.
"use strict";

async function values(here) {
  const at = current(here.pass), chosen = here.value ?? "", rows = index().ends.map(([name]) => name);
  const list = index().ends.filter(([name]) => !here.find || name.includes(here.find)).slice(0, 500), places = await endPlaces();
  const page = `<h2>Arguments and results</h2><div class="bar"><input type="search" id="find" placeholder="find a name" value="${escape(here.find ?? "")}"></div>${tree(list, places, chosen, Boolean(here.find))}`;
  const view = chosen.startsWith("%") ? await explorer.view(at) : null, v = Number(chosen.slice(1));
  const side = view ? await ssaStory(view, at, v) : chosen ? await story(chosen) : "<h2>Nothing chosen</h2><p>Click a value, or an SSA name in the text of a program.</p>";
  return [page, side, () => {
    $("find").onchange = (event) => go({ find: event.target.value || null });
    clickable("tbody tr[data-name]", (data) => go({ value: data.name }));
    move = (by) => {
      const next = rows[here.value === undefined ? 0 : rows.indexOf(here.value) + by];
      if (next !== undefined) go({ value: next });
    };
    if ($("elsewhere")) elsewhere(view, at, v);
  }];
}

// The mesh and the bytes on a device of each argument and result, by name; nothing where there is no plan.
async function endPlaces() {
  const plan = await explorer.plan(), places = new Map();
  if (!plan) return places;
  const view = await explorer.view(views()[views().length - 1]), put = (name, slot) => places.set(name, [plan.meshes[plan.slots[slot][0]], plan.slots[slot][1]]);
  plan.results.forEach((slot, i) => { if (view.results[i]) put(view.results[i][0], slot); });
  plan.arguments.forEach((slot, i) => { if (view.arguments[i]) put(view.arguments[i][0], slot); });
  return places;
}

// Values by mesh, and on each by the argument or result that they are in, with the bytes on a device.
function tree(list, places, chosen, found) {
  const size = (rows) => d3.sum(rows, ([name]) => places.get(name)?.[1] ?? 0), row = ([name, , , type]) =>
    `<tr class="${name === chosen ? "on" : ""}" data-name="${escape(name)}"><td>${escape(name)}</td><td class="ty">${escape(short(index().types[type]))}</td><td class="n">${places.has(name) ? bytes(places.get(name)[1]) : ""}</td></tr>`;
  const part = (title, rows, inner, open) => `<details ${open ? "open" : ""}><summary>${escape(title)} <span class="ty">${rows.length}${places.size ? `, ${bytes(size(rows))}` : ""}</span></summary>${inner}</details>`;
  const within = (rows) => [...d3.group(rows, ([name]) => name.split(/[.[]/)[0])].map(([name, some]) =>
    part(name, some, `<table><tbody>${some.map(row).join("")}</tbody></table>`, found || some.length <= 40 || some.some(([one]) => one === chosen))).join("");
  const meshes = d3.sort([...d3.group(list, ([name]) => places.get(name)?.[0] ?? "")], ([mesh]) => mesh);
  return `<div class="tree">${meshes.map(([mesh, rows]) => mesh ? part(mesh, rows, within(rows), true) : within(rows)).join("")}</div>`;
}

async function story(name) {
  let text = `<h2>${escape(name)}</h2>`;
  const why = index().why ? (await explorer.want("why")).ends[name] : null;
  if (why) text += `<h3>why it is there</h3><pre class="said">${escape(why)}</pre>`;
  const [, chunk, place] = index().ends.find(([one]) => one === name) ?? [];
  if (chunk === undefined) return `${text}<p>there is no such value</p>`;
  for (const one of (await explorer.want(`ends${chunk}`))[place]) text += facts(one);
  const plan = await explorer.plan(), slot = plan ? plan.arguments.find((s) => plan.slots[s][3] === name) : undefined;
  return slot === undefined ? text : `${text}<h3>in the plan</h3>${held(plan, slot)}`;
}

// Type, maker, users and transfers of a value after a pass; `at` has the numbers of its maker and users.
function facts(one) {
  const at = (node) => link.bind(null, { view: "program", pass: one.pass, value: null, node }), [maker, ...users] = one.at;
  let text = `<h3>${at(users[0] ?? maker)(`${one.pass} ${index().passes.find((p) => p.pass === one.pass).spec.split("{")[0]}`)}</h3><div class="ty">${escape(index().types[one.type])}</div>`;
  if (one.made) text += `<div>made by ${at(maker)(one.made)}</div>`;
  if (one.uses) text += `<div>used by ${one.used.map((name, k) => at(users[k])(name)).join(", ")}${one.uses > one.used.length ? ` and ${one.uses - one.used.length} more` : ""}</div>`;
  if (one.sent.length) text += `<div>sent to ${escape(one.sent.join(", "))}</div>`;
  return text;
}

// The same of a value of a view, and a key that is equal where the same is told.
function factsOf(view, pass, v) {
  const users = reading(view, v), maker = makers(view).get(v), most = 8;
  const told = { type: view.types[v], made: maker === undefined ? null : named(view, maker), used: users.slice(0, most).map((i) => named(view, i)), uses: users.length,
    sent: [...new Set(users.filter((i) => view.nodes[i].k === TRANSFER).map((i) => view.nodes[i].m))] };
  return [facts({ ...told, pass, at: [maker ?? null, ...users.slice(0, most)] }), JSON.stringify(told)];
}

// What the plan does with a slot: where it is, how large, and when it goes.
function held(plan, slot) {
  const [mesh, size, name] = plan.slots[slot];
  let last = -1;
  plan.instructions.forEach((one, at) => { if ((one[0] === "R" ? one[6] : one[5]).includes(slot)) last = at; });
  const end = plan.results.includes(slot) ? "a result of the step" : plan.arguments.includes(slot) && !plan.donated.includes(slot) ? "kept: the caller has it still"
    : `${plan.donated.includes(slot) ? "donated; " : ""}freed after ${last < 0 ? "the start" : plan.instructions[last][0] === "R" ? plan.instructions[last][3] : "it was sent"}`;
  return `<div>${escape(name)} on ${escape(plan.meshes[mesh])}, ${bytes(size)} a device; ${escape(end)}</div>`;
}

// A value by its number in the text of a pass.  Numbers differ from pass to pass: in others it is what has the same
// type and place among the results of a fragment with the same names and microbatch.
async function ssaStory(view, at, v) {
  if (!(v in view.types)) return `<h2>%${v}</h2><p>pass ${at} has no such value</p>`;
  const given = [...view.arguments, ...view.results].find(([, value]) => value === v);
  if (given) return `<p>%${v} of pass ${at} is</p>${await story(given[0])}`;
  const [text] = factsOf(view, at, v), node = view.nodes[makers(view).get(v)], plan = await explorer.plan();
  let told = `<h2>%${v} of pass ${at}</h2>${text}${await reason(node.k === TRANSFER ? view.nodes[makers(view).get(node.i[0])] ?? node : node)}`;
  if (plan && at === views()[views().length - 1] && node.k === FRAGMENT) {
    const run = plan.instructions[runOf(plan, view, makers(view).get(v))], slot = run && run[7][node.o.indexOf(v)];
    if (slot !== undefined) told += `<h3>in the plan</h3>${held(plan, slot)}`;
  }
  return node.a && node.a.length ? `${told}<h3>in other passes</h3><div id="elsewhere"></div>` : told;
}

// What is told of a value in the other passes, each when its program is there: in large ones that takes a while.
async function elsewhere(view, at, v) {
  const turn = shown, type = (one, value) => index().types[one.types[value]].replace(/^!mpmd\.mesh_tensor<"[^"]*", (tensor<[^>]*>).*$/, "$1");
  const node = view.nodes[makers(view).get(v)], nth = node.o.filter((o) => type(view, o) === type(view, v)).indexOf(v);
  let [, last] = factsOf(view, at, v);
  for (const other of views()) {
    if (other === at || index().same[other] === index().same[at]) continue;
    const there = await explorer.view(other);
    await new Promise((done) => setTimeout(done));
    if (turn !== shown) return;
    const twin = there.nodes.find((one) => one.l === node.l && one.k !== TRANSFER && (one.c === undefined || node.c === undefined || one.c === node.c));
    const found = twin && twin.o.filter((o) => type(there, o) === type(view, v))[nth];
    if (found === undefined) continue;
    const [text, key] = factsOf(there, other, found);
    if (key !== last) $("elsewhere").insertAdjacentHTML("beforeend", text);
    last = key;
  }
  document.body.dataset.told = turn;
}
