// The step in time, and the schedules of the library.
"use strict";

// ---- the step in time

// Each mesh runs its programs in the order of the plan, each when its inputs are there.
function simulate(plan, cost, speed, latency, bandwidth) {
  const ready = new Map(), free = new Map(), cause = new Map(), rows = plan.meshes.map(() => []), links = [];
  const made = new Map();
  plan.instructions.forEach((one, at) => {
    const [inputs, outputs] = one[0] === "R" ? [one[6], one[7]] : [one[5], one[6]];
    let begin = 0, by = -1;
    for (const slot of inputs) if ((ready.get(slot) ?? 0) > begin) { begin = ready.get(slot); by = made.get(slot) ?? -1; }
    let end;
    if (one[0] === "R") {
      const waits = free.get(one[1]) ?? [0, -1];
      if (waits[0] >= begin) { begin = waits[0]; by = waits[1]; }
      end = begin + Math.max(cost[one[2]] / speed, 1e-9);
      free.set(one[1], [end, at]);
      rows[one[1]].push({ start: begin, end, label: one[3], kind: one[4], mb: one[5], at });
    } else {
      end = one[1] === one[2] ? begin : begin + latency + one[3] / bandwidth;
      links.push({ start: begin, end, from: one[1], to: one[2], bytes: one[3], at });
    }
    cause.set(at, by);
    for (const slot of outputs) { ready.set(slot, end); made.set(slot, at); }
  });
  const ends = rows.flatMap((row) => row.map((e) => [e.end, e.at])).sort((a, b) => b[0] - a[0]);
  const critical = new Set();
  for (let at = ends.length ? ends[0][1] : -1; at >= 0; at = cause.get(at)) critical.add(at);
  return { rows, links, makespan: ends.length ? ends[0][0] : 0, critical, cause };
}

function memory(plan, found) {
  const births = plan.meshes.map(() => []), last = new Map(), kept = new Set([...plan.results, ...plan.arguments.filter((s) => !plan.donated.includes(s))]);
  const when = new Map();
  for (const row of found.rows) for (const e of row) when.set(e.at, e);
  for (const e of found.links) when.set(e.at, e);
  const born = new Map(plan.arguments.map((s) => [s, 0]));
  plan.instructions.forEach((one, at) => {
    const [inputs, outputs] = one[0] === "R" ? [one[6], one[7]] : [one[5], one[6]], e = when.get(at);
    for (const s of inputs) last.set(s, Math.max(last.get(s) ?? 0, e.end));
    for (const s of outputs) born.set(s, e.start);
  });
  for (const [slot, start] of born) {
    const [mesh, size] = plan.slots[slot];
    births[mesh].push([start, size]);
    if (!kept.has(slot)) births[mesh].push([Math.max(last.get(slot) ?? start, start), -size]);
  }
  return births.map((events) => {
    events.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
    let used = 0, peak = 0;
    const line = events.map(([t, d]) => { used += d; peak = Math.max(peak, used); return [t, used]; });
    return { line, peak };
  });
}

// Where the instructions of a measured step were, in seconds.
function measuredStep(plan, step) {
  const rows = plan.meshes.map(() => []), links = [], cause = new Map(), made = new Map();
  let makespan = 0;
  for (const [at, start, end] of step) {
    const one = plan.instructions[at], e = { start: start / 1000, end: end / 1000, at };
    makespan = Math.max(makespan, e.end);
    if (one[0] === "R") rows[one[1]].push({ ...e, label: one[3], kind: one[4], mb: one[5] });
    else links.push({ ...e, from: one[1], to: one[2], bytes: one[3] });
  }
  rows.forEach((row) => row.sort((a, b) => a.start - b.start));
  const end = new Map([...rows.flat(), ...links].map((e) => [e.at, e.end]));
  plan.instructions.forEach((one, at) => {
    const [inputs, outputs] = one[0] === "R" ? [one[6], one[7]] : [one[5], one[6]];
    let last = -1;
    for (const slot of inputs) { const maker = made.get(slot); if (maker !== undefined && (last < 0 || end.get(maker) > end.get(last))) last = maker; }
    cause.set(at, last);
    for (const slot of outputs) made.set(slot, at);
  });
  return { rows, links, makespan, critical: new Set(), cause };
}

