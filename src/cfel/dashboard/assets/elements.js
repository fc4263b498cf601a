"use strict";
// Building blocks. Text from the network becomes a text node or an attribute, never markup.
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const byId = id => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes))
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}
const element = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svgElement = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);

const known = value => value !== null && value !== undefined;
// At least three significant digits: 0.0663, 56.1, 2,199.
const places = value => !value ? 2 : Math.max(0, Math.min(8, 2 - Math.floor(Math.log10(Math.abs(value)))));
const decimal = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const number = value => known(value) ? decimal(value, places(value)) : "–";
const share = value => known(value) ? `${decimal(100 * value, 1)}\u00a0%` : "–";
// The task's metric with its unit; "%" is a share.
const quality = (metric, value) => !known(value) ? "–" : metric.unit === "%" ? share(value)
  : `${number(value)}${metric.unit ? `\u00a0${metric.unit}` : ""}`;
const reaches = (metric, value, target) => metric.better === "smaller" ? value <= target : value >= target;
const bestOf = (metric, values) => metric.better === "smaller" ? Math.min(...values) : Math.max(...values);
const capitalise = text => text.charAt(0).toUpperCase() + text.slice(1);
const percent = value => `${Math.round(100 * value)}\u00a0%`;
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function joulesText(value) {
  for (const [size, unit] of [[1e6, "MJ"], [1e3, "kJ"]])
    if (Math.abs(value) >= 10 * size) return `${number(value / size)}\u00a0${unit}`;
  return `${number(value)}\u00a0J`;
}
function secondsText(value) {
  if (value >= 1e5) return `${number(value / 3600)}\u00a0h`;
  return `${number(value)}\u00a0s`;
}
const clockText = unixSeconds => new Date(1000 * unixSeconds).toLocaleTimeString("en-GB");
function agoText(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return `${Math.floor(seconds / 3600)} h ago`;
}

// A bar from 0 to 1; the optional mark shows where an even pace would be.
function meter(value, kind = "", mark = null) {
  const bar = element("i"), box = element("div", { class: `meter ${kind} ${value > 1 ? "over" : ""}` }, bar);
  bar.style.width = `${100 * Math.min(1, Math.max(0, value))}%`;
  if (known(mark)) {
    const tick = element("b");
    tick.style.left = `calc(${100 * Math.min(1, mark)}% - 1px)`;
    box.append(tick);
  }
  return box;
}
const legend = entries => element("ul", { class: "legend" }, ...entries.map(([colour, text]) =>
  element("li", {}, element("i", { class: `b-${colour}` }), text)));
const show = (id, part, ...children) => document.querySelector(`#${id} ${part}`).replaceChildren(...children);
