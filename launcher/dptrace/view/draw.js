/*
 * draw.js - paints: tracks, ruler, arrows of the selected bucket, heat map. It reads the state
 * that view.js changes and changes nothing itself.
 */
const GUTTER = 200, RULER = 26, STRIP = 17, GAP = 5, HEAD = 24, COUNTER_HEIGHT = 34;
const FONT = '11px Inter, "Segoe UI", system-ui, "DejaVu Sans", sans-serif';
const LEVELS = 7;

const THEMES = {
  light: { back: '#fbfbf9', band: '#f4f4f0', text: '#23262b', faint: '#74787f', line: '#e3e2db',
    head: '#ebebe5', ink: '#15171a', select: '#111', arrow: '#c2410c', cursor: '#2f6fb3' },
  dark: { back: '#16181c', band: '#1a1d21', text: '#dcdfe4', faint: '#8b919b', line: '#292d33',
    head: '#22262c', ink: '#101215', select: '#fff', arrow: '#ff9d5c', cursor: '#6ea8e0' },
};
/* By kind; spans take theirs by name, on a device as in the thread that queued them. */
const COLORS = { 1: '#aab4c2', 3: '#3f9c94', 4: '#e3b05f', 5: '#c3afe0', 6: '#9673c4', 7: '#86bb7c',
  8: '#5b93d3', 9: '#54b0ac', 10: '#d9706b', 11: '#8fa7d6', 12: '#7d97b8', 14: '#c93a3a', 15: '#bba8d3' };
const SPAN_COLORS = ['#93b7d9', '#a5c79b', '#d9b38c', '#c9a4bf', '#9fc5c2', '#d6c787', '#b3aed6', '#d8a29b'];
const PART_COLORS = { compute: '#93b7d9', skew: '#d9706b', 'exposed wire': '#5b93d3', 'pack/unpack': '#86bb7c',
  negotiation: '#9673c4', gaps: '#d6c787', unattributed: '#a9adb5' };
const LEGEND = [[1, 'step'], [3, 'submit'], [4, 'wait in dp'], [5, 'negotiation'], [6, 'launch'], [7, 'pack'],
  [8, 'wire'], [9, 'unpack'], [10, 'waiting for a rank']];

function colorIndex(state, i) {
  const kind = state.e.kind[i];
  if (isStreamWait(state.e, i)) return KIND.WAIT;
  return kind === KIND.SPAN || kind === KIND.COMPUTE ? 16 + state.spanColor[state.e.name[i]] : kind;
}

/* Colours by index and level: level LEVELS is full, lower ones fade into the background. */
function makePalette(theme, dim) {
  const parse = hex => [1, 3, 5].map(i => parseInt(hex.substr(i, 2), 16));
  const back = parse(theme.back);
  const base = [];
  for (let k = 0; k < 16; k++) base.push(COLORS[k] || '#999999');
  base.push(...SPAN_COLORS);
  return base.map(hex => {
    const color = parse(hex), shades = [];
    for (let level = 0; level <= LEVELS; level++) {
      let part = 0.4 + 0.6 * level / LEVELS;
      if (dim) part *= 0.22;
      shades.push('rgb(' + color.map((c, k) => Math.round(back[k] + (c - back[k]) * part)).join(',') + ')');
    }
    return shades;
  });
}

/* Rows from top to bottom with their place; ranks that are folded keep only their head. */
function layout(state) {
  let y = 0, rank = -1;
  state.places = [];
  state.heads = [];
  for (const row of state.rows) {
    if (row.rank !== rank) {
      rank = row.rank;
      if (state.heads.length > 0) y += 6;
      state.heads.push({ rank, y });
      y += HEAD;
    }
    row.y = y;
    row.height = row.type === CLASS_COUNTER ? COUNTER_HEIGHT : row.strips.length * STRIP + 1;
    row.hidden = state.folded.has(rank);
    if (!row.hidden) {
      state.places.push(row);
      y += row.height + GAP;
    }
  }
  state.contentHeight = y + 20;
}