const settings = (here) => [1e9 * 10 ** Number(here.speed ?? 2), Number(here.latency ?? 5) * 1e-6, 1e9 * 10 ** Number(here.link ?? 1)];

async function time(here) {
  const plan = index().plan;
  if (!plan) return ["<h2>Timeline</h2><p>This program was not planned.</p>", ""];
  const steps = index().measured || [], mode = here.mode ?? (steps.length ? "measured" : "simulated"), which = Math.min(Number(here.step ?? 0), Math.max(steps.length - 1, 0));
  const option = (value, name, chosen) => `<option value="${value}" ${chosen ? "selected" : ""}>${name}</option>`;
  const measured = mode === "measured" && steps.length > 0;
  const found = measured ? measuredStep(plan, steps[which]) : simulate(plan, index().costs || [], ...settings(here));
  const slide = (id, name, low, high, step, value, text) => `<label>${name} <input type="range" id="${id}" min="${low}" max="${high}" step="${step}" value="${value}">${text === undefined ? "" : ` <output>${text}</output>`}</label>`;
  const page = `<div class="bar"><select id="mode" aria-label="what is drawn">${option("simulated", "simulated", !measured)}${steps.map((_, k) => option(`measured${k}`, `measured, step ${k + 1}`, measured && k === which)).join("")}</select>
    ${measured ? "" : slide("speed", "Gflop/s", -1, 6, 0.25, here.speed ?? 2, (10 ** Number(here.speed ?? 2)).toPrecision(2)) + slide("latency", "latency µs", 0, 200, 1, here.latency ?? 5, here.latency ?? 5) + slide("link", "link GB/s", -1, 3, 0.25, here.link ?? 1, (10 ** Number(here.link ?? 1)).toPrecision(2))}
    ${slide("zoom", "zoom", 0, 6, 0.25, here.tz ?? 0)}</div>
    <div style="overflow-x:auto" id="scroller"><canvas id="chart"></canvas></div>
    <p class="ty">${measured ? "Measured: when each program and transfer ran on this machine, a thread for each mesh and link waiting for each of them; meshes that share processors slow each other." : "Simulated: a program takes its floating point operations over the speed, a transfer its latency and its bytes over the bandwidth of a link; each mesh runs in the order of the plan. The framed boxes are the critical path."} Below each mesh the memory of one of its devices, without scratch memory.</p>`;
  const used = memory(plan, found);
  const idle = found.rows.map((row) => 1 - row.reduce((sum, e) => sum + e.end - e.start, 0) / (found.makespan || 1));
  const side = `<h2>One step</h2><p>${ms(found.makespan)} from the first start to the last end</p>${steps.length ? `<p>measured ${steps.map((step) => ms(Math.max(...step.map((e) => e[2])) / 1000)).join(", ")}; simulated ${ms(simulate(plan, index().costs || [], ...settings(here)).makespan)} with the speeds chosen there</p>` : ""}<table><thead><tr><th>mesh</th><th class="n">runs</th><th class="n">idle</th><th class="n">peak</th></tr></thead><tbody>${plan.meshes.map((name, m) => `<tr><td>${escape(name)}</td><td class="n">${found.rows[m].length}</td><td class="n">${(100 * idle[m]).toFixed(1)} %</td><td class="n">${bytes(used[m].peak)}</td></tr>`).join("")}</tbody></table>${await run(plan, found, here)}`;
  return [page, side, () => {
    $("mode").onchange = (event) => { const value = event.target.value; go({ mode: value.startsWith("m") ? "measured" : "simulated", step: value.startsWith("m") ? value.slice(8) : null }); };
    for (const [id, name] of [["speed", "speed"], ["latency", "latency"], ["link", "link"], ["zoom", "tz"]]) if ($(id)) $(id).onchange = (event) => go({ [name]: event.target.value });
    chart(plan, found, used, Number(here.tz ?? 0), here.at === undefined ? -1 : Number(here.at));
  }];
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
    const what = !reason ? "" : reason[0] === "T" ? `, for what ${escape(plan.meshes[reason[1]])} sends (${bytes(reason[3])})` : `, for ${escape(reason[3])} on ${escape(plan.meshes[reason[1]])}`;
    text += `<p>${escape(plan.meshes[m])} waits ${ms(e.start - free)} before it${what}</p>`;
  }
  const last = views()[views().length - 1], view = await explorer.want(`pass${last}`), node = nodeOf(plan, view, at);
  if (node !== null) text += `<p>${link({ view: "program", pass: last, node }, "in the program")}</p>`;
  return text;
}

