// Pictures of rows against a scale, which can be zoomed and moved: by dragging, ctrl and wheel, keys, buttons.  What is
// in the rows is drawn on a canvas, for there may be much of it; what is seen is in the address.
"use strict";
const ROW = 26, BOX = 18;

// What + - 0 and the arrows do in the view that is shown.
let zoomed = null;
const pictures = {};
const ZOOM = `<span class="zoom" title="drag, ctrl and wheel, or the keys + − 0 ← →">${[["−", "out"], ["+", "in"], ["0", "all"]].map(([act, name]) => `<button data-zoom="${act}" aria-label="zoom ${name}">${act === "0" ? "all" : act}</button>`).join("")}</span>`;
const KEYS = { F: "forward", B: "backward", I: "input gradient", W: "weight gradient", O: "other", T: "transfer", mark: "memory" };
const legend = (kinds) => [...kinds].map((id) => `<span class="key" style="background:var(--${id})"></span>${KEYS[id]}&ensp;`).join("");

// names: of the rows; each: their height; extent: where the scale ends; seen: [from, to] where nothing else was said;
// key: under which the address keeps it, as parts of the whole; axis: how its ticks are told; draw(pen, x): what is in the rows;
// find(value, row): what is there; say(it): in words; choose(it): clicked; others: pictures that follow.
function picture(id, { names, each = ROW, extent, seen, key, axis, draw, find, say, choose, others = [] }) {
  const root = d3.select(`#${id}`).html("").classed("picture", true), wide = root.node().clientWidth, high = names.length * each, ratio = devicePixelRatio || 1;
  const canvas = root.append("canvas").attr("role", "img").attr("aria-label", root.attr("data-says")).attr("width", wide * ratio).attr("height", high * ratio).style("height", `${high}px`);
  const pen = canvas.node().getContext("2d");
  pen.scale(ratio, ratio); pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
  const left = Math.min(180, 14 + d3.max(names, (name) => pen.measureText(name).width)), full = d3.scaleLinear([0, extent || 1], [left, wide - 12]);
  const ticks = axis && root.append("svg").attr("width", wide).attr("height", 22).append("g");
  let x = full;
  const redraw = () => {
    pen.clearRect(0, 0, wide, high);
    pen.save(); pen.beginPath(); pen.rect(left - 1, 0, wide, high); pen.clip();
    names.forEach((name, row) => { if (row % 2 === 0) { pen.fillStyle = color("band"); pen.fillRect(0, row * each, wide, each); } });
    draw(pen, x);
    pen.restore();
    pen.fillStyle = color("ink");
    names.forEach((name, row) => within(pen, 0, row * each, left - 4, each, () => pen.fillText(name, 6, row * each + Math.min(ROW, each) / 2)));
    if (ticks) ticks.call(d3.axisBottom(x).ticks(Math.max(2, wide / 140)).tickFormat(axis)).selectAll(".tick").attr("visibility", (t) => x(t) > wide - 40 ? "hidden" : null);
  };
  const edges = [[left, 0], [wide - 12, high]], keep = () => key && remember({ [key]: x.domain().map((t) => Number((t / (extent || 1)).toPrecision(6))) });
  const zoom = d3.zoom().scaleExtent([1, 1e5]).extent(edges).translateExtent(edges)
    .filter((event) => !event.button && (event.type !== "wheel" || event.ctrlKey || event.metaKey))
    .on("zoom", ({ transform, sourceEvent }) => {
      x = transform.rescaleX(full);
      redraw();
      if (sourceEvent) others.forEach((other) => other !== me && other.show(transform));
    })
    .on("end", ({ sourceEvent }) => { if (sourceEvent) keep(); });
  const asked = key && place()[key] ? place()[key].split(",").map((part) => part * (extent || 1)) : seen ?? [0, extent], scale = Math.max(1, (extent || 1) / ((asked[1] - asked[0]) || 1));
  const me = pictures[id] = {
    x: () => x,
    show: (transform) => canvas.call(zoom.transform, transform),
    act(what) {
      if (what === "+" || what === "-" || what === "−") canvas.call(zoom.scaleBy, what === "+" ? 1.5 : 1 / 1.5);
      else if (what === "0") canvas.call(zoom.transform, d3.zoomIdentity);
      else canvas.call(zoom.translateBy, (what === "ArrowLeft" ? 1 : -1) * (wide - left) / 4 / d3.zoomTransform(canvas.node()).k, 0);
      others.forEach((other) => other !== me && other.show(d3.zoomTransform(canvas.node())));
      keep();
    },
  };
  const under = (event) => find && event.offsetX >= left ? find(x.invert(event.offsetX), Math.floor(event.offsetY / each)) : undefined;
  canvas.call(zoom).on("dblclick.zoom", null)
    .on("click", (event) => choose && choose(under(event)))
    .on("mousemove.say", (event) => { const it = under(event); canvas.attr("title", it === undefined ? null : say(it)).style("cursor", it === undefined ? null : "pointer"); });
  me.show(zoom.constrain()(d3.zoomIdentity.translate(left - scale * full(asked[0]), 0).scale(scale), edges, edges));
  zoomed = me.act;
  d3.selectAll("[data-zoom]").on("click", (event) => me.act(event.currentTarget.dataset.zoom));
  return me;
}

