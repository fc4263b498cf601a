// The device table with its order and filter, and the stream that keeps everything live.
const COLUMNS = [
  ["device", device => device.device, device => deviceName(device), "name"],
  ["edge server", device => device.cluster.cluster, device => edgeName(device.cluster), "where"],
  ["state", device => device.state, device => element("span", { class: "state" }, element("i", { class: `b-${COLOUR_OF[device.state]}` }), device.state)],
  ["ρ", device => device.rho, device => gauge(device.rho, "")],
  ["θ", device => device.theta, device => gauge(device.theta, "energy")],
  ["μ s/step", device => device.mu, device => number(device.mu)],
  ["ν s/upload", device => device.nu, device => number(device.nu)],
  ["last s", device => device.seconds, device => number(device.seconds)],
  ["last J", device => device.joules, device => number(device.joules)],
];
const FEW = () => matchMedia("(max-width: 640px)").matches ? 16 : 100;
const view = { status: null, axis: "round", column: 0, down: false, all: false, pending: false, source: null };

const gauge = (value, kind) => known(value)
  ? element("span", { class: "gauge" }, meter(value, kind), element("span", {}, decimal(value, 2))) : "–";

function drawDevices(status) {
  const wanted = byId("filter").value.trim().toLowerCase(), order = COLUMNS[view.column][1], sign = view.down ? -1 : 1;
  const matches = device => [deviceName(device), edgeName(device.cluster), device.state].some(text => text.toLowerCase().includes(wanted));
  const found = devicesOf(status).filter(matches).sort((a, b) => sign * compared(order(a), order(b)));
  const shown = view.all ? found : found.slice(0, FEW());
  show("devices", "tbody", ...shown.map(device => element("tr", { class: device.device === status.straggler ? "slow" : null },
    ...COLUMNS.map(([label, , cell, kind]) => element("td", { class: kind, "data-label": label }, cell(device))))));
  const size = status.clusters.reduce((sum, cluster) => sum + cluster.size, 0), listed = devicesOf(status).length;
  show("devices", ".note", listed < size ? `The snapshot lists ${listed.toLocaleString("en")} of ${plural(size, "device")}: the slowest of each cluster.`
    : wanted ? `${found.length} of ${plural(size, "device")}` : "");
  byId("more").hidden = shown.length === found.length;
  byId("more").textContent = `show all ${found.length.toLocaleString("en")}`;
}
function compared(a, b) {
  if (!known(a) || !known(b)) return known(b) - known(a);
  return a < b ? -1 : a > b ? 1 : 0;
}
function drawHead() {
  document.querySelector("#devices thead tr").replaceChildren(...COLUMNS.map(([label], index) => {
    const button = element("button", { type: "button", "data-order": index === view.column ? (view.down ? "▾" : "▴") : null }, label);
    button.addEventListener("click", () => {
      view.down = index === view.column ? !view.down : index > 2;
      view.column = index;
      drawHead();
      draw();
    });
    return element("th", { scope: "col" }, button);
  }));
}

function draw() {
  const status = view.status;
  view.pending = false;
  if (!status) return;
  const size = status.clusters.reduce((sum, cluster) => sum + cluster.size, 0);
  document.title = `${status.round}${status.rounds ? `/${status.rounds}` : ""} · ${status.name || status.node} · cfel`;
  byId("name").textContent = status.name || status.node;
  byId("subtitle").textContent = [status.source === "edge" ? `seen from ${status.node}` : status.node, status.scheme && `scheme ${status.scheme}`,
    `${plural(size, "device")} at ${plural(status.clusters.length, "edge server")}`,
    status.source === "edge" ? `conditions ${status.conditions === "measured" ? "measured" : "from the model"}` : "virtual time"].filter(Boolean).join(" · ");
  document.body.dataset.source = status.source;
  byId("problem").hidden = !status.problem;
  byId("problem").textContent = status.problem;
  drawTiles(status);
  drawAccuracy(status, view.axis);
  drawBudgets(status);
  drawBackhaul(status);
  drawHeat(status);
  drawStragglers(status);
  drawElections(status);
  drawRefused(status);
  drawDevices(status);
  document.documentElement.dataset.drawn = Number(document.documentElement.dataset.drawn ?? 0) + 1;
}
// Snapshots that arrive while one is waiting to be drawn take its place.
function soon() {
  if (!view.pending) requestAnimationFrame(draw);
  view.pending = true;
}

function say(state, text) {
  byId("live").dataset.state = state;
  byId("live-text").textContent = text;
}
function tell() {
  if (!view.status || view.source?.readyState !== EventSource.OPEN) return;
  if (view.status.phase === "finished") return say("live", "finished");
  say("live", `live · ${agoText(Math.max(0, Date.now() / 1000 - view.status.unix_seconds))}`);
}
function listen() {
  view.source = new EventSource("events");
  view.source.addEventListener("message", message => {
    view.status = JSON.parse(message.data);
    tell();
    soon();
  });
  view.source.addEventListener("error", () => {
    say("lost", view.status ? "no connection, trying again" : "connecting");
    if (view.source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
}

for (const button of document.querySelectorAll("[data-axis]")) button.addEventListener("click", () => {
  view.axis = button.dataset.axis;
  for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", String(other === button));
  soon();
});
byId("filter").addEventListener("input", soon);
byId("more").addEventListener("click", () => { view.all = true; soon(); });
addEventListener("resize", soon);
setInterval(tell, 1000);
drawHead();
listen();
