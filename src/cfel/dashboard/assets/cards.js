// The cards: each function draws one from the snapshot and keeps no state.
const COLOUR_OF = {
  idle: "grey", training: "time", uploading: "violet", done: "good", late: "warn", diverged: "bad", absent: "grey", lost: "bad",
  quarantined: "bad", alive: "good", suspect: "warn",
};
const ELECTION_WORDS = {
  campaign: "asks for votes", elected: "is elected", follows: "is the leader", "stepped-down": "steps down",
  "no-majority": "cannot reach a majority",
};
const PRESENT = ["idle", "training", "uploading", "done", "late", "diverged"];
const edgeName = cluster => cluster.node || `edge ${cluster.cluster}`;
const deviceName = device => device.name || `device ${device.device}`;
const cut = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
const devicesOf = status => status.clusters.flatMap(cluster => cluster.devices.map(device => ({ ...device, cluster })));

function tile(label, value, unit, detail, bar = null, title = null) {
  return element("div", { class: "tile", title }, element("span", { class: "label" }, label),
    element("span", { class: "value" }, value, unit ? element("small", {}, ` ${unit}`) : null), bar,
    element("span", { class: "detail" }, detail));
}
function budgetTile(label, spent, budget, text, kind, pace) {
  if (!known(budget)) return tile(label, text(spent), "", "no limit");
  const words = spent > budget ? `over the budget of ${text(budget)}` : `${percent(spent / budget)} of ${text(budget)}`;
  return tile(label, text(spent), "", words, meter(spent / budget, kind, pace), "the mark shows an even pace over all rounds");
}
function countEach(words) {
  return [...words.reduce((found, word) => found.set(word, (found.get(word) ?? 0) + 1), new Map())];
}

function accuracyOfDevices(status) {
  const last = status.history.filter(point => known(point.device_accuracy_mean)).at(-1), metric = status.metric;
  return last ? [tile(`${capitalise(metric.name)} per device`, quality(metric, last.device_accuracy_mean), "mean",
    `worst tenth ${quality(metric, last.device_accuracy_worst)} · spread ${quality(metric, last.device_accuracy_spread)}`)] : [];
}

function drawTiles(status) {
  const finished = status.history.at(-1)?.round ?? 0, pace = status.rounds ? finished / status.rounds : null;
  const evaluated = status.history.filter(point => known(point.accuracy)), last = evaluated.at(-1);
  const metric = status.metric, target = quality(metric, status.target);
  const reached = known(status.target) ? evaluated.find(point => reaches(metric, point.accuracy, status.target)) : null;
  const aim = reached ? `target ${target} reached in round ${reached.round}` : known(status.target) ? `target ${target}`
    : last ? `best ${quality(metric, bestOf(metric, evaluated.map(point => point.accuracy)))}` : "not evaluated yet";
  const edge = known(status.edge_round) ? `edge round ${status.edge_round}${status.edge_rounds ? ` of ${status.edge_rounds}` : ""} · ` : "";
  const devices = devicesOf(status), size = status.clusters.reduce((sum, cluster) => sum + cluster.size, 0);
  const present = devices.filter(device => PRESENT.includes(device.state)).length;
  const states = countEach(devices.map(device => device.state)).map(([state, count]) => `${count} ${state}`).join(", ");
  const tiles = [
    tile("Global round", String(status.round), status.rounds ? `of ${status.rounds}` : "", `${edge}${status.phase}`,
      known(pace) ? meter(pace, "progress") : null),
    tile(capitalise(metric.name), last ? quality(metric, last.accuracy) : "–", "", aim),
    ...accuracyOfDevices(status),
    budgetTile("Time spent, realised", status.seconds, status.seconds_budget, secondsText, "", pace),
    budgetTile("Energy spent, realised", status.joules, status.joules_budget, joulesText, "energy", pace),
    tile("Devices", devices.length < size ? size.toLocaleString("en") : `${present}`, devices.length < size ? "in total" : `of ${size}`,
      devices.length < size ? `${devices.length.toLocaleString("en")} slowest shown` : states || "none known"),
  ];
  if (known(status.term)) tiles.push(tile("Coordinator", status.coordinator ?? "unknown", "",
    `term ${status.term}${status.coordinator === status.node ? " · this node" : ""}`));
  byId("tiles").replaceChildren(...tiles);
}