function timeToX(state, time) { return GUTTER + (time - state.from) * state.scale; }
function xToTime(state, x) { return state.from + (x - GUTTER) / state.scale; }
function rowTop(state, row) { return RULER + row.y - state.scroll; }

/* ---- Strips ---------------------------------------------------------------------------- */

/* Paints one strip. Wide events become boxes with names; runs of narrow ones become columns whose
 * strength is the busy share of that column. */
function drawStrip(state, g, strip, y, palette, withText) {
  const e = state.e, index = strip.index, width = state.width;
  const column = 2;
  let at = firstEnding(e, index, state.from);
  let runX = 0, runEnd = -1, runColor = '';
  const flush = () => {
    if (runEnd > runX) { g.fillStyle = runColor; g.fillRect(runX, y, runEnd - runX, STRIP - 2); }
    runEnd = -1;
  };
  while (at < index.length) {
    const i = index[at];
    let x = timeToX(state, e.start[i]);
    if (x >= width) break;
    const w = e.dur[i] * state.scale;
    if (w >= column + 1) {
      flush();
      const left = Math.max(x, GUTTER), right = Math.min(x + w, width);
      g.fillStyle = palette[colorIndex(state, i)][LEVELS];
      g.fillRect(left, y, Math.max(right - left - (w > 4 ? 1 : 0), 1), STRIP - 2);
      if (e.open[i]) drawUnfinished(g, right, y);
      if (withText && right - left > 26) state.texts.push(i, left, right, y);
      at++;
      continue;
    }
    /* everything that begins in this column at once */
    x = Math.max(x, GUTTER);
    const from = GUTTER + Math.floor((x - GUTTER) / column) * column;
    let next = at + 1;
    if (next < index.length && timeToX(state, e.start[index[next]]) < from + column)
      next = firstStarting(e, index, xToTime(state, from + column), next);
    /* a wide one among them is drawn by itself in the next round */
    const last = index[next - 1];
    if (next - 1 > at && e.dur[last] * state.scale >= column + 1) next--;
    const share = (strip.busy[next] - strip.busy[at]) * state.scale / column;
    const level = Math.max(1, Math.min(LEVELS, Math.ceil(share * LEVELS)));
    const color = palette[colorIndex(state, longest(e, index, at, next))][level];
    if (runEnd !== from || color !== runColor) { flush(); runX = from; runColor = color; }
    runEnd = from + column;
    at = next;
  }
  flush();
}

/* The event that gives a column its colour is the longest of a sample, so that a periodic job does not flicker. */
function longest(e, index, from, until) {
  const stride = Math.max(1, (until - from) >> 4);
  let best = index[from];
  for (let k = from + stride; k < until; k += stride) if (e.dur[index[k]] > e.dur[best]) best = index[k];
  return best;
}

function drawUnfinished(g, right, y) {
  g.fillStyle = '#c93a3a';
  g.fillRect(right - 3, y, 3, STRIP - 2);
}

function drawTexts(state, g, theme) {
  const e = state.e;
  g.font = FONT;
  g.textBaseline = 'middle';
  g.fillStyle = theme.ink;
  for (let k = 0; k < state.texts.length; k += 4) {
    const i = state.texts[k], left = state.texts[k + 1], room = state.texts[k + 2] - left - 8;
    let text = eventName(e, state.meta, i);
    if (e.kind[i] === KIND.WIRE && room > 170 && e.dur[i] > 0)
      text += '  ' + formatBytes(e.bytes[i]) + '  ' + (e.bytes[i] / e.dur[i]).toFixed(2) + ' GB/s';
    else if (e.kind[i] === KIND.STEP && room > 120) text += '  ' + formatTime(e.dur[i], 2);
    else if (e.kind[i] === KIND.STEP && room < 48) text = String(e.id[i]);
    const fits = Math.floor((room + 3) / 6.1);
    if (fits < 2) continue;
    if (text.length > fits) text = text.slice(0, fits - 1) + '\u2026';
    g.fillText(text, left + 4, state.texts[k + 3] + (STRIP - 2) / 2 + 0.5);
  }
  state.texts.length = 0;
}

