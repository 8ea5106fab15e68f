// The schedules of the library, side by side, with costs of one's own.
"use strict";

// What the sliders say: costs of a mesh for one microbatch, in units of time, and memory in microbatches' activations.
const COSTS = [["cf", "forward", 0, 4, 1], ["ci", "input gradient", 0, 4, 1], ["cw", "weight gradient", 0, 4, 1], ["cl", "transfer", 0, 2, 0], ["cx", "last stage times", 1, 4, 1], ["wf", "kept for weight gradients", 0, 1, 1], ["lim", "memory limit", 0, 64, 0]];
const costs = (here) => Object.fromEntries(COSTS.map(([id, , , , usual]) => [id, Number(here[id] ?? usual)]));

// A schedule as the page has it, read once: steps by mesh, each of parts (stage, letter, microbatch) with its needs.
function readSchedule(one) {
  if (one.steps) return one;
  one.steps = one.orders.map((order) => (order ? order.split(" ") : []).map((text) => [...text.matchAll(/(\d+)([FBIWO])(\d*)(?![A-Z_])/g)].map(([, stage, kind, mb]) => [Number(stage), kind, mb === "" ? -1 : Number(mb)])));
  one.trains = one.steps.some((row) => row.some((parts) => parts.some(([, kind]) => kind !== "F" && kind !== "O")));
  return one;
}

// Each mesh does its steps in order, each when what it needs is there; as mpmd_trace.schedules.simulate.
function playSchedule(one, cost) {
  const { steps, needs, mesh, chunks, trains } = readSchedule(one), last = mesh.length - 1;
  const unit = { F: cost.cf, I: cost.ci, W: cost.cw, B: cost.ci + cost.cw, O: 0 };
  const took = (parts) => d3.sum(parts, ([stage, kind]) => unit[kind] / (chunks[mesh[stage]] || 1) * (stage === last ? cost.cx : 1));
  const home = steps.flatMap((row, m) => row.map(() => m)), all = steps.flat(), rows = steps.map(() => []), done = [];
  const end = (n) => {
    if (done[n] === undefined) {
      const m = home[n], start = Math.max(home[n - 1] === m ? end(n - 1) : 0, ...needs[n].map((need) => end(need) + (home[need] === m ? 0 : cost.cl)));
      done[n] = start + took(all[n]);
      rows[m].push({ parts: all[n], start, end: done[n] });
    }
    return done[n];
  };
  all.forEach((_, n) => end(n));
  const makespan = Math.max(0, ...done), work = d3.sum(rows.flat(), (e) => e.end - e.start);
  const peaks = steps.map((row) => {
    let held = 0, most = 0;
    for (const parts of row) {
      let given = 0;
      for (const [stage, kind] of parts) {
        const share = 1 / (chunks[mesh[stage]] || 1);
        if (kind === "F") { held += share; if (!trains) given += share; }
        given += kind === "B" ? share : kind === "I" ? share * (1 - cost.wf) : kind === "W" ? share * cost.wf : 0;
      }
      most = Math.max(most, held);
      held -= given;
    }
    return most;
  });
  return { rows, makespan, peak: Math.max(...peaks), bubble: makespan ? 1 - work / (makespan * rows.length) : 0 };
}

