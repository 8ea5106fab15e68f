// One value through all passes.
"use strict";

async function values(here) {
  const at = current(here.pass), view = await explorer.want(`pass${at}`), first = await explorer.want(`pass${views()[0]}`);
  const rows = [...new Set([...first.arguments, ...view.arguments, ...view.results].map(([name]) => name))];
  const list = rows.filter((name) => !here.find || name.includes(here.find)).slice(0, 500).map((name) =>
    `<tr class="${name === here.value ? "on" : ""}" data-name="${escape(name)}"><td>${escape(name)}</td><td class="ty">${escape(typeOf(view, name) ?? typeOf(first, name) ?? "")}</td></tr>`);
  const page = `<h2>Arguments and results</h2><div class="bar"><input type="search" id="find" placeholder="find a name" value="${escape(here.find ?? "")}"></div><table><tbody>${list.join("")}</tbody></table>`;
  const chosen = here.value ?? "";
  const side = chosen.startsWith("%") ? await ssaStory(view, at, Number(chosen.slice(1))) : chosen ? await story(chosen) : "<h2>Nothing chosen</h2><p>Click a value, or an SSA name in the text of a program.</p>";
  return [page, side, () => {
    $("find").onchange = (event) => go({ find: event.target.value || null });
    clickable("tbody tr[data-name]", (data) => go({ value: data.name }));
    move = (by) => {
      const next = rows[here.value === undefined ? 0 : rows.indexOf(here.value) + by];
      if (next !== undefined) go({ value: next });
    };
  }];
}

const entry = (view, name) => view.arguments.find(([n]) => n === name) || view.results.find(([n]) => n === name);
const typeOf = (view, name) => { const found = entry(view, name); return found && index().types[view.types[found[1]]]; };

async function story(name) {
  let text = `<h2>${escape(name)}</h2>`, last = null;
  const why = index().why ? (await explorer.want("why")).ends[name] : null;
  if (why) text += `<h3>why it is there</h3><pre class="said">${escape(why)}</pre>`;
  for (const at of views()) {
    const view = await explorer.want(`pass${at}`), found = entry(view, name);
    if (!found) continue;
    const told = facts(view, at, found[1]);
    if (told.key === last) continue;
    last = told.key;
    text += told.text;
  }
  const plan = index().plan, slot = plan ? plan.arguments.find((s) => plan.slots[s][3] === name) : undefined;
  return slot === undefined ? text : `${text}<h3>in the plan</h3>${held(plan, slot)}`;
}

// Type, maker, users and transfers of a value of a view.
function facts(view, at, v) {
  const type = index().types[view.types[v]], users = view.nodes.map((node, i) => [node, i]).filter(([node]) => node.i.includes(v));
  const sent = users.filter(([node]) => node.k === TRANSFER).map(([node]) => node.m), maker = view.nodes.findIndex((node) => node.o.includes(v));
  const call = (i) => `${view.nodes[i].l.slice(0, 60)}${view.nodes[i].c === undefined ? "" : ` (${view.nodes[i].c})`}${view.nodes[i].m ? ` on ${view.nodes[i].m}` : ""}`;
  const head = link({ view: "program", pass: at, value: null, node: users.length ? users[0][1] : maker >= 0 ? maker : null }, `${at} ${index().passes.find((p) => p.pass === at).spec.split("{")[0]}`);
  let text = `<h3>${head}</h3><div class="ty">${escape(type)}</div>`;
  if (maker >= 0) text += `<div>made by ${link({ view: "program", pass: at, node: maker }, call(maker))}</div>`;
  if (users.length) text += `<div>used by ${users.slice(0, 8).map(([, i]) => link({ view: "program", pass: at, node: i }, call(i))).join(", ")}${users.length > 8 ? ` and ${users.length - 8} more` : ""}</div>`;
  if (sent.length) text += `<div>sent to ${escape([...new Set(sent)].join(", "))}</div>`;
  return { text, maker, key: JSON.stringify([type, users.map(([node]) => [node.l, node.m, node.c]), maker >= 0 && view.nodes[maker].l]) };
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
  const type = (one, value) => index().types[one.types[value]].replace(/^!mpmd\.mesh_tensor<"[^"]*", (tensor<[^>]*>).*$/, "$1");
  const own = facts(view, at, v), node = view.nodes[own.maker];
  let text = `<h2>%${v} of pass ${at}</h2>${own.text}${await reason(node.k === TRANSFER ? view.nodes.find((one) => one.o.includes(node.i[0])) ?? node : node)}`, last = own.key;
  if (index().plan && at === views()[views().length - 1] && node.k === FRAGMENT) {
    const run = index().plan.instructions[runOf(index().plan, view, own.maker)], slot = run && run[7][node.o.indexOf(v)];
    if (slot !== undefined) text += `<h3>in the plan</h3>${held(index().plan, slot)}`;
  }
  if (!node.a || !node.a.length) return text;
  const nth = node.o.filter((o) => type(view, o) === type(view, v)).indexOf(v);
  text += "<h3>in other passes</h3>";
  for (const other of views()) {
    if (other === at) continue;
    const there = await explorer.want(`pass${other}`);
    const twin = there.nodes.find((one) => one.l === node.l && one.k !== TRANSFER && (one.c === undefined || node.c === undefined || one.c === node.c));
    const found = twin && twin.o.filter((o) => type(there, o) === type(view, v))[nth];
    if (found === undefined) continue;
    const told = facts(there, other, found);
    if (told.key !== last) text += told.text;
    last = told.key;
  }
  return text;
}