/* The outline of a counter from left to right, as [x, y] with y 0 at value 0 and 1 at the row's
 * maximum. A counter keeps its value until the next sample, so all lines are level or upright. */
function counterOutline(state, row) {
  const e = state.e, index = row.strips[0].index, points = [[GUTTER, 0]];
  let at = Math.max(0, firstStarting(e, index, state.from) - 1), level = 0;
  const stepTo = (x, value) => {
    points.push([x, level]);
    level = value / row.max;
    points.push([x, level]);
  };
  while (at < index.length) {
    const x = Math.min(Math.max(timeToX(state, e.start[index[at]]), GUTTER), state.width);
    const limit = xToTime(state, x + 1);
    let next = at + 1, peak = e.id[index[at]];
    if (next < index.length && e.start[index[next]] < limit) {
      /* many in one pixel: the highest of a sample, as peaks must not vanish, then the last */
      next = firstStarting(e, index, limit, next);
      const stride = Math.max(1, Math.floor((next - at) / 32));
      for (let k = at; k < next; k += stride) peak = Math.max(peak, e.id[index[k]]);
    }
    stepTo(x, peak);
    stepTo(x, e.id[index[next - 1]]);
    at = next;
    if (x >= state.width) break;
  }
  points.push([state.width, level], [state.width, 0]);
  return points;
}

function drawCounter(state, g, row, y, theme) {
  if (!row.strips[0] || row.max === 0) return;
  const base = y + COUNTER_HEIGHT - 3, room = COUNTER_HEIGHT - 8;
  g.beginPath();
  for (const [x, level] of counterOutline(state, row)) g.lineTo(x, base - room * level);
  g.closePath();
  g.fillStyle = state.palette[KIND.COUNTER][2];
  g.fill();
  g.strokeStyle = state.palette[KIND.COUNTER][LEVELS];
  g.lineWidth = 1;
  g.stroke();
  g.fillStyle = theme.faint;
  g.font = FONT;
  g.textAlign = 'right';
  g.fillText('max ' + (row.label.includes('bytes') ? formatBytes(row.max) : row.max), GUTTER - 8, y + 24);
  g.textAlign = 'left';
}

/* ---- Ruler ---------------------------------------------------------------------------- */

function tickStep(state) {
  const wanted = 110 / state.scale, power = Math.pow(10, Math.floor(Math.log10(wanted)));
  for (const factor of [1, 2, 5, 10]) if (factor * power >= wanted) return Math.max(1, factor * power);
  return 10 * power;
}

function drawGrid(state, g, theme) {
  const step = tickStep(state);
  g.fillStyle = theme.line;
  for (let t = Math.ceil(state.from / step) * step; ; t += step) {
    const x = Math.round(timeToX(state, t));
    if (x > state.width) break;
    g.fillRect(x, RULER, 1, state.height - RULER);
  }
}

function drawRuler(state, g, theme) {
  const step = tickStep(state), mapHeight = 6, track = state.width - GUTTER;
  g.fillStyle = theme.head;
  g.fillRect(0, 0, state.width, RULER);
  /* a thin map of the whole, with the part in sight */
  g.fillStyle = theme.line;
  g.fillRect(GUTTER, 0, track, mapHeight);
  g.fillStyle = theme.cursor;
  const left = GUTTER + track * Math.max(0, state.from) / state.end;
  const part = Math.max(3, track * Math.min(1, track / state.scale / state.end));
  g.fillRect(left, 0, Math.min(part, state.width - left), mapHeight);
  g.font = FONT;
  g.textBaseline = 'middle';
  const digits = step >= 1e6 ? 0 : step >= 1e3 ? 3 : 6;
  for (let t = Math.ceil(state.from / step) * step; ; t += step) {
    const x = timeToX(state, t);
    if (x > state.width) break;
    g.fillStyle = theme.faint;
    g.fillText((t / 1e6).toFixed(digits) + ' ms', x + 4, 16);
    g.fillRect(Math.round(x), mapHeight, 1, RULER - mapHeight);
  }
  g.fillStyle = theme.head;
  g.fillRect(0, 0, GUTTER, RULER);
  g.fillStyle = theme.text;
  g.fillText(formatTime(track / state.scale, 2) + ' in view', 10, 14);
}