function drawBackhaul(status) {
  const box = document.querySelector("#backhaul .chart"), width = Math.max(260, box.clientWidth), height = Math.round(Math.min(350, width * .88));
  const chart = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "backhaul between edge servers" });
  const total = status.clusters.length, crowded = total > 24, node = crowded ? 5 : 13;
  const radius = total === 1 ? 0 : Math.min(width / 2 - (crowded ? 16 : 84), height / 2 - (crowded ? 16 : 52));
  const angle = index => -Math.PI / 2 + 2 * Math.PI * index / Math.max(total, 1);
  const place = new Map(status.clusters.map((cluster, index) => [cluster.cluster,
    [width / 2 + radius * Math.cos(angle(index)), height / 2 + radius * Math.sin(angle(index))]]));
  for (const link of status.links) {
    const from = place.get(link.a), to = place.get(link.b);
    if (from && to) chart.append(svgElement("line", { class: `link ${link.up ? "" : "down"}`, x1: from[0], y1: from[1], x2: to[0], y2: to[1],
      "stroke-width": 1 + 4 * (link.weight ?? .2) }));
  }
  status.clusters.forEach((cluster, index) => {
    const [x, y] = place.get(cluster.cluster);
    const group = svgElement("g", {}, svgElement("title", {}, `${edgeName(cluster)}: ${cluster.state}, ${plural(cluster.size, "device")}`));
    if (!crowded) group.append(...deviceDots(cluster, x, y, node, angle(index)));
    group.append(svgElement("circle", { class: `node f-${cluster.state === "alive" ? "ink" : COLOUR_OF[cluster.state]}`, cx: x, cy: y, r: node }));
    if (cluster.node && cluster.node === status.coordinator) group.append(svgElement("circle", { class: "crown", cx: x, cy: y, r: node + 3 }));
    if (!crowded) group.append(nodeLabel(cluster, x, y, angle(index), total, status));
    chart.append(group);
  });
  box.replaceChildren(chart);
  const states = new Set(devicesOf(status).map(device => device.state));
  if (states.size && !crowded) box.append(legend([...states].map(state => [COLOUR_OF[state], state])));
  const crown = status.coordinator ? " The ring marks the coordinator." : "";
  const lost = status.clusters.filter(cluster => cluster.state !== "alive").map(cluster => `${edgeName(cluster)} is ${cluster.state}`);
  show("backhaul", ".note", `Thicker links have a larger mixing weight.${crown}${lost.length ? ` ${lost.join(", ")}.` : ""}`);
}
function deviceDots(cluster, x, y, node, outward) {
  const shown = cluster.devices.slice(0, 30), ring = 10;
  return shown.map((device, index) => {
    const layer = Math.floor(index / ring), inLayer = Math.min(ring, shown.length - layer * ring);
    const angle = outward + (index % ring - (inLayer - 1) / 2) * 2 * Math.PI / Math.max(ring, 1) * .92;
    const distance = node + 10 + 8 * layer;
    return svgElement("circle", { class: `f-${COLOUR_OF[device.state]}`, cx: x + distance * Math.cos(angle), cy: y + distance * Math.sin(angle), r: 3.3 },
      svgElement("title", {}, `${deviceName(device)}: ${device.state}`));
  });
}
function nodeLabel(cluster, x, y, angle, total, status) {
  const layers = Math.min(3, Math.ceil(cluster.devices.length / 10)), away = 26 + 8 * layers;
  const side = Math.abs(Math.cos(angle)) < .25 ? "middle" : Math.cos(angle) > 0 ? "start" : "end";
  return svgElement("text", { class: cluster.node === status.node ? "strong" : "", "text-anchor": total === 1 ? "middle" : side,
    x: x + away * Math.cos(angle) * .8, y: y + away * Math.sin(angle) + 4 }, cut(edgeName(cluster), 11));
}

