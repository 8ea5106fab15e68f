// The step in time, and the schedules of the library.
"use strict";

// ---- the step in time

// What an instruction reads and writes.
const slots = (one) => one[0] === "R" ? [one[6], one[7]] : [one[5], one[6]];

// Each mesh runs its programs in the order of the plan, each when its inputs are there.
function simulate(plan, cost, speed, latency, bandwidth) {
  const ready = new Map(), free = [];
  return stepOf(plan, plan.instructions.map((one, at) => {
    const [inputs, outputs] = slots(one), given = d3.max(inputs, (slot) => ready.get(slot)) ?? 0, runs = one[0] === "R";
    const start = runs ? Math.max(given, free[one[1]] ?? 0) : given;
    const end = start + (runs ? Math.max(cost[one[2]] / speed, 1e-9) : one[1] === one[2] ? 0 : latency + one[3] / bandwidth);
    if (runs) free[one[1]] = end;
    for (const slot of outputs) ready.set(slot, end);
    return [at, 1000 * start, 1000 * end];
  }));
}

// Of each mesh the bytes that a device holds over time, and the most of it.  What a run donates becomes its results.
function memory(plan, found) {
  const last = new Map(), born = new Map(plan.arguments.map((s) => [s, 0])), kept = new Set([...plan.results, ...plan.arguments.filter((s) => !plan.donated.includes(s))]);
  plan.instructions.forEach((one, at) => {
    const [inputs, outputs] = slots(one), e = found.times.get(at);
    for (const s of inputs) last.set(s, Math.max(last.get(s) ?? 0, one[8]?.includes(s) ? e.start : e.end));
    for (const s of outputs) born.set(s, e.start);
  });
  const events = plan.meshes.map(() => []);
  for (const [slot, start] of born) {
    const [mesh, size] = plan.slots[slot];
    events[mesh].push([start, size]);
    if (!kept.has(slot)) events[mesh].push([Math.max(last.get(slot) ?? start, start), -size]);
  }
  return events.map((changes) => {
    changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]); // what ends is gone before what begins
    const held = d3.cumsum(changes, ([, size]) => size);
    return { line: changes.map(([t], k) => [t, held[k]]), peak: d3.max(held) ?? 0 };
  });
}

// A step of which it is known when each instruction ran, in milliseconds: its rows and links in seconds, and for each
// instruction what it waited for last: the one before on its mesh, or what made one of its inputs.
function stepOf(plan, step) {
  const rows = plan.meshes.map(() => []), links = [], cause = new Map(), maker = new Map(), before = new Map(), critical = new Set();
  for (const [at, start, end] of step) {
    const one = plan.instructions[at], e = { start: start / 1000, end: end / 1000, at };
    if (one[0] === "R") rows[one[1]].push({ ...e, label: one[3], kind: one[4], mb: one[5] });
    else links.push({ ...e, from: one[1], to: one[2], bytes: one[3] });
  }
  for (const row of rows) for (const [a, b] of d3.pairs(d3.sort(row, (e) => e.start))) before.set(b.at, a.at);
  const times = new Map([...rows.flat(), ...links].map((e) => [e.at, e]));
  plan.instructions.forEach((one, at) => {
    const [inputs, outputs] = slots(one), waits = [before.get(at), ...inputs.map((slot) => maker.get(slot))].filter((other) => other !== undefined);
    cause.set(at, d3.greatest(waits, (other) => times.get(other).end) ?? -1);
    for (const slot of outputs) maker.set(slot, at);
  });
  const last = d3.greatest(rows.flat(), (e) => e.end);
  for (let at = last ? last.at : -1; at >= 0; at = cause.get(at)) critical.add(at);
  return { rows: rows.map((row) => d3.sort(row, (e) => e.start)), links, makespan: last ? last.end : 0, critical, cause, times };
}