function chart(plan, found, used, zoom, chosen) {
  const canvas = $("chart"), ratio = devicePixelRatio || 1, wide = Math.min(($("view").clientWidth - 40) * 2 ** zoom, 30000);
  const each = ROW + 22, high = plan.meshes.length * each + 24, scale = (wide - LEFT - 10) / (found.makespan || 1);
  canvas.style.width = `${wide}px`; canvas.style.height = `${high}px`;
  canvas.width = Math.min(wide * ratio, 32000); canvas.height = high * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(canvas.width / wide, ratio);
  pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
  const boxes = [], most = Math.max(...used.map((u) => u.peak), 1);
  plan.meshes.forEach((name, m) => {
    const top = m * each;
    pen.fillStyle = color("ink"); pen.fillText(name, 6, top + ROW / 2);
    for (const e of found.rows[m]) {
      const x = LEFT + e.start * scale, w = Math.max((e.end - e.start) * scale, 0.5), y = top + (ROW - BOX) / 2;
      pen.fillStyle = color(e.at === chosen ? "hot" : { F: "F", B: "B", I: "I", W: "W", FB: "B" }[e.kind] || "O");
      pen.fillRect(x, y, Math.max(w - 0.5, 0.5), BOX);
      if (found.critical.has(e.at) || e.at === chosen) { pen.strokeStyle = color("ink"); pen.strokeRect(x + 0.5, y + 0.5, Math.max(w - 1.5, 0.5), BOX - 1); }
      if (w > 14) { pen.save(); pen.beginPath(); pen.rect(x, y, w - 2, BOX); pen.clip(); pen.fillStyle = color("ink"); pen.fillText(w > 60 ? `${e.mb < 0 ? "" : `${e.mb} `}${e.label}` : `${e.mb < 0 ? "" : e.mb}`, x + 2, y + BOX / 2); pen.restore(); }
      boxes.push({ x, w, y: top, e, m });
    }
    const floor = top + ROW + 18;
    pen.beginPath(); pen.moveTo(LEFT, floor);
    let level = floor;
    for (const [t, n] of used[m].line) { const x = LEFT + t * scale; pen.lineTo(x, level); level = floor - 16 * n / most; pen.lineTo(x, level); }
    pen.lineTo(LEFT + found.makespan * scale, level); pen.lineTo(LEFT + found.makespan * scale, floor); pen.closePath();
    pen.globalAlpha = 0.35; pen.fillStyle = color("mark"); pen.fill(); pen.globalAlpha = 1;
  });
  pen.strokeStyle = color("T"); pen.globalAlpha = 0.5;
  if (found.links.length < 4000) for (const e of found.links) {
    if (e.from === e.to) continue;
    pen.beginPath(); pen.moveTo(LEFT + e.start * scale, e.from * each + ROW / 2); pen.lineTo(LEFT + e.end * scale, e.to * each + ROW / 2); pen.stroke();
  }
  pen.globalAlpha = 1;
  const floor = plan.meshes.length * each + 12;
  pen.fillStyle = color("soft");
  for (let k = 0; k <= 8; k++) pen.fillText(ms(found.makespan * k / 8, found.makespan), LEFT + found.makespan * k / 8 * scale - (k === 8 ? 50 : 0), floor);
  canvas.onclick = (event) => {
    const hit = boxes.find((b) => event.offsetX >= b.x && event.offsetX <= b.x + b.w && event.offsetY >= b.y && event.offsetY < b.y + ROW);
    go({ at: hit ? hit.e.at : null });
  };
}

