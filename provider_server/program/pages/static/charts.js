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

// The dates of the data, with room for the points at both ends.
function withRoom(chart, low, high) {
  const room = (high - low) * 0.04;
  return [low - room, high + room];
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
  if (rows.length < 2) return null; // one point is no chart
  const data = [
    rows.map((row) => row[x] * 3600),
    rows.map((row) => row[y]),
  ];
  const line = { stroke: colour("--level-0"), width: 2.5, fill: shade("--level-0"), points: { show: true, size: 7 } };
  const scales = { x: { time: true, range: withRoom }, y: { range: fromZero } };
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
  const [low, high] = extent(told);
  const ages = axis({
    size: 30,
    splits: () => labels.map((_, place) => place + 0.5),
    values: () => labels,
    grid: { show: false },
    ticks: { show: false },
  });
  const scales = { x: { time: false, range: [0, labels.length] }, y: { distr: 3, range: [low, high] } };
  const all = (chart, splits) => splits; // uPlot would name decades alone
  const left = axis({ size: 52, filter: all, splits: () => ticks(low, high), values: (chart, splits) => splits.map(String) });
  const plot = options(element, { scales, series: lines, bands, axes: [ages, left] });
  return new uPlot(plot, data, element);
}

// From the least to the highest bound of all known hazards: panels can be compared, and none is wider than the data.
function extent(curves) {
  const known = curves.flatMap((curve) => curve.bands.filter((band) => band.known));
  if (known.length === 0) return [0.1, 10];
  return [Math.min(...known.map((band) => band.low)) / 1.1, Math.max(...known.map((band) => band.high)) * 1.1];
}

// 1, 2 and 5 of every decade between two ends; every decade alone where that would be many.
function ticks(low, high) {
  const steps = high / low > 1000 ? [1] : [1, 2, 5];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
    for (const step of steps) found.push(Number((step * 10 ** power).toPrecision(2)));
  return found.filter((value) => value >= low && value <= high);
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
    else element.hidden = true;
  }
  document.documentElement.dataset.charts = "drawn";
}

function fit() {
  for (const chart of drawn) chart.setSize({ width: chart.root.parentElement.clientWidth, height: HEIGHT });
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("resize", fit);