// Of what the step's time is made: the parts of the critical path, in seconds.
function made(plan, found) {
  const parts = new Map(), add = (name, time) => { if (time > 0) parts.set(name, (parts.get(name) ?? 0) + time); };
  for (const at of found.critical) {
    const e = found.times.get(at), by = found.times.get(found.cause.get(at));
    add(plan.instructions[at][0] === "R" ? `computing on ${plan.meshes[plan.instructions[at][1]]}` : "sending", e.end - Math.max(e.start, by ? by.end : 0));
    add("between programs: launching, busy links and processors", e.start - (by ? by.end : 0));
  }
  const all = [...parts].sort((a, b) => b[1] - a[1]), most = 10;
  return all.length <= most ? all : [...all.slice(0, most), [`${all.length - most} smaller parts`, all.slice(most).reduce((sum, [, time]) => sum + time, 0)]];
}

// How the time of a mesh is spent: computing, waiting for others to compute, for what they send, for other reasons,
// and when it has nothing more to do.
function spent(plan, found) {
  return found.rows.map((row) => {
    let free = 0;
    const sum = { work: 0, others: 0, sending: 0, rest: 0, done: 0 };
    for (const e of row) {
      const by = found.cause.get(e.at), one = by >= 0 ? found.times.get(by) : null, gap = Math.max(e.start - free, 0);
      const sent = one && plan.instructions[by][0] === "T" ? Math.max(Math.min(one.end, e.start) - Math.max(one.start, free), 0) : 0;
      const late = Math.min(gap, one ? Math.max(e.start - Math.max(one.end, free), 0) : gap);
      sum.work += e.end - e.start; sum.sending += sent; sum.rest += late; sum.others += Math.max(gap - sent - late, 0);
      free = Math.max(free, e.end);
    }
    sum.done = found.makespan - free;
    return sum;
  });
}

// The speed at which the programs ran when they were measured, in GFLOP/s as the slider has it.
function measuredSpeed(plan) {
  let work = 0, time = 0;
  for (const step of plan.measured || []) for (const [at, start, end] of step) {
    const one = plan.instructions[at];
    if (one[0] === "R") { work += plan.costs[one[2]]; time += (end - start) / 1000; }
  }
  return time > 0 && work > 0 ? Math.max(-3, Math.min(6, Math.round(20 * Math.log10(work / time / 1e9)) / 20)) : 2;
}

// The seconds that a measured step takes.
const lasts = (step) => d3.max(step, ([, , end]) => end) / 1000;
const speedOf = (plan, here) => Number(here.speed ?? measuredSpeed(plan));
const settings = (plan, here) => [1e9 * 10 ** speedOf(plan, here), Number(here.latency ?? 5) * 1e-6, 1e9 * 10 ** Number(here.link ?? 1)];
const simulated = (plan, here) => simulate(plan, plan.costs, ...settings(plan, here));

// The step as the plan has it: every mesh has processors of its own, and transfers take no time.
function planned(plan, here) {
  const times = plan.programs.map(() => []);
  for (const step of plan.measured || []) for (const [at, start, end] of step) if (plan.instructions[at][0] === "R") times[plan.instructions[at][2]].push((end - start) / 1000);
  const speed = 1e9 * 10 ** speedOf(plan, here);
  return simulate(plan, times.map((all, program) => d3.quantile(all, 0.25) ?? plan.costs[program] / speed), 1, 0, Infinity);
}