async function schedules(here) {
  const sizes = index().sizes, near = (list, wanted) => d3.least(list, (one) => Math.abs(one - wanted));
  const meshes = near(sizes.meshes, Number(here.meshes ?? 4)), count = near(sizes.microbatches, Number(here.mb ?? 8));
  const all = await explorer.want(`schedules${meshes}x${count}`), names = Object.keys(all), first = here.a ?? "1f1b", second = here.b ?? "zb-h1";
  const pick = (id, value) => choice(id, "schedule", (names.includes(value) ? names : [value, ...names]).map((name) => [name, name]), value);
  const size = (id, name, list, value) => range(id, name, 0, list.length - 1, 1, list.indexOf(value), value);
  const page = `<div class="bar">${pick("a", first)} beside ${pick("b", second)} ${size("meshes", "meshes", sizes.meshes, meshes)}${size("mb", "microbatches", sizes.microbatches, count)}</div>
    <div class="bar">${COSTS.map(([id, name, low, high]) => range(id, name, low, high, id === "lim" ? 1 : 0.05, costs(here)[id])).join("")}</div>
    <h3>${escape(first)} <span id="one-is" class="ty"></span></h3><div id="one" data-says="${escape(first)}"></div><h3>${escape(second)} <span id="two-is" class="ty"></span></h3><div id="two" data-says="${escape(second)}"></div>
    <p class="legend">${legend(["F", "B", "I", "W"])} ${ZOOM}</p>
    <p class="ty">Costs are of a mesh for one microbatch, all its stages together; both pictures have the same scale. Memory is counted in the activations of one microbatch on one mesh.</p>`;
  const played = (now) => names.map((name) => [name, playSchedule(all[name], costs(now))]).sort((x, y) => x[1].makespan - y[1].makespan);
  const table = (now) => {
    const cost = costs(now), fits = (one) => !cost.lim || one.peak <= cost.lim + 1e-9, short = (n) => Number(n.toFixed(2));
    const lines = played(now).sort((x, y) => all[y[0]].trains - all[x[0]].trains || fits(y[1]) - fits(x[1])).map(([name, one]) => `<tr data-name="${escape(name)}" class="${[name === first || name === second ? "on" : "", fits(one) ? "" : "still"].join(" ")}"><td>${escape(name)}${all[name].trains ? "" : " (forward alone)"}</td><td class="n">${short(one.makespan)}</td><td class="n">${(100 * one.bubble).toFixed(1)} %</td><td class="n ${fits(one) ? "" : "gone"}">${short(one.peak)}</td></tr>`);
    return `<h2>${meshes} meshes, ${count} microbatches</h2><table><thead><tr><th>schedule</th><th class="n">time</th><th class="n" title="the part of the meshes' time in which they do not compute">idle</th><th class="n" title="microbatches' activations on the fullest mesh">peak</th></tr></thead><tbody>${lines.join("")}</tbody></table>`;
  };
  return [page, table(here), () => {
    for (const id of ["a", "b"]) $(id).onchange = (event) => go({ [id]: event.target.value });
    for (const [id, list] of [["meshes", sizes.meshes], ["mb", sizes.microbatches]]) $(id).oninput = (event) => go({ [id]: list[event.target.value] });
    const draw = (now) => {
      for (const [id] of COSTS) $(`${id}-is`).textContent = id === "lim" && !costs(now).lim ? "none" : costs(now)[id];
      const pair = [first, second].map((n) => all[n] && playSchedule(all[n], costs(now))), most = Math.max(...pair.map((p) => p ? p.makespan : 0), 1e-9);
      const others = [];
      ["one", "two"].forEach((id, k) => { if (pair[k]) others.push(rows(id, pair[k], most, others)); else $(id).textContent = "not for this size"; $(`${id}-is`).textContent = pair[k] ? `time ${Number(pair[k].makespan.toFixed(2))}, idle ${(100 * pair[k].bubble).toFixed(1)} %, peak ${Number(pair[k].peak.toFixed(2))}` : ""; });
      $("side").innerHTML = table(now);
      clickable("#side tbody tr", (data) => go({ b: data.name }));
    };
    for (const [id] of COSTS) slider(id, draw);
    draw(here);
  }];
}

function rows(id, one, most, others) {
  const each = one.rows.length > 16 ? 14 : ROW, high = each - 8;
  return picture(id, {
    names: one.rows.map((_, m) => `mesh ${m}`), each, extent: most, others,
    draw(pen, x) {
      const [low, top] = x.domain();
      one.rows.forEach((row, m) => {
        for (const { parts, start, end } of row) {
          if (end < low || start > top) continue;
          parts.forEach(([, kind, mb], k) => box(pen, x(start), x(end), m * each + 4 + k * high / parts.length, high / parts.length, kind, k === 0 && mb >= 0 && x(end) - x(start) > 6 + 7 * String(mb).length ? mb : ""));
        }
      });
    },
    find: (t, row) => one.rows[row] && one.rows[row].find((e) => t >= e.start && t <= e.end),
    say: ({ parts, start, end }) => `${parts.map(([stage, kind, mb]) => `${KEYS[kind]} of stage ${stage}${mb < 0 ? "" : `, microbatch ${mb}`}`).join("; ")}: ${start} to ${end}`,
  });
}