// ---- schedules of the library, side by side

async function schedules(here) {
  const all = await explorer.want("schedules"), names = [...new Set(Object.keys(all).map((k) => k.split("/")[0]))];
  const meshes = here.meshes ?? "4", count = here.mb ?? "8", first = here.a ?? "1f1b", second = here.b ?? "zb-h1";
  const pick = (id, value, list) => `<select id="${id}">${list.map((n) => `<option ${n === value ? "selected" : ""}>${n}</option>`).join("")}</select>`;
  const table = names.filter((n) => all[`${n}/${meshes}/${count}`]).map((n) => { const one = all[`${n}/${meshes}/${count}`]; return [n, one]; })
    .sort((x, y) => x[1].makespan - y[1].makespan)
    .map(([n, one]) => `<tr data-name="${n}" class="${n === first || n === second ? "on" : ""}"><td>${n}</td><td class="n">${one.makespan}</td><td class="n">${one.peak}</td></tr>`);
  const page = `<div class="bar">${pick("a", first, names)} beside ${pick("b", second, names)} <label>meshes ${pick("meshes", meshes, ["2", "4", "8"])}</label><label>microbatches ${pick("mb", count, ["4", "8", "16"])}</label></div>
    <h3>${first}</h3><canvas id="one"></canvas><h3>${second}</h3><canvas id="two"></canvas><p class="ty">Forward, input and weight gradient take one unit of time each; the same scale in both.</p>`;
  const side = `<h2>${meshes} meshes, ${count} microbatches</h2><table><thead><tr><th>schedule</th><th class="n">time</th><th class="n" title="microbatches' activations on the fullest mesh">peak</th></tr></thead><tbody>${table.join("")}</tbody></table>`;
  return [page, side, () => {
    for (const id of ["a", "b", "meshes", "mb"]) $(id).onchange = (event) => go({ [id]: event.target.value });
    for (const row of document.querySelectorAll("#side tbody tr")) row.onclick = () => go({ b: row.dataset.name });
    const pair = [first, second].map((n) => all[`${n}/${meshes}/${count}`]), most = Math.max(...pair.map((p) => p ? p.makespan : 0), 1);
    ["one", "two"].forEach((id, k) => rows($(id), pair[k], most));
  }];
}

function rows(canvas, one, most) {
  const ratio = devicePixelRatio || 1, wide = $("view").clientWidth - 40, high = one ? one.rows.length * ROW : ROW;
  canvas.style.width = `${wide}px`; canvas.style.height = `${high}px`; canvas.width = wide * ratio; canvas.height = high * ratio;
  const pen = canvas.getContext("2d"), scale = (wide - LEFT - 10) / most;
  pen.scale(ratio, ratio); pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle"; pen.fillStyle = color("ink");
  if (!one) { pen.fillText("not for this size", 6, ROW / 2); return; }
  one.rows.forEach((row, m) => {
    pen.fillStyle = color("ink"); pen.fillText(`mesh ${m}`, 6, m * ROW + ROW / 2);
    for (const [text, start, end] of row) {
      const [, letter, mb] = /([FBIWO])_?[A-Z]*(\d*)/.exec(text) || [0, "O", ""], x = LEFT + start * scale, w = (end - start) * scale;
      pen.fillStyle = color(text.startsWith("(") ? "B" : letter); pen.fillRect(x, m * ROW + 4, Math.max(w - 0.7, 0.5), BOX);
      if (w > 13) { pen.fillStyle = color("ink"); pen.fillText(mb, x + 2, m * ROW + ROW / 2); }
    }
  });
}