async function time(here) {
  const plan = await explorer.plan();
  if (!plan) return ["<h2>Timeline</h2><p>This program was not planned.</p>", ""];
  const steps = plan.measured || [], mode = here.mode ?? (steps.length ? "measured" : "simulated"), which = Math.min(Number(here.step ?? d3.leastIndex(steps, lasts)), Math.max(steps.length - 1, 0));
  const measured = mode === "measured" && steps.length > 0, plans = mode === "planned";
  const sliders = measured || (plans && steps.length) ? [] : plans ? ["speed"] : ["speed", "latency", "link"];
  const stepNow = (now) => measured ? stepOf(plan, steps[which]) : plans ? planned(plan, now) : simulated(plan, now);
  const told = {
    measured: "Measured: when each program and transfer ran on this machine. Meshes that share processors slow each other down.",
    planned: `Planned: a program takes ${steps.length ? "its measured time (the lower quartile)" : "its FLOPs divided by the speed"}, and a transfer takes no time. Each mesh has its own processors and runs its programs in the order of the plan, each as soon as its inputs are there.`,
    simulated: `Simulated: a program takes its FLOPs divided by the speed${steps.length ? " (initially the measured one)" : ""}, and a transfer takes its latency plus its bytes divided by the bandwidth of the link. Each mesh runs its programs in the order of the plan, each as soon as its inputs are there.`,
  };
  const page = `<div class="bar">${choice("mode", "what is drawn", [["planned", "planned"], ["simulated", "simulated"], ...steps.map((_, k) => [`measured${k}`, `measured, step ${k + 1}`])], measured ? `measured${which}` : plans ? "planned" : "simulated")}
    ${sliders.map((id) => ({ speed: range(id, id, -3, 6, 0.05, speedOf(plan, here)), latency: range(id, id, 0, 200, 1, here.latency ?? 5), link: range(id, id, -1, 3, 0.25, here.link ?? 1) })[id]).join("")}
    ${ZOOM}</div><div id="chart" data-says="the step in time, by mesh"></div>
    <p class="legend">${legend(["F", "B", "I", "W", "O", "T", "mark"])} framed: the critical path; a program of a forward and a backward is colored as a backward</p>
    <p class="ty">${told[measured ? "measured" : plans ? "planned" : "simulated"]} Below each mesh is the memory of one of its devices, without scratch memory.</p>`;
  let found = null;
  const draw = (now) => {
    found = stepNow(now);
    for (const [id, text] of [["speed", rate(1e9 * 10 ** speedOf(plan, now))], ["latency", `${now.latency ?? 5} µs`], ["link", `${(10 ** Number(now.link ?? 1)).toPrecision(2)} GB/s`]])
      if (sliders.includes(id)) $(`${id}-is`).textContent = text;
    chart(plan, found, memory(plan, found), now.at === undefined ? -1 : Number(now.at));
    if (now !== here) about(now);
  };
  const about = async (now) => { const text = await oneStep(plan, found, steps, measured, now); if ($("chart")) $("side").innerHTML = text; };
  found = stepNow(here);
  return [page, await oneStep(plan, found, steps, measured, here), () => {
    $("mode").onchange = (event) => { const value = event.target.value; go({ mode: value.startsWith("m") ? "measured" : value, step: value.startsWith("m") ? value.slice(8) : null }); };
    for (const id of sliders) slider(id, draw);
    draw(here);
    move = (by) => {
      const row = found.rows.find((one) => one.some((e) => e.at === Number(here.at))) ?? found.rows[0], next = row[here.at === undefined ? 0 : row.findIndex((e) => e.at === Number(here.at)) + by];
      if (next) go({ at: next.at });
    };
  }];
}

// The time of the step and what it is made of, how each mesh spends it, and what was chosen.
async function oneStep(plan, found, steps, measured, here) {
  const part = (time) => `${(100 * time / (found.makespan || 1)).toFixed(1)} %`, used = memory(plan, found);
  const rows = spent(plan, found).map((sum, m) => `<tr><td>${escape(plan.meshes[m])}</td>${["work", "others", "sending", "rest", "done"].map((name) => `<td class="n">${part(sum[name])}</td>`).join("")}<td class="n">${bytes(used[m].peak)}</td></tr>`);
  let text = `<h2>One step: ${ms(found.makespan)}</h2><p>From the first start to the last end, along the critical path:</p><table>${made(plan, found).map(([name, time]) => `<tr><td>${escape(name)}</td><td class="n">${ms(time)}</td><td class="n">${part(time)}</td></tr>`).join("")}</table>`;
  if (steps.length) text += `<p>Measured: ${steps.map((step) => ms(lasts(step))).join(", ")}. Planned, each program as fast as measured and transfers free: ${ms(planned(plan, here).makespan)}. Simulated at ${rate(1e9 * 10 ** speedOf(plan, here))}: ${ms(simulated(plan, here).makespan)}; the rest of the measured time is launching, and meshes that share processors.</p>`;
  text += `<h3>How meshes spend it</h3><table class="small"><thead><tr><th>mesh</th><th class="n">works</th><th class="n" title="idle: what it needs is still being computed elsewhere">waits for meshes</th><th class="n" title="idle: what it needs is on its way">waits for transfers</th><th class="n" title="idle: its inputs are there">other idle</th><th class="n" title="idle: it has nothing more to do">done early</th><th class="n" title="memory of a device">peak</th></tr></thead><tbody>${rows.join("")}</tbody></table>`;
  return text + await run(plan, found, here);
}

