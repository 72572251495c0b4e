// Draws ranks and metrics on canvases. It gets plain data, and never makes markup of it.
"use strict";

const STATES = ["idle", "running", "waiting", "constructing", "starting", "stopping", "stopped", "failed", "ended"];
const LABEL_HEIGHT = 18;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

// A cell with the sign of its state, for those who do not see its colour.
function drawSign(pen, state, x, y, size) {
  pen.fillStyle = colour(state) || colour("idle");
  pen.fillRect(x, y, size, size);
  pen.strokeStyle = pen.fillStyle = state === "ended" ? colour("paper") : state === "idle" ? colour("faint") : "#fff";
  pen.lineWidth = Math.max(1, size / 9);
  const [a, b, mid] = [0.25 * size, 0.75 * size, 0.5 * size];
  const line = (...points) => {
    pen.beginPath();
    points.forEach(([px, py], at) => (at ? pen.lineTo(x + px, y + py) : pen.moveTo(x + px, y + py)));
    pen.stroke();
  };
  const dot = (px, py) => pen.fillRect(x + px - size / 14, y + py - size / 14, size / 7, size / 7);
  if (state === "running") {
    pen.beginPath();
    [[a, a], [b, mid], [a, b]].forEach(([px, py]) => pen.lineTo(x + px, y + py));
    pen.fill();
  } else if (state === "waiting") [a, mid, b].forEach((px) => dot(px, mid));
  else if (state === "ended") { line([a, a], [b, b]); line([a, b], [b, a]); }
  else if (state === "failed") { line([mid, 0.2 * size], [mid, 0.6 * size]); dot(mid, 0.8 * size); }
  else if (state === "stopped") { line([0.35 * size, a], [0.35 * size, b]); line([0.65 * size, a], [0.65 * size, b]); }
  else if (state === "stopping") line([a, a], [mid, b], [b, a]);
  else if (state === "starting" || state === "constructing") { line([mid, a], [mid, b]); line([a, mid], [b, mid]); }
  else dot(mid, mid);
}

// Places of the cells: groups one below the other, each with a label, as large as fits.
function layOut(groups, width, maxHeight) {
  for (const size of [28, 22, 17, 13, 10, 8, 6, 5, 4]) {
    const columns = Math.max(1, Math.floor(width / size));
    let y = 0;
    const cells = [];
    const labels = [];
    for (const [label, members] of groups) {
      labels.push([label, y + LABEL_HEIGHT - 5]);
      y += LABEL_HEIGHT;
      members.forEach((proc, at) => {
        cells.push({ proc, x: (at % columns) * size, y: y + Math.floor(at / columns) * size });
      });
      y += Math.ceil(members.length / columns) * size + 4;
    }
    if (y <= maxHeight || size === 4) return { cells, labels, size, columns, height: Math.max(y, 30) };
  }
}

// The pixels of each state's cell are copied by rows: ten thousand calls that draw would take longer than all of this.
function drawGrid(canvas, plan, chosen) {
  const begun = performance.now();
  const width = canvas.clientWidth;
  canvas.style.height = `${plan.height}px`;
  const pen = sized(canvas, width, plan.height);
  const ratio = window.devicePixelRatio || 1;
  const inner = plan.size - (plan.size > 6 ? 2 : 1);
  const side = Math.max(1, Math.round(inner * ratio));
  const image = pen.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const signs = new Map(STATES.map((state) => [state, signRows(state, side)]));
  for (const cell of plan.cells) {
    const rows = signs.get(cell.proc.state) || signs.get("idle");
    let at = Math.round(cell.y * ratio) * canvas.width + Math.round(cell.x * ratio);
    for (let row = 0; row < side; row++, at += canvas.width) pixels.set(rows[row], at);
  }
  pen.putImageData(image, 0, 0);
  pen.fillStyle = colour("faint");
  pen.font = "12px system-ui, sans-serif";
  for (const [label, y] of plan.labels) pen.fillText(label, 0, y, width);
  if (chosen) {
    pen.strokeStyle = colour("accent");
    pen.lineWidth = 2;
    pen.strokeRect(chosen.x - 0.5, chosen.y - 0.5, inner + 1, inner + 1);
  }
  canvas.dataset.cells = plan.cells.length;
  canvas.dataset.ms = (performance.now() - begun).toFixed(1);
}

