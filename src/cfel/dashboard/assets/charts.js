// Line charts. Sizes are real pixels, so that text stays readable on a phone.
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= rough);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
    found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return found;
}
const compact = value => value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 2 });

function lineChart(box, { series, xHigh, xName, yLow, yHigh, yText, marks = [] }) {
  const width = Math.max(240, box.clientWidth), height = Math.round(Math.min(330, Math.max(210, width * .78)));
  const left = 44, right = width - 12, top = 10, bottom = height - 36;
  const points = series.flatMap(line => line.points);
  const end = Math.max(xHigh ?? 0, ...points.map(point => point[0]), 1e-9);
  const x = value => left + (right - left) * value / end;
  const y = value => bottom - (bottom - top) * (value - yLow) / (yHigh - yLow || 1);
  const chart = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${xName}, ${points.length} points` });
  for (const value of ticks(yLow, yHigh, 4)) chart.append(
    svgElement("line", { class: "rule", x1: left, x2: right, y1: y(value), y2: y(value) }),
    svgElement("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, yText(value)));
  for (const value of ticks(0, end, width < 420 ? 4 : 6)) chart.append(
    svgElement("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, compact(value)));
  chart.append(
    svgElement("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    svgElement("text", { x: right, y: height - 3, "text-anchor": "end" }, xName));
  for (const mark of marks) if (mark.value >= yLow && mark.value <= yHigh) chart.append(
    svgElement("line", { class: "curve thin dashed c-good", x1: left, x2: right, y1: y(mark.value), y2: y(mark.value) }),
    svgElement("text", { class: "f-good", x: left + 4, y: y(mark.value) - 5 }, mark.text));
  for (const line of series) {
    const path = line.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");
    if (line.points.length > 1)
      chart.append(svgElement("polyline", { class: `curve c-${line.colour} ${line.look ?? ""}`, points: path }));
    const last = line.points.at(-1);
    if (last && !line.plain) chart.append(svgElement("circle", { class: `f-${line.colour}`, cx: x(last[0]), cy: y(last[1]), r: 4 }));
  }
  box.replaceChildren(chart);
  const named = series.filter(line => line.name);
  if (named.length > 1) box.append(legend(named.map(line => [line.colour, line.name])));
}

const AXES = {
  round: ["global round", point => point.round],
  seconds: ["seconds, realised", point => point.seconds],
  joules: ["joules, realised", point => point.joules],
};
const SPARE = ["energy", "good", "violet", "warn", "bad", "grey"];

function drawAccuracy(status, axis) {
  const [name, place] = AXES[axis];
  const evaluated = history => history.filter(point => known(point.accuracy)).map(point => [place(point), point.accuracy]);
  const own = { name: status.scheme || status.node, colour: "time", points: evaluated(status.history) };
  const others = status.curves.map((curve, index) =>
    ({ name: curve.name, colour: SPARE[index % SPARE.length], look: "thin", points: evaluated(curve.history) }));
  const series = [...others, own].filter(line => line.points.length), box = document.querySelector("#accuracy .chart");
  if (!series.length) return box.replaceChildren(element("p", { class: "empty-state" }, "No round has been evaluated yet."));
  const values = series.flatMap(line => line.points.map(point => point[1]));
  if (known(status.target)) values.push(status.target);
  const ordinary = status.metric.unit === "%", span = Math.max(...values) - Math.min(...values);
  const yLow = ordinary ? Math.max(0, Math.min(...values) - .08 * span) : Math.min(...values);
  const yHigh = ordinary ? Math.min(1, Math.max(...values) + .08 * span + .001) : Math.max(...values) + .001;
  const loss = status.history.at(-1)?.loss;
  document.querySelector("#accuracy h2").textContent = capitalise(status.metric.name) + (status.metric.unit && !ordinary ? `, ${status.metric.unit}` : "");
  show("accuracy", ".note", known(loss) ? `Training loss ${decimal(loss, 3)} in round ${status.history.at(-1).round}.` : "");
  lineChart(box, {
    series, xName: name, yLow, yHigh, xHigh: axis === "round" && !others.length ? status.rounds : null,
    yText: ordinary ? percent : compact,
    marks: known(status.target) ? [{ value: status.target, text: `target ${quality(status.metric, status.target)}` }] : [],
  });
}

// The remaining share of each budget, against an even pace over all rounds.
function drawBudgets(status) {
  const box = document.querySelector("#budgets .chart"), series = [], words = [];
  const total = Math.max(status.rounds ?? 0, status.history.at(-1)?.round ?? 0, 1);
  for (const [name, field, colour] of [["time", "seconds", "time"], ["energy", "joules", "energy"]]) {
    const budget = status[`${field}_budget`];
    if (!known(budget)) continue;
    series.push({ name, colour, points: [[0, 1], ...status.history.map(point => [point.round, 1 - point[field] / budget])] });
    words.push(describeRest(status, name, field, budget));
  }
  show("budgets", ".note", words.filter(Boolean).join(" "));
  if (!series.length) return box.replaceChildren(element("p", { class: "empty-state" }, "This experiment has no budget."));
  const least = Math.min(0, ...series.flatMap(line => line.points.map(point => point[1])));
  series.unshift({ name: "even pace", colour: "grey", look: "thin dashed", plain: true, points: [[0, 1], [total, 0]] });
  lineChart(box, { series, xHigh: total, xName: "global round", yLow: least, yHigh: 1, yText: percent });
}

function describeRest(status, name, field, budget) {
  const recent = status.history.slice(-6), first = recent[0], last = recent.at(-1);
  if (recent.length < 2 || last[field] <= first[field]) return "";
  const each = (last[field] - first[field]) / (last.round - first.round), end = last.round + (budget - last[field]) / each;
  const word = name[0].toUpperCase() + name.slice(1);
  if (last[field] >= budget) return `${word} is used up.`;
  return status.rounds && end >= status.rounds
    ? `${word} lasts to the end at the current pace.`
    : `${word} lasts to about round ${Math.floor(end)}${status.rounds ? ` of ${status.rounds}` : ""} at the current pace.`;
}
