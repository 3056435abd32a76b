// Drawings of the page: lines over time, histograms, and the radix tree. Plain SVG; nothing here asks the server.

const SVG = "http://www.w3.org/2000/svg";

export function make(name, attributes = {}, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Numbers as people read them. */
export function short(value) {
  if (value >= 1e6) return (value / 1e6).toFixed(1) + "M";
  if (value >= 1e4) return (value / 1e3).toFixed(0) + "k";
  if (value >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(1);
}

/** Each of `series` is a list of numbers, the newest last; `slots` is how many fit. */
export function drawLines(svg, series, slots) {
  const width = svg.clientWidth || 300, height = svg.clientHeight || 84, base = height - 3;
  const top = Math.max(1, ...series.flat());
  const x = (i, n) => width - (n - 1 - i) * (width / (slots - 1));
  const y = v => base - (v / top) * (height - 18);
  const parts = [make("line", { class: "grid", x1: 0, x2: width, y1: base, y2: base })];
  series.forEach((values, number) => {
    if (values.length < 2) return;
    const points = values.map((v, i) => `${x(i, values.length).toFixed(1)},${y(v).toFixed(1)}`);
    const kind = number ? " second" : "";
    const first = x(0, values.length).toFixed(1);
    parts.push(make("polygon", { class: "area" + kind, points: `${first},${base} ${points.join(" ")} ${width},${base}` }));
    parts.push(make("polyline", { class: "stroke" + kind, points: points.join(" ") }));
  });
  parts.push(make("text", { x: 2, y: 10 }, short(top)));
  svg.replaceChildren(...parts);
}

const seconds = s => (s < 1 ? `${Math.round(s * 1000)} ms` : `${s} s`);

/** `buckets` are [upper bound in seconds, count], not cumulative. Empty ends are left out. */
export function drawHistogram(svg, buckets) {
  const width = svg.clientWidth || 200, height = svg.clientHeight || 110, base = height - 16;
  const used = buckets.map(([, count]) => count > 0);
  const from = Math.max(0, used.indexOf(true) - 1), to = Math.min(buckets.length, used.lastIndexOf(true) + 2);
  if (!used.includes(true)) {
    svg.replaceChildren(make("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no requests yet"));
    return;
  }
  const shown = buckets.slice(from, to), most = Math.max(...shown.map(b => b[1])), step = width / shown.length;
  const parts = [make("line", { class: "grid", x1: 0, x2: width, y1: base, y2: base })];
  shown.forEach(([bound, count], i) => {
    const tall = (count / most) * (base - 14);
    const column = make("rect", { class: "column", x: i * step + 1, y: base - tall, width: Math.max(1, step - 2), height: tall, rx: 1.5 });
    column.append(make("title", {}, `${count} up to ${seconds(bound)}`));
    parts.push(column);
  });
  const label = (i, anchor) => make("text", { x: anchor === "start" ? 0 : width, y: height - 4, "text-anchor": anchor }, seconds(shown[i][0]));
  parts.push(label(0, "start"), label(shown.length - 1, "end"), make("text", { x: 2, y: 10 }, String(most)));
  svg.replaceChildren(...parts);
}

/** A tree as rows of edges: x is the position in tokens, each leaf has a row of its own. */
export function drawTree(box, tree) {
  const nodes = tree.namespaces.flatMap(space => space.nodes.map(node => ({ ...node, space: space.namespace })));
  if (!nodes.length) {
    box.innerHTML = "<p>Nothing is cached yet. Run a prompt.</p>";
    return 0;
  }
  const rows = placeRows(nodes), ROW = 22;
  const end = Math.max(...nodes.map(n => n.start + n.length)), width = Math.max(box.clientWidth - 4, 300);
  const x = position => 4 + (position / end) * (width - 8);
  const svg = make("svg", { width, height: rows * ROW + 8, role: "img", "aria-label": `Radix tree with ${nodes.length} nodes` });
  for (const node of nodes) svg.append(drawNode(node, x, ROW));
  box.replaceChildren(svg);
  return nodes.length;
}

/** Gives each node `row` and `span`; returns the number of rows. Children come after their parents. */
function placeRows(nodes) {
  const children = new Map(nodes.map(node => [node.id, []]));
  const roots = nodes.filter(node => !children.has(node.parent));
  for (const node of nodes) children.get(node.parent)?.push(node);
  for (const node of [...nodes].reverse())
    node.span = Math.max(1, children.get(node.id).reduce((sum, child) => sum + child.span, 0));
  let rows = 0;
  for (const root of roots) { root.row = rows; rows += root.span; }
  for (const node of nodes) {
    let row = node.row;
    for (const child of children.get(node.id)) { child.row = row; row += child.span; }
  }
  return rows;
}

function drawNode(node, x, ROW) {
  const left = x(node.start), wide = Math.max(3, x(node.start + node.length) - left), top = 4 + node.row * ROW;
  const state = [`heat${Math.min(5, 1 + Math.ceil(Math.log2(1 + node.hits)))}`];
  if (node.locks) state.push("locked");
  if (node.leases) state.push("leased");
  if (node.ready < node.length) state.push("computing");
  if (node.dead) state.push("dead");
  const group = make("g", { class: `node ${state.join(" ")}` });
  group.append(make("rect", { x: left, y: top, width: wide, height: node.span * ROW - 2, rx: 3 }));
  const room = Math.floor((wide - 8) / 6.4);
  const label = node.text !== undefined ? node.text.replace(/\n/g, "⏎") : `${node.length} tokens`;
  if (room > 3) group.append(make("text", { x: left + 5, y: top + 14 }, label.length > room ? label.slice(0, room - 1) + "…" : label));
  const salt = node.space[2] ? `, salt ${node.space[2]}` : "";
  group.append(make("title", {}, `tokens ${node.start} to ${node.start + node.length}: ${node.hits} hits, ${node.locks} locks, ${node.leases} leases` +
    (node.ready < node.length ? `, ${node.length - node.ready} being computed` : "") + salt + (node.text ? `\n${node.text}` : "")));
  return group;
}