function signRows(state, side) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d");
  drawSign(pen, state, 0, 0, side);
  const pixels = new Uint32Array(pen.getImageData(0, 0, side, side).data.buffer);
  return Array.from({ length: side }, (_, row) => pixels.subarray(row * side, (row + 1) * side));
}

function ticks(low, high, most) {
  const raw = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step / 1e6 ? 0 : at);
  return found;
}

function shown(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  return String(Number(value.toPrecision(5)));
}

function timeOf(seconds) {
  return new Date(seconds * 1000).toTimeString().slice(0, 8);
}

// One metric: all its lines, or the band from the lowest to the highest with the median, and what lies apart.
function drawChart(canvas, chart, cursor) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const pen = sized(canvas, width, height);
  const box = { left: 58, top: 8, right: width - 8, bottom: height - 20 };
  const points = chart.lines.flatMap((line) => line[1]).concat(chart.band.flatMap(([x, low, , high]) => [[x, low], [x, high]]));
  if (!points.length) return null;
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [x, y] of points) [x0, x1, y0, y1] = [Math.min(x0, x), Math.max(x1, x), Math.min(y0, y), Math.max(y1, y)];
  if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
  const pad = (y1 - y0) * 0.05 || Math.abs(y1) * 0.1 || 1;
  [y0, y1] = [y0 - pad, y1 + pad];
  const toX = (x) => box.left + ((x - x0) / (x1 - x0)) * (box.right - box.left);
  const toY = (y) => box.bottom - ((y - y0) / (y1 - y0)) * (box.bottom - box.top);
  pen.font = "11px system-ui, sans-serif";
  pen.strokeStyle = colour("rule");
  pen.fillStyle = colour("faint");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  for (const y of ticks(y0, y1, 4)) {
    pen.beginPath();
    pen.moveTo(box.left, toY(y));
    pen.lineTo(box.right, toY(y));
    pen.stroke();
    pen.fillText(shown(y), box.left - 6, toY(y) + 4);
  }
  pen.textAlign = "center";
  for (const x of ticks(x0, x1, 4)) pen.fillText(chart.steps ? shown(x) : timeOf(x), Math.min(toX(x), box.right - 22), height - 5);
  const trace = (some, at) => some.forEach((point, place) => pen[place ? "lineTo" : "moveTo"](toX(point[0]), toY(point[at])));
  if (chart.band.length) {
    pen.fillStyle = colour("accent");
    pen.globalAlpha = 0.2;
    pen.beginPath();
    trace(chart.band, 1);
    [...chart.band].reverse().forEach((point) => pen.lineTo(toX(point[0]), toY(point[3])));
    pen.fill();
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("accent");
    pen.lineWidth = 2;
    pen.beginPath();
    trace(chart.band, 2);
    pen.stroke();
  }
  chart.lines.forEach((line, at) => {
    pen.strokeStyle = lineColour(at, chart);
    pen.lineWidth = 1.5;
    pen.setLineDash(at % 2 ? [6, 3] : []);
    pen.beginPath();
    trace(line[1], 1);
    pen.stroke();
    if (line[1].length === 1) pen.strokeRect(toX(line[1][0][0]) - 2, toY(line[1][0][1]) - 2, 4, 4);
  });
  pen.setLineDash([]);
  const xs = [...new Set((chart.band.length ? chart.band : chart.lines.flatMap((line) => line[1])).map((point) => point[0]))].sort((a, b) => a - b);
  if (cursor !== null && xs.length) {
    const x = toX(xs[Math.min(cursor, xs.length - 1)]);
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, box.top);
    pen.lineTo(x, box.bottom);
    pen.stroke();
  }
  return { xs, toX };
}

function lineColour(at, chart) {
  return chart.band.length ? colour(["failed", "waiting", "stopped"][at % 3]) : `hsl(${(at * 137 + 205) % 360} 65% 50%)`;
}
