// Draws charts over the figures that a page has in tables anyway. Data comes from /api/… of the same host.
//
//   data-chart="series"  data-source data-list data-x (an hour) data-y: a time series
//   data-chart="hazard"  data-source data-panel: rates with their intervals by age band, one line for each level
"use strict";

const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3]];
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
const HEIGHT = 208;
const drawn = [];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function shade(name) {
  const hex = colour(name);
  return /^#[0-9a-f]{6}$/i.test(hex) ? hex + "2e" : hex;
}

function axis(more) {
  const grid = { stroke: colour("--rule"), width: 1 };
  return { stroke: colour("--soft"), grid, ticks: grid, font: "12px system-ui, sans-serif", ...more };
}

function fromZero(chart, low, high) {
  return [0, high > 0 ? high * 1.1 : 1];
}

// A chart of one week would have no width.
function weekAtLeast(chart, low, high) {
  const missing = Math.max(0, 7 * 86400 - (high - low)) / 2;
  return [low - missing, high + missing];
}

function options(figure, more) {
  return {
    width: figure.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    ...more,
  };
}

function series(element, told) {
  const { x, y } = element.dataset;
  const rows = told[element.dataset.list].filter((row) => row[y] !== null && row[x] > 0); // the first bundle has no time
  rows.sort((one, other) => one[x] - other[x]);
  if (rows.length === 0) return null;
  const data = [
    rows.map((row) => row[x] * 3600),
    rows.map((row) => row[y]),
  ];
  const line = { stroke: colour("--level-0"), width: 2.5, fill: shade("--level-0"), points: { show: true, size: 7 } };
  const scales = { x: { time: true, range: weekAtLeast }, y: { range: fromZero } };
  const days = axis({ space: 90, values: (chart, splits) => splits.map(day) });
  const left = axis("whole" in element.dataset ? { size: 46, incrs: WHOLE } : { size: 46 });
  const plot = options(element, { scales, tzDate: utc, series: [{}, line], axes: [days, left] });
  return new uPlot(plot, data, element);
}

function day(seconds) {
  return new Date(seconds * 1e3).toISOString().slice(0, 10);
}

function utc(seconds) {
  return uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC");
}

function hazard(element, told) {
  const curves = told.filter((curve) => curve.panel === element.dataset.panel);
  if (curves.length === 0) return null;
  const labels = curves[0].bands.map((band) => band.label);
  const data = [[...labels.map((_, place) => place), labels.length]];
  const lines = [{}];
  const bands = [];
  curves.forEach((curve) => {
    const level = (curve.level || 0) % DASHES.length;
    const known = (label) => curve.bands.find((band) => band.label === label && band.known) || {};
    const values = (field) => held(labels.map((label) => known(label)[field]));
    const paths = uPlot.paths.stepped({ align: 1 });
    const points = { show: false };
    data.push(values("high"), values("low"), values("rate"));
    lines.push({ paths, points, width: 0 }, { paths, points, width: 0 });
    lines.push({ paths, points, width: 2.5, stroke: colour("--level-" + level), dash: DASHES[level] });
    bands.push({ series: [lines.length - 3, lines.length - 2], fill: shade("--level-" + level) });
  });
  const ages = axis({
    splits: () => labels.map((_, place) => place + 0.5),
    values: () => labels,
    grid: { show: false },
    ticks: { show: false },
  });
  const scales = { x: { time: false, range: [0, labels.length] }, y: { distr: 3, range: decades(told) } };
  const left = axis({ size: 52, values: (chart, splits) => splits.map(decade) });
  const plot = options(element, { scales, series: lines, bands, axes: [ages, left] });
  return new uPlot(plot, data, element);
}

// The decades of all known hazards, so that panels can be compared.
function decades(curves) {
  const known = curves.flatMap((curve) => curve.bands.filter((band) => band.known));
  const ends = known.flatMap((band) => [Math.log10(band.low), Math.log10(band.high)]);
  return ends.length ? [10 ** Math.floor(Math.min(...ends)), 10 ** Math.ceil(Math.max(...ends))] : [0.1, 10];
}

function decade(value) {
  return Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6) ? String(Number(value.toPrecision(3))) : "";
}

// A step holds its value to the end of its band.
function held(values) {
  const known = values.map((value) => (value === undefined ? null : value));
  return [...known, known[known.length - 1]];
}

const KINDS = { series, hazard };

async function draw() {
  for (const chart of drawn.splice(0)) chart.destroy();
  const answers = new Map();
  for (const element of document.querySelectorAll("[data-chart]")) {
    const source = element.dataset.source;
    if (!answers.has(source)) answers.set(source, (await fetch(source)).json());
    element.hidden = false;
    element.classList.add("drawn");
    const chart = KINDS[element.dataset.chart](element, await answers.get(source));
    if (chart) drawn.push(chart);
  }
  document.documentElement.dataset.charts = "drawn";
}

function fit() {
  for (const chart of drawn) chart.setSize({ width: chart.root.parentElement.clientWidth, height: HEIGHT });
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("resize", fit);
