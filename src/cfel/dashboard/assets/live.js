// The device table with its order and filter, and the event stream that keeps the page up to date.
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
const initialRows = () => matchMedia("(max-width: 640px)").matches ? 16 : 100;
const view = { status: null, axis: "round", column: 0, down: false, all: false, pending: false, source: null };

const gauge = (value, kind) => known(value)
  ? element("span", { class: "gauge" }, meter(value, kind), element("span", {}, decimal(value, 2))) : "–";

function drawDevices(status) {
  const wanted = byId("filter").value.trim().toLowerCase(), order = COLUMNS[view.column][1], sign = view.down ? -1 : 1;
  const matches = device => [deviceName(device), edgeName(device.cluster), device.state].some(text => text.toLowerCase().includes(wanted));
  const found = devicesOf(status).filter(matches).sort((a, b) => sign * compare(order(a), order(b)));
  const shown = view.all ? found : found.slice(0, initialRows());
  show("devices", "tbody", ...shown.map(device => element("tr", { class: device.device === status.straggler ? "slow" : null },
    ...COLUMNS.map(([label, , cell, kind]) => element("td", { class: kind, "data-label": label }, cell(device))))));
  const size = status.clusters.reduce((sum, cluster) => sum + cluster.size, 0), listed = devicesOf(status).length;
  show("devices", ".note", listed < size ? `Shows ${listed.toLocaleString("en")} of ${plural(size, "device")}: the slowest of each cluster.`
    : wanted ? `${found.length} of ${plural(size, "device")}` : "");
  byId("more").hidden = shown.length === found.length;
  byId("more").textContent = `show all ${found.length.toLocaleString("en")}`;
}
function compare(a, b) {
  if (!known(a) || !known(b)) return known(b) - known(a);
  return a < b ? -1 : a > b ? 1 : 0;
}
function drawTableHead() {
  document.querySelector("#devices thead tr").replaceChildren(...COLUMNS.map(([label], index) => {
    const button = element("button", { type: "button", "data-order": index === view.column ? (view.down ? "▾" : "▴") : null }, label);
    button.addEventListener("click", () => {
      view.down = index === view.column ? !view.down : index > 2;
      view.column = index;
      drawTableHead();
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
  byId("subtitle").textContent = [status.source === "edge" ? `as seen by ${status.node}` : status.node, status.scheme && `scheme ${status.scheme}`,
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
  drawRejected(status);
  drawDevices(status);
  document.documentElement.dataset.drawn = Number(document.documentElement.dataset.drawn ?? 0) + 1;
}
// A snapshot that arrives before the last one was drawn replaces it.
function scheduleDraw() {
  if (!view.pending) requestAnimationFrame(draw);
  view.pending = true;
}

function showConnection(state, text) {
  byId("live").dataset.state = state;
  byId("live-text").textContent = text;
}
function showAge() {
  if (!view.status || view.source?.readyState !== EventSource.OPEN) return;
  if (view.status.phase === "finished") return showConnection("live", "finished");
  showConnection("live", `live · ${agoText(Math.max(0, Date.now() / 1000 - view.status.unix_seconds))}`);
}
function listen() {
  view.source = new EventSource("events");
  view.source.addEventListener("message", message => {
    view.status = JSON.parse(message.data);
    showAge();
    scheduleDraw();
  });
  view.source.addEventListener("error", () => {
    showConnection("lost", view.status ? "no connection, trying again" : "connecting");
    if (view.source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
}

for (const button of document.querySelectorAll("[data-axis]")) button.addEventListener("click", () => {
  view.axis = button.dataset.axis;
  for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", String(other === button));
  scheduleDraw();
});
byId("filter").addEventListener("input", scheduleDraw);
byId("more").addEventListener("click", () => { view.all = true; scheduleDraw(); });
addEventListener("resize", scheduleDraw);
setInterval(showAge, 1000);
drawTableHead();
listen();