// One row per cluster and one cell per device, for ρ and for θ.
function drawHeat(status) {
  const box = document.querySelector("#heat .chart"), width = Math.max(240, box.clientWidth);
  const most = Math.max(1, ...status.clusters.map(cluster => cluster.devices.length)), label = 74;
  if (!status.clusters.some(cluster => cluster.devices.some(device => known(device.rho)))) {
    show("heat", ".note");
    // A node that has just been elected, or has just started, knows the history before it knows a plan.
    const text = status.history.length ? "No device has an order at the moment." : "No round has been planned yet.";
    return box.replaceChildren(element("p", { class: "empty-state" }, text));
  }
  const wide = Math.min(36, Math.max(7, (width - label) / most)), per = Math.max(1, Math.floor((width - label) / wide));
  const blocks = [["ρ, share of local steps", "rho", "time"], ["θ, share uploaded", "theta", "energy"]];
  box.replaceChildren(...blocks.map(([title, field, colour]) => heatBlock(status, { title, field, colour, width, label, wide, per })));
  const means = blocks.map(([, field]) => mean(devicesOf(status).map(device => device[field]).filter(known)));
  show("heat", ".note", `Mean ρ ${number(means[0])}, mean θ ${number(means[1])}. A stronger colour means a larger share; empty cells have no order.`);
}
const mean = values => values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
function heatBlock(status, { title, field, colour, width, label, wide, per }) {
  const tall = Math.min(wide, 18), cells = [svgElement("text", { class: "strong", x: 0, y: 13 }, title)];
  let line = 22;
  for (const cluster of status.clusters) {
    cells.push(svgElement("text", { x: 0, y: line + tall / 2 + 4 }, cut(edgeName(cluster), 10)));
    cluster.devices.forEach((device, index) => {
      const value = device[field], x = label + index % per * wide, y = line + Math.floor(index / per) * tall;
      const look = known(value) ? { class: `f-${colour}`, "fill-opacity": (.06 + .94 * value).toFixed(3) } : { class: "empty" };
      cells.push(svgElement("rect", { ...look, x: x + .75, y: y + .75, width: wide - 1.5, height: tall - 1.5, rx: 2 },
        svgElement("title", {}, `${deviceName(device)}: ${field === "rho" ? "ρ" : "θ"} ${number(value)}`)));
    });
    line += Math.max(1, Math.ceil(cluster.devices.length / per)) * Math.max(tall, 13) + 3;
  }
  return svgElement("svg", { viewBox: `0 0 ${width} ${line + 8}`, role: "img", "aria-label": title }, ...cells);
}

function bar(name, value, text, kind) {
  return element("div", { class: "bar" }, element("span", { title: name }, name), meter(value, kind), element("span", {}, text));
}
function drawStragglers(status) {
  const timed = devicesOf(status).filter(device => known(device.seconds) && device.seconds > 0).sort((a, b) => b.seconds - a.seconds);
  show("stragglers", ".bars", ...timed.slice(0, 8).map(device =>
    bar(`${deviceName(device)} · ${edgeName(device.cluster)}`, device.seconds / timed[0].seconds, secondsText(device.seconds), "energy")));
  if (!timed.length) show("stragglers", ".bars", element("p", { class: "empty-state" }, status.history.length ? "The time of each device is not known yet." : "No global round has finished yet."));
  const often = countEach(status.history.map(point => point.straggler).filter(known)).sort((a, b) => b[1] - a[1])[0];
  const name = often ? devicesOf(status).find(device => device.device === often[0]) : null;
  const words = timed.length ? `Time in the last edge round; the median is ${secondsText(timed[Math.floor(timed.length / 2)].seconds)}.` : "";
  show("stragglers", ".note", often ? `${words} Most often the slowest: ${name ? deviceName(name) : `device ${often[0]}`}, in ${plural(often[1], "round")} of ${status.history.length}.` : words);
}
function drawElections(status) {
  const events = status.elections.slice(-40).reverse();
  byId("federation").hidden = status.source !== "edge";
  show("elections", ".events", ...events.map(event => element("li", {}, element("span", { class: "muted" }, clockText(event.unix_seconds)),
    element("span", { class: "muted" }, `term ${event.term}`), element("span", {}, `${event.node || "a node"} ${ELECTION_WORDS[event.kind] ?? event.kind}`))));
  show("elections", ".note", events.length ? "" : "No election yet.");
}
function drawRejected(status) {
  const reasons = Object.entries(status.rejected).sort((a, b) => b[1] - a[1]), most = Math.max(1, ...reasons.map(reason => reason[1]));
  show("rejected", ".bars", ...reasons.map(([reason, count]) => bar(reason, count / most, count.toLocaleString("en"), "over")));
  show("rejected", ".note", reasons.length ? `${plural(reasons.reduce((sum, reason) => sum + reason[1], 0), "upload")} rejected since the start.` : "None since the start.");
}