/* ---- Gutter and heads ----------------------------------------------------------------- */

function drawHeads(state, g, theme) {
  g.textBaseline = 'middle';
  for (const head of state.heads) {
    const y = RULER + head.y - state.scroll;
    if (y > state.height || y + HEAD < RULER) continue;
    const rank = state.meta.ranks[head.rank];
    g.fillStyle = theme.head;
    g.fillRect(0, y, state.width, HEAD - 3);
    g.fillStyle = theme.text;
    g.font = 'bold ' + FONT;
    const title = (state.folded.has(head.rank) ? '\u25b8 ' : '\u25be ') + 'rank ' + rank.rank;
    g.fillText(title, 8, y + HEAD / 2 - 1);
    const used = g.measureText(title).width;
    g.font = FONT;
    g.fillStyle = theme.faint;
    let note = rank.host;
    const lost = lossText(rank);
    if (lost !== '') note += '  \u00b7  ' + lost;
    if (!rank.closed) note += '  \u00b7  not closed: killed, or still running';
    g.fillText(note, 18 + used, y + HEAD / 2 - 1);
  }
}

function drawGutter(state, g, theme) {
  g.font = FONT;
  g.textBaseline = 'middle';
  for (const row of state.places) {
    const y = rowTop(state, row);
    if (y > state.height || y + row.height < RULER) continue;
    g.fillStyle = theme.back;
    g.fillRect(0, y - 2, GUTTER, row.height + GAP);
    g.fillStyle = theme.faint;
    let label = row.label;
    if (label.length > 29) label = label.slice(0, 28) + '\u2026';
    g.fillText(label, 22, y + STRIP / 2);
    if (row.type === CLASS_COUNTER) drawCounter(state, g, row, y, theme);
  }
  g.fillStyle = theme.line;
  g.fillRect(GUTTER - 1, RULER, 1, state.height - RULER);
}

/* ---- Selection and arrows ------------------------------------------------------------- */

function eventBox(state, i) {
  const row = state.rows[state.e.row[i]];
  if (row.hidden) return null;
  const x = timeToX(state, state.e.start[i]);
  return { x, y: rowTop(state, row) + Math.min(state.e.depth[i], row.strips.length - 1) * STRIP,
    w: Math.max(state.e.dur[i] * state.scale, 2) };
}

function drawArrow(state, g, from, to, dashed) {
  const a = eventBox(state, from), b = eventBox(state, to);
  if (!a || !b) return;
  const forward = state.e.kind[to] !== KIND.WAIT;
  const x1 = dashed ? a.x : a.x + a.w, y1 = a.y + STRIP / 2 - 1;
  const x2 = forward ? b.x : b.x + b.w, y2 = b.y + STRIP / 2 - 1;
  if (Math.max(x1, x2) < GUTTER - 50 || Math.min(x1, x2) > state.width + 50) return;
  const bend = Math.min(60, Math.max(14, Math.abs(x2 - x1) / 2));
  g.setLineDash(dashed ? [4, 3] : []);
  g.beginPath();
  g.moveTo(x1, y1);
  g.bezierCurveTo(x1 + (dashed ? -bend / 2 : bend), y1, x2 - (forward ? bend : -bend), y2, x2, y2);
  g.stroke();
  g.setLineDash([]);
  const way = forward ? 1 : -1;
  g.beginPath();
  g.moveTo(x2, y2);
  g.lineTo(x2 - 6 * way, y2 - 3.5);
  g.lineTo(x2 - 6 * way, y2 + 3.5);
  g.closePath();
  g.fill();
}