// Draws something that does not leave a box.
function within(pen, x, y, wide, high, draw) { pen.save(); pen.beginPath(); pen.rect(x, y, wide, high); pen.clip(); draw(); pen.restore(); }

// What fits of a text into so many pixels: all of it, its beginning, its first word, or nothing.
function fitting(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  const most = Math.floor(text.length * room / pen.measureText(text).width) - 1, first = text.split(" ")[0];
  if (most <= first.length + 2 && pen.measureText(first).width <= room) return first;
  return most > 2 ? `${text.slice(0, most)}…` : "";
}

// A box with what fits of its text, which begins where it is seen.
function box(pen, x0, x1, y, high, paint, text = "", framed = false) {
  const wide = Math.max(x1 - x0 - 0.7, 0.5), from = Math.max(x0 + 3, 3);
  pen.fillStyle = color(paint); pen.fillRect(x0, y, wide, high);
  if (framed) { pen.strokeStyle = color("ink"); pen.strokeRect(x0 + 0.5, y + 0.5, Math.max(wide - 1, 0.5), high - 1); }
  const said = wide > 8 && text !== "" ? fitting(pen, text, x0 + wide - 3 - from) : "";
  if (said) { pen.fillStyle = color("ink"); pen.fillText(said, from, y + high / 2 + 0.5); }
}

// Things around one, as a graph: nodes [id, text, kind, link or null], edges [from, to]; laid out from top to bottom.
async function graph(id, nodes, edges) {
  await explorer.library("dagre.min.js");
  if (!$(id)) return;
  const one = new dagre.graphlib.Graph().setGraph({ nodesep: 8, ranksep: 22, marginx: 2, marginy: 2 }).setDefaultEdgeLabel(() => ({}));
  for (const [name, text] of nodes) one.setNode(name, { width: 14 + 6.2 * text.length, height: 20 });
  for (const [from, to] of edges) one.setEdge(from, to);
  dagre.layout(one);
  const { width, height } = one.graph(), svg = d3.select(`#${id}`).html("").append("svg").attr("viewBox", `0 0 ${width} ${height}`).attr("style", `max-width:${width}px;width:100%`);
  const line = d3.line((p) => p.x, (p) => p.y).curve(d3.curveBasis);
  svg.selectAll("path").data(one.edges()).join("path").attr("d", (edge) => line(one.edge(edge).points));
  const boxes = svg.selectAll("a").data(nodes).join("a").attr("href", ([, , , to]) => to).attr("transform", ([name]) => `translate(${one.node(name).x},${one.node(name).y})`);
  boxes.append("rect").attr("x", ([name]) => -one.node(name).width / 2).attr("y", -10).attr("rx", 3).attr("width", ([name]) => one.node(name).width).attr("height", 20).attr("fill", ([, , paint]) => `var(--${paint})`);
  boxes.append("text").attr("text-anchor", "middle").attr("dy", 4).text(([, text]) => text);
}