const ms = (seconds, like = seconds) => like >= 0.5 ? `${seconds.toFixed(2)} s` : like >= 1e-4 ? `${(1000 * seconds).toFixed(2)} ms` : `${(1e6 * seconds).toFixed(1)} µs`;

// What was chosen: when it ran, what it waited for, and where it is in the program.
async function run(plan, found, here) {
  const at = here.at === undefined ? -1 : Number(here.at);
  const m = found.rows.findIndex((row) => row.some((e) => e.at === at));
  if (m < 0) return "<p>Click a box.</p>";
  const row = found.rows[m], k = row.findIndex((e) => e.at === at), e = row[k], free = k ? row[k - 1].end : 0;
  let text = `<h3>${escape(e.label)}</h3><p>${e.mb >= 0 ? `microbatch ${e.mb}, ` : ""}${ms(e.start)} to ${ms(e.end)} (${ms(e.end - e.start)})</p>`;
  const by = found.cause.get(at), reason = by >= 0 ? plan.instructions[by] : null;
  if (e.start - free > 1e-9) {
    const what = !reason ? "" : reason[0] === "R" && reason[1] === m ? ": launching it, or others have the processors" : reason[0] === "T" ? `, for what ${escape(plan.meshes[reason[1]])} sends (${bytes(reason[3])})` : `, for ${escape(reason[3])} on ${escape(plan.meshes[reason[1]])}`;
    text += `<p>${escape(plan.meshes[m])} waits ${ms(e.start - free)} before it${what}</p>`;
  }
  const last = views()[views().length - 1], view = await explorer.want(`pass${last}`), node = nodeOf(plan, view, at);
  if (node !== null) text += `<p>${link({ view: "program", pass: last, node }, "in the program")}</p>`;
  return text;
}

function chart(plan, found, used, chosen) {
  // The rows share the height of the window, of which the axis, the legend and what is said below keep some.
  const room = innerHeight - $("chart").getBoundingClientRect().top - 150, each = Math.max(ROW + 22, Math.min(160, Math.floor(room / plan.meshes.length)));
  const band = Math.round(each / 3), tall = each - band - 10, most = d3.max(used, (one) => one.peak) || 1;
  picture("chart", {
    names: plan.meshes, each, extent: found.makespan, key: "span", axis: (t) => ms(t, found.makespan),
    draw(pen, x) {
      const [low, high] = x.domain(), middle = (row) => row * each + 4 + tall / 2, sent = found.links.filter((e) => e.from !== e.to && e.end >= low && e.start <= high);
      found.rows.forEach((row, m) => {
        for (const e of row) {
          if (e.end < low || e.start > high) continue;
          const paint = e.at === chosen ? "hot" : { F: "F", B: "B", I: "I", W: "W", FB: "B" }[e.kind] || "O", text = e.mb < 0 ? e.label : `#${e.mb} ${e.label}`;
          box(pen, x(e.start), x(e.end), m * each + 4, tall, paint, text, found.critical.has(e.at) || e.at === chosen);
        }
        const floor = (m + 1) * each - 2, line = [...used[m].line, [found.makespan, used[m].line.length ? used[m].line[used[m].line.length - 1][1] : 0]];
        pen.globalAlpha = 0.35; pen.fillStyle = color("mark"); pen.beginPath();
        d3.area(([t]) => x(t), floor, ([, n]) => floor - band * n / most).curve(d3.curveStepAfter).context(pen)(line);
        pen.fill(); pen.globalAlpha = 1;
      });
      pen.strokeStyle = color("T"); pen.globalAlpha = 0.5;
      if (sent.length < 4000) for (const e of sent) { pen.beginPath(); pen.moveTo(x(e.start), middle(e.from)); pen.lineTo(x(e.end), middle(e.to)); pen.stroke(); }
      pen.globalAlpha = 1;
    },
    find: (t, row) => found.rows[row] && found.rows[row].find((e) => t >= e.start && t <= e.end),
    say: (e) => `${e.mb < 0 ? "" : `microbatch ${e.mb}, `}${e.label}, ${ms(e.end - e.start)}`,
    choose: (e) => go({ at: e ? e.at : null }),
  });
}