/* The first, the last and some between: a bucket may hold hundreds of tensors. */
function sample(list, count) {
  if (list.length <= count) return list;
  return Array.from({ length: count }, (unused, k) => list[Math.round(k * (list.length - 1) / (count - 1))]);
}

/* submit > pack > wire > unpack > wait inside each rank, and wire to wire across ranks. */
function drawFlows(state, g, theme) {
  if (!state.flow) return;
  g.strokeStyle = g.fillStyle = theme.arrow;
  g.lineWidth = 1.3;
  let lastWire = -1;
  for (const [, chain] of state.flow) {
    const head = chain.pack.concat(chain.wire)[0];
    if (head !== undefined) for (const i of sample(chain.submit, 8)) drawArrow(state, g, i, head, false);
    const body = [chain.pack, chain.wire, chain.unpack].filter(list => list.length > 0);
    for (let k = 1; k < body.length; k++)
      drawArrow(state, g, body[k - 1][body[k - 1].length - 1], body[k][0], false);
    if (body.length > 0 && chain.wait.length > 0) {
      const tail = body[body.length - 1];
      for (const i of sample(chain.wait, 4)) drawArrow(state, g, tail[tail.length - 1], i, false);
    }
    if (chain.wire.length > 0) {
      if (lastWire >= 0) drawArrow(state, g, lastWire, chain.wire[0], true);
      lastWire = chain.wire[0];
    }
  }
  g.strokeStyle = theme.select;
  for (const [, chain] of state.flow)
    for (const list of [chain.submit, chain.pack, chain.wire, chain.unpack, chain.wait])
      for (const i of list) if (state.e.dur[i] * state.scale > 5) outline(state, g, i, 1);
}

function outline(state, g, i, width) {
  const box = eventBox(state, i);
  if (!box) return;
  const left = Math.max(box.x, GUTTER), right = Math.min(box.x + box.w, state.width);
  if (right < left) return;
  g.lineWidth = width;
  g.strokeRect(left - 0.5, box.y - 0.5, Math.max(right - left, 2), STRIP - 1);
}

/* ---- The whole ------------------------------------------------------------------------ */

function drawTracks(state) {
  const g = state.g, theme = THEMES[state.theme];
  g.setTransform(state.ratio, 0, 0, state.ratio, 0, 0);
  g.fillStyle = theme.back;
  g.fillRect(0, 0, state.width, state.height);
  drawGrid(state, g, theme);
  const palette = state.found ? state.dimPalette : state.palette;
  for (const row of state.places) {
    const y = rowTop(state, row);
    if (y > state.height || y + row.height < RULER || row.type === CLASS_COUNTER) continue;
    row.strips.forEach((strip, depth) =>
      drawStrip(state, g, strip, y + depth * STRIP, palette, !state.found));
    if (state.found) state.found.strips[row.number].forEach((strip, depth) =>
      drawStrip(state, g, strip, y + depth * STRIP, state.palette, true));
  }
  drawTexts(state, g, theme);
  g.save();
  g.beginPath();
  g.rect(GUTTER, RULER, state.width - GUTTER, state.height - RULER);
  g.clip();
  drawFlows(state, g, theme);
  if (state.selected >= 0) {
    g.strokeStyle = theme.select;
    outline(state, g, state.selected, 2);
  }
  g.restore();
  drawGutter(state, g, theme);
  drawHeads(state, g, theme);
  drawRuler(state, g, theme);
  if (state.measure) drawMeasure(state, g, theme);
}

