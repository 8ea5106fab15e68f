// What a step costs, and what to change: the page that is seen first.
"use strict";

// The part of a step that a mesh does not compute.
const idleOf = (found, row) => found.makespan ? 1 - row.reduce((sum, e) => sum + e.end - e.start, 0) / found.makespan : 0;

// The largest values that are sent from mesh to mesh, all microbatches of a kind together.
function sentMost(plan, most = 8) {
  const all = new Map();
  for (const one of plan.instructions) {
    if (one[0] !== "T" || one[1] === one[2]) continue;
    // Small values may be sent with a large one.
    const large = plan.slots[one[6][d3.greatestIndex(one[6], (slot) => plan.slots[slot][1])]], text = large[3] || one[4] || large[2];
    const key = `${one[1]} ${one[2]} ${text}`, entry = all.get(key) ?? { from: one[1], to: one[2], text, times: 0, bytes: 0 };
    entry.times += 1;
    entry.bytes += one[3];
    all.set(key, entry);
  }
  return d3.sort(all.values(), (one) => -one.bytes).slice(0, most);
}

// What the figures suggest, the most important first.
function advice(plan, found, used, microbatches) {
  const said = [], works = found.rows.map((row) => d3.sum(row, (e) => e.end - e.start)), busy = works.filter((time) => time > 0);
  const idle = d3.mean(found.rows, (row) => idleOf(found, row)) ?? 0, most = d3.greatestIndex(works), least = d3.min(busy) ?? 0;
  const sending = d3.sum(spent(plan, found), (sum) => sum.sending) / (found.makespan * plan.meshes.length || 1), peaks = used.map((one) => one.peak);
  const sent = made(plan, found).find(([name]) => name === "sending")?.[1] ?? 0, slow = sent > 0.4 * found.makespan;
  if (slow) said.push(`Transfers are ${(100 * sent / found.makespan).toFixed(0)} % of the critical path: use larger microbatches, cut the model where less is sent, or send narrower types.`);
  if (plan.meshes.length > 1 && microbatches < 2) said.push("The step has no microbatches, so one mesh works at a time: take gradients with mpmd_trace.value_and_grad(loss, microbatches=...).");
  else if (!slow && idle > 0.2 && microbatches < 4 * plan.meshes.length) said.push(`Meshes wait ${(100 * idle).toFixed(0)} % of the step. More microbatches reduce this (there are ${microbatches} for ${plan.meshes.length} meshes).`);
  else if (!slow && idle > 0.2) said.push(`Meshes wait ${(100 * idle).toFixed(0)} % of the step: try another schedule (mpmd-trace plan compares all of them).`);
  if (busy.length > 1 && works[most] > 1.3 * least) said.push(`${plan.meshes[most]} works ${(works[most] / least).toFixed(1)} times as long as the mesh with the least work: move a layer to another mesh (mpmd-trace plan proposes stages).`);
  if (!slow && sending > 0.1) said.push(`Meshes wait ${(100 * sending).toFixed(0)} % of the step for transfers: cut the model where less is sent, or send narrower types.`);
  if (d3.max(peaks) > 1.5 * d3.min(peaks) && d3.max(peaks) > 2 ** 20) said.push(`${plan.meshes[d3.greatestIndex(peaks)]} holds ${(d3.max(peaks) / Math.max(d3.min(peaks), 1)).toFixed(1)} times as much memory as the mesh with the least: recompute activations there (jax.checkpoint or remat="auto"), or move a layer.`);
  return said.length ? said : ["Nothing stands out: meshes are balanced and wait little."];
}

async function summary(here) {
  const plan = await explorer.plan();
  if (!plan) return [`<h2>${escape(index().title)}</h2><p>This program was not planned; ${link({ view: "passes" }, "its passes")} are all there is.</p>`, ""];
  const steps = plan.measured || [], measured = steps.length > 0;
  const found = measured ? stepOf(plan, steps[d3.leastIndex(steps, lasts)]) : simulated(plan, here), used = memory(plan, found);
  const microbatches = new Set(found.rows.flat().map((e) => e.mb).filter((mb) => mb >= 0)).size;
  const sent = d3.sum(plan.instructions, (one) => one[0] === "T" && one[1] !== one[2] ? one[3] : 0), work = d3.sum(plan.instructions, (one) => one[0] === "R" ? plan.costs[one[2]] : 0);
  const idle = d3.mean(found.rows, (row) => idleOf(found, row)) ?? 0, percent = (part) => `${(100 * part).toFixed(1)} %`;
  const figures = [["step time", ms(found.makespan), measured ? "measured" : `simulated at ${rate(10 ** speedOf(plan, here) * 1e9)} per device`], ["bubble", percent(idle), "average fraction of the step in which a mesh waits"],
    ["memory", bytes(d3.max(used, (one) => one.peak) ?? 0), "peak of a device, without scratch memory"], ["sent", bytes(sent), "from mesh to mesh in a step"], ["work", flops(work), "sum over meshes, for one device of each"], ["microbatches", microbatches, ""]];
  const meshes = plan.meshes.map((name, m) => `<tr data-mesh="${m}"><td>${escape(name)}</td><td class="n">${percent(1 - idleOf(found, found.rows[m]))}</td><td class="n">${percent(idleOf(found, found.rows[m]))}</td><td class="n">${bytes(used[m].peak)}</td><td class="n">${found.rows[m].length}</td></tr>`);
  const transfers = sentMost(plan).map((one) => `<tr><td>${escape(plan.meshes[one.from])} → ${escape(plan.meshes[one.to])}</td><td class="ty">${escape(one.text)}</td><td class="n">${one.times}</td><td class="n">${bytes(one.bytes)}</td></tr>`);
  const page = `<h2>${escape(index().title)}</h2><div class="cards">${figures.map(([name, value, note]) => `<div class="card" title="${escape(note)}"><div class="ty">${name}</div><div class="figure">${escape(value)}</div><div class="note">${escape(note)}</div></div>`).join("")}</div>
    <h3>What to change</h3><ul id="advice">${advice(plan, found, used, microbatches).map((text) => `<li>${escape(text)}</li>`).join("")}</ul>
    <h3>Meshes</h3><table><thead><tr><th>mesh</th><th class="n">works</th><th class="n">waits</th><th class="n">memory</th><th class="n">programs run</th></tr></thead><tbody>${meshes.join("")}</tbody></table>
    <h3>Largest transfers</h3>${transfers.length ? `<table><thead><tr><th>from, to</th><th>value</th><th class="n">times</th><th class="n">in all</th></tr></thead><tbody>${transfers.join("")}</tbody></table>` : "<p>Nothing is sent from mesh to mesh.</p>"}`;
  const side = `<h2>Where to look</h2><ul><li>${link({ view: "time" }, "Timeline")}: when each program runs, and what a mesh waits for</li><li>${link({ view: "values" }, "Values")}: where each argument and result is, and why</li><li>${link({ view: "program" }, "Program")}: fragments and transfers, with their code</li><li>${link({ view: "passes" }, "Passes")}: what each of the ${index().passes.length} passes did</li><li>${link({ view: "schedules" }, "Schedules")}: other schedules, with costs that you choose</li></ul>`;
  return [page, side, () => { clickable("tr[data-mesh]", () => go({ view: "time" })); }];
}