function drawMeasure(state, g, theme) {
  const a = timeToX(state, Math.min(...state.measure)), b = timeToX(state, Math.max(...state.measure));
  g.fillStyle = theme.cursor;
  g.globalAlpha = 0.14;
  g.fillRect(a, RULER, b - a, state.height - RULER);
  g.globalAlpha = 1;
  g.font = 'bold ' + FONT;
  g.textAlign = 'center';
  g.fillText(formatTime((b - a) / state.scale), (a + b) / 2, RULER + 12);
  g.textAlign = 'left';
}

/* ---- Heat map ------------------------------------------------------------------------- */

/* The number in a cell, in us; NaN where the rank has no such step. */
function heatValue(state, step, rank) {
  const ranks = state.meta.ranks.length, cell = state.meta.cells[step * ranks + rank];
  if (!cell) return NaN;
  if (state.metric === 'step') return cell[1];
  if (state.metric !== 'late') return cell[2 + state.meta.parts.indexOf(state.metric)];
  const column = [];
  for (let r = 0; r < ranks; r++) {
    const other = state.meta.cells[step * ranks + r];
    if (other) column.push(other[2]);
  }
  column.sort((a, b) => a - b);
  return Math.max(0, cell[2] - column[(column.length - 1) >> 1]);
}

function heatGeometry(state) {
  const steps = state.meta.steps.length, ranks = state.meta.ranks.length;
  const width = state.heatWidth - 12, columns = Math.min(steps, Math.floor(width));
  return { steps, ranks, columns, cellWidth: Math.min(26, width / Math.max(columns, 1)),
    cellHeight: Math.max(2, Math.min(14, (state.heatHeight - 8) / ranks)) };
}

function drawHeat(state) {
  const g = state.heat, theme = THEMES[state.theme], box = heatGeometry(state);
  g.setTransform(state.ratio, 0, 0, state.ratio, 0, 0);
  g.fillStyle = theme.back;
  g.fillRect(0, 0, state.heatWidth, state.heatHeight);
  const values = [], all = [];
  for (let c = 0; c < box.columns; c++) {
    const first = Math.floor(c * box.steps / box.columns);
    const end = Math.max(first + 1, Math.floor((c + 1) * box.steps / box.columns));
    for (let r = 0; r < box.ranks; r++) {
      let value = NaN; /* the worst of the steps that share a column */
      for (let s = first; s < end; s++) {
        const v = heatValue(state, s, r);
        if (!(v <= value)) value = isNaN(v) ? value : v;
      }
      values.push(value);
      if (!isNaN(value)) all.push(value);
    }
  }
  all.sort((a, b) => a - b);
  const isAbsolute = state.metric === 'step' || state.metric === 'compute';
  const low = isAbsolute ? all[0] : 0;
  const high = Math.max(all[Math.floor((all.length - 1) * 0.99)] || 0, low + 1e-6);
  state.heatHigh = high;
  values.forEach((value, k) => {
    const c = Math.floor(k / box.ranks), r = k % box.ranks;
    const part = isNaN(value) ? -1 : Math.max(0, Math.min(1, (value - low) / (high - low)));
    g.fillStyle = part < 0 ? theme.line : heatColor(state, part);
    const gap = box.cellWidth > 3 ? 1 : 0;
    g.fillRect(6 + c * box.cellWidth, 4 + r * box.cellHeight, box.cellWidth - gap,
      box.cellHeight - (box.cellHeight > 3 ? 1 : 0));
  });
}

function heatColor(state, part) {
  const stops = state.theme === 'dark'
    ? [[38, 44, 54], [74, 92, 128], [196, 132, 84], [240, 96, 80]]
    : [[232, 236, 240], [176, 200, 222], [238, 190, 120], [206, 82, 68]];
  const at = part * (stops.length - 1), k = Math.min(stops.length - 2, Math.floor(at)), f = at - k;
  return 'rgb(' + stops[k].map((v, i) => Math.round(v + (stops[k + 1][i] - v) * f)).join(',') + ')';
}
