/*
 * view.js - the page's behaviour: zoom, pan, pick, search, panel, heat map, and a benchmark of
 * itself (open the page with #bench).
 */
const element = id => document.getElementById(id);

const state = {
  meta: JSON.parse(element('meta').textContent), theme: 'light', from: 0, scale: 1, end: 1,
  scroll: 0, selected: -1, flow: null, found: null, metric: 'late', folded: new Set(), texts: [],
  measure: null, spanColor: [], places: [], heads: [], ratio: 1, width: 0, height: 0,
};

/* ---- View ----------------------------------------------------------------------------- */

let isDirty = false;
function repaint() {
  if (isDirty) return;
  isDirty = true;
  requestAnimationFrame(() => { isDirty = false; drawTracks(state); });
}

function clampView() {
  const track = Math.max(50, state.width - GUTTER);
  const whole = track / state.end;
  state.scale = Math.min(Math.max(state.scale, whole * 0.8), 2);
  const span = track / state.scale;
  state.from = Math.min(Math.max(state.from, -span * 0.1), Math.max(state.end - span * 0.9, -span * 0.1));
  state.scroll = Math.max(0, Math.min(state.scroll, state.contentHeight - (state.height - RULER)));
}

function zoom(factor, x) {
  const time = xToTime(state, x);
  state.scale *= factor;
  clampView();
  state.from = time - (x - GUTTER) / state.scale;
  clampView();
  repaint();
}

function pan(dx, dy) {
  state.from += dx / state.scale;
  state.scroll += dy;
  clampView();
  repaint();
}

function showRange(from, until) {
  const margin = (until - from) * 0.04 + 1, track = state.width - GUTTER;
  state.scale = track / (until - from + 2 * margin);
  state.from = from - margin;
  clampView();
  repaint();
}

function scrollTo(y) {
  if (y < state.scroll + 10 || y > state.scroll + state.height - RULER - 60)
    state.scroll = y - (state.height - RULER) / 3;
  clampView();
}

function reveal(i) {
  const e = state.e, row = state.rows[e.row[i]], track = state.width - GUTTER;
  if (row.hidden) { state.folded.delete(row.rank); layout(state); }
  const x = timeToX(state, e.start[i]), w = e.dur[i] * state.scale;
  if (w < 3 || w > track) {
    state.scale = track / Math.max(e.dur[i] * (w < 3 ? 100 : 1.3), w < 3 ? 50000 : 2000);
    clampView();
  }
  if (w < 3 || w > track || x < GUTTER + 20 || x + w > state.width - 20)
    state.from = e.start[i] + e.dur[i] / 2 - track / state.scale / 2;
  scrollTo(row.y);
  clampView();
  repaint();
}

function resize() {
  state.ratio = window.devicePixelRatio || 1;
  const fit = canvas => {
    const box = canvas.getBoundingClientRect();
    canvas.width = Math.max(1, Math.round(box.width * state.ratio));
    canvas.height = Math.max(1, Math.round(box.height * state.ratio));
    return box;
  };
  element('heat').style.height = Math.max(34, Math.min(130, state.meta.ranks.length * 14 + 10)) + 'px';
  const tracks = fit(element('tracks')), heat = fit(element('heat'));
  const track = state.width - GUTTER;
  const span = state.width > 0 ? track / state.scale : 0;
  state.width = tracks.width;
  state.height = tracks.height;
  state.heatWidth = heat.width;
  state.heatHeight = heat.height;
  if (span > 0) state.scale = (state.width - GUTTER) / span;
  clampView();
  drawHeat(state);
  drawTracks(state);
}

function setTheme(name) {
  state.theme = name;
  document.documentElement.dataset.theme = name;
  state.palette = makePalette(THEMES[name], false);
  state.dimPalette = makePalette(THEMES[name], true);
}

/* ---- Picking -------------------------------------------------------------------------- */

/* The event under a point, with a little tolerance for thin ones; -1: none. */
function pick(x, y) {
  if (x < GUTTER || y < RULER) return -1;
  const e = state.e;
  for (const row of state.places) {
    const top = rowTop(state, row);
    if (y < top || y >= top + row.height || row.type === CLASS_COUNTER) continue;
    const strip = row.strips[Math.min(row.strips.length - 1, Math.floor((y - top) / STRIP))];
    const at = firstEnding(e, strip.index, xToTime(state, x - 3));
    let best = -1, distance = 4;
    for (let k = at; k < Math.min(at + 40, strip.index.length); k++) {
      const i = strip.index[k], left = timeToX(state, e.start[i]);
      if (left > x + 4) break;
      const right = left + e.dur[i] * state.scale;
      const d = x < left ? left - x : x > right ? x - right : 0;
      if (d < distance) { distance = d; best = i; }
    }
    return best;
  }
  return -1;
}

function select(i) {
  state.selected = i;
  state.flow = null;
  if (i >= 0 && state.e.bucket[i] > 0) {
    const lists = { 3: 'submit', 4: 'wait', 5: 'agree', 7: 'pack', 8: 'wire', 9: 'unpack' };
    state.flow = new Map();
    for (const k of bucketEvents(state.e, state.rows, state.e.bucket[i])) {
      const rank = state.rows[state.e.row[k]].rank, list = lists[state.e.kind[k]];
      if (!state.flow.has(rank))
        state.flow.set(rank, { submit: [], agree: [], pack: [], wire: [], unpack: [], wait: [] });
      if (list) state.flow.get(rank)[list].push(k);
    }
  }
  showPanel();
  repaint();
}

/* ---- Panel ---------------------------------------------------------------------------- */

function make(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function table(pairs) {
  const node = make('table');
  for (const [key, value] of pairs) {
    const line = make('tr');
    line.append(make('td', key), make('td', value));
    node.append(line);
  }
  return node;
}

function partsBox(parts, total) {
  const box = make('div'), bar = make('div', undefined, 'stack'), list = make('table');
  state.meta.parts.forEach((name, k) => {
    const piece = make('span');
    piece.style.width = 100 * parts[k] / total + '%';
    piece.style.background = PART_COLORS[name];
    piece.title = name;
    bar.append(piece);
    const line = make('tr'), label = make('td'), swatch = make('span', undefined, 'swatch');
    swatch.style.background = PART_COLORS[name];
    label.append(swatch, name);
    line.append(label, make('td', formatTime(parts[k] * 1e3, 2), 'number'),
      make('td', (100 * parts[k] / total).toFixed(1) + ' %', 'number'));
    list.append(line);
  });
  box.append(bar, list);
  return box;
}

function showSummary(panel) {
  const s = state.meta.summary, meta = state.meta;
  panel.append(make('h2', meta.marked ? 'Where a step goes' : 'Where the time goes'));
  if (s.step > 0) {
    panel.append(table([['step p50', formatTime(s.p50 * 1e3, 2)], ['p99', formatTime(s.p99 * 1e3, 2)]]));
    panel.append(make('h3', 'mean step, median rank'), partsBox(s.part, s.step));
    panel.append(make('h3', 'communication'), table([['per step', formatTime(s.transfer * 1e3, 2)],
      ['hidden', (100 * s.hidden).toFixed(1) + ' %']]));
  }
  panel.append(make('h3', 'ranks'), table(meta.ranks.map(r => ['rank ' + r.rank, r.host +
    (lossText(r) && ', ' + lossText(r)) + (r.closed ? '' : ', not closed')])));
  panel.append(make('h3', 'hint'), make('div', 'Click an event for its details and its bucket\u2019s way; press ? for keys.'));
}

function showStep(panel, step, rank) {
  const meta = state.meta, cell = meta.cells[step * meta.ranks.length + rank];
  panel.append(make('h2', 'step ' + meta.steps[step] + ' on rank ' + meta.ranks[rank].rank));
  if (!cell) { panel.append(make('div', 'not recorded')); return; }
  panel.append(table([['took', formatTime(cell[1] * 1e3)], ['begins', formatTime(cell[0] * 1e3)]]));
  panel.append(make('h3', 'parts'), partsBox(cell.slice(2), Math.max(cell[1], 1e-9)));
}

function eventFacts(i) {
  const e = state.e, meta = state.meta, row = state.rows[e.row[i]], rank = meta.ranks[row.rank];
  const facts = [['kind', meta.kinds[e.kind[i]]], ['rank', rank.rank + '  ' + rank.host],
    ['begins', formatTime(e.start[i], 6)], ['took', formatTime(e.dur[i]) + (e.open[i] ? ' (unfinished)' : '')]];
  if (e.bucket[i] > 0) facts.push(['bucket', e.bucket[i]]);
  if (e.kind[i] >= KIND.AGREE && e.kind[i] <= KIND.UNPACK && e.aux[i] > 0) facts.push(['tensors', e.aux[i]]);
  if (e.bytes[i] > 0) facts.push(['size', formatBytes(e.bytes[i])]);
  if (e.kind[i] === KIND.WIRE && e.dur[i] > 0)
    facts.push(['speed', (e.bytes[i] / e.dur[i]).toFixed(2) + ' GB/s']);
  if (e.kind[i] === KIND.COMPUTE && e.id[i] > 0) facts.push(['step', e.id[i] - 1]);
  if (e.kind[i] === KIND.SUBMIT && e.id[i] > 0) facts.push(['request', e.id[i]]);
  return facts;
}

/* How long a launched bucket waited for the streams that compute its input; NaN: it has none. */
function streamWait(chain) {
  const e = state.e, head = chain.pack.concat(chain.wire)[0];
  if (head === undefined || chain.agree.length === 0 || !chain.submit.some(k => e.aux[k] > 0)) return NaN;
  return Math.max(0, e.start[head] - e.start[chain.agree[0]] - e.dur[chain.agree[0]]);
}

/* The bucket on every rank: who submitted when, behind the first; each line leads there. */
function showBucket(panel, i) {
  const e = state.e, lines = [];
  for (const [rank, chain] of state.flow) {
    const last = chain.submit.length ? Math.max(...chain.submit.map(k => e.start[k])) : NaN;
    const wire = chain.wire.reduce((sum, k) => sum + e.dur[k], 0);
    lines.push({ rank, last, wire, stream: streamWait(chain), target: chain.wire.concat(chain.submit, chain.pack)[0] });
  }
  const first = Math.min(...lines.map(l => l.last).filter(v => !isNaN(v)));
  const latest = Math.max(...lines.map(l => l.last).filter(v => !isNaN(v)));
  panel.append(make('h3', 'bucket ' + e.bucket[i] + ' on every rank'));
  const list = make('table'), head = make('tr');
  const hasStreams = lines.some(l => !isNaN(l.stream));
  head.append(make('td', ''), make('td', 'submitted', 'number'));
  if (hasStreams) {
    const title = make('td', 'stream', 'number');
    title.title = 'from the launch until the stream had computed the input';
    head.append(title);
  }
  head.append(make('td', 'wire', 'number'));
  list.append(head);
  for (const l of lines) {
    const line = make('tr', undefined, 'link');
    const late = isNaN(l.last) ? '\u2013' : '+' + formatTime(l.last - first, 2);
    const submitted = make('td', late, 'number');
    if (l.last === latest && latest > first) submitted.style.color = PART_COLORS.skew;
    line.append(make('td', 'rank ' + state.meta.ranks[l.rank].rank), submitted);
    if (hasStreams) line.append(make('td', isNaN(l.stream) ? '\u2013' : formatTime(l.stream, 2), 'number'));
    line.append(make('td', l.wire ? formatTime(l.wire, 2) : '\u2013', 'number'));
    if (l.target !== undefined) line.onclick = () => { reveal(l.target); select(l.target); };
    list.append(line);
  }
  panel.append(list);
}

function showPanel(step, rank) {
  const panel = element('panel'), i = state.selected;
  panel.textContent = '';
  if (step !== undefined) showStep(panel, step, rank);
  else if (i < 0) showSummary(panel);
  else {
    panel.append(make('h2', eventName(state.e, state.meta, i)), table(eventFacts(i)));
    if (state.flow) showBucket(panel, i);
  }
}

/* ---- Search --------------------------------------------------------------------------- */

function runSearch() {
  state.found = search(state.e, state.meta, state.rows, element('query').value);
  showHits();
  repaint();
}

function showHits() {
  const f = state.found;
  element('hits').textContent = !f ? '' : f.at < 0 ? f.list.length + ' found' : f.at + 1 + ' of ' + f.list.length;
}

function jump(way) {
  const f = state.found;
  if (!f || f.list.length === 0) return;
  if (f.at < 0) {
    /* the first one from the left edge of what is in sight */
    f.at = firstStarting(state.e, f.list, state.from);
    if (f.at === f.list.length) f.at = 0;
  } else {
    f.at = (f.at + way + f.list.length) % f.list.length;
  }
  showHits();
  reveal(f.list[f.at]);
  select(f.list[f.at]);
}

/* ---- Mouse ---------------------------------------------------------------------------- */

function tip(event, i) {
  const box = element('tip');
  if (i < 0) { box.hidden = true; return; }
  const rank = state.meta.ranks[state.rows[state.e.row[i]].rank];
  box.textContent = eventName(state.e, state.meta, i) + '\n' + formatTime(state.e.dur[i]) + '  \u00b7  ' +
    state.meta.kinds[state.e.kind[i]] + '  \u00b7  rank ' + rank.rank +
    (state.e.bytes[i] > 0 ? '\n' + formatBytes(state.e.bytes[i]) : '') +
    (state.e.bucket[i] > 0 ? '  \u00b7  bucket ' + state.e.bucket[i] : '');
  box.hidden = false;
  const x = Math.min(event.offsetX + 14, state.width - box.offsetWidth - 8);
  const y = event.offsetY + 18 + box.offsetHeight > state.height ? event.offsetY - box.offsetHeight - 8 : event.offsetY + 18;
  box.style.left = x + 'px';
  box.style.top = y + 'px';
}

function watchTracks(canvas) {
  let drag = null;
  canvas.addEventListener('wheel', event => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 18 : event.deltaMode === 2 ? state.height : 1;
    const dx = event.deltaX * unit, dy = event.deltaY * unit;
    if (event.offsetX < GUTTER) pan(0, dy);
    else if (event.shiftKey) pan(dy || dx, 0);
    else if (Math.abs(dx) > Math.abs(dy)) pan(dx, 0);
    else zoom(Math.exp(-dy * 0.0022), event.offsetX);
  }, { passive: false });
  canvas.addEventListener('pointerdown', event => {
    canvas.focus();
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.offsetX, y: event.offsetY, moved: 0, map: event.offsetY < 7 && event.offsetX > GUTTER };
    if (event.shiftKey) state.measure = [xToTime(state, event.offsetX), xToTime(state, event.offsetX)];
    else state.measure = null;
    tip(event, -1);
  });
  canvas.addEventListener('pointermove', event => {
    if (!drag) { tip(event, pick(event.offsetX, event.offsetY)); return; }
    const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
    drag.moved += Math.abs(dx) + Math.abs(dy);
    drag.x = event.offsetX;
    drag.y = event.offsetY;
    if (drag.moved < 4) return;
    canvas.classList.add('drag');
    if (state.measure) { state.measure[1] = xToTime(state, event.offsetX); repaint(); }
    else if (drag.map) pan(dx / (state.width - GUTTER) * state.end * state.scale, 0);
    else pan(-dx, -dy);
  });
  canvas.addEventListener('pointerup', event => {
    canvas.classList.remove('drag');
    if (drag && drag.moved < 4) click(event);
    drag = null;
  });
  canvas.addEventListener('pointerleave', event => tip(event, -1));
  canvas.addEventListener('dblclick', event => {
    const i = pick(event.offsetX, event.offsetY);
    if (i >= 0) showRange(state.e.start[i], state.e.start[i] + state.e.dur[i]);
  });
}

function click(event) {
  for (const head of state.heads) {
    const y = RULER + head.y - state.scroll;
    if (event.offsetY < RULER || event.offsetY < y || event.offsetY >= y + HEAD) continue;
    if (!state.folded.delete(head.rank)) state.folded.add(head.rank);
    layout(state);
    clampView();
    repaint();
    return;
  }
  select(pick(event.offsetX, event.offsetY));
}

function heatCell(event) {
  const box = heatGeometry(state);
  const column = Math.floor((event.offsetX - 6) / box.cellWidth);
  const rank = Math.floor((event.offsetY - 4) / box.cellHeight);
  if (column < 0 || column >= box.columns || rank < 0 || rank >= box.ranks) return null;
  return { step: Math.floor(column * box.steps / box.columns), rank };
}

function watchHeat(canvas) {
  canvas.addEventListener('pointermove', event => {
    const cell = heatCell(event);
    if (!cell) { canvas.title = ''; return; }
    const value = heatValue(state, cell.step, cell.rank);
    const label = element('metric').selectedOptions[0].textContent;
    canvas.title = 'step ' + state.meta.steps[cell.step] + ', rank ' + state.meta.ranks[cell.rank].rank +
      '\n' + label + ' ' + (isNaN(value) ? 'not recorded' : formatTime(value * 1e3, 2));
  });
  canvas.addEventListener('click', event => {
    const cell = heatCell(event);
    if (!cell) return;
    const data = state.meta.cells[cell.step * state.meta.ranks.length + cell.rank];
    state.selected = -1;
    state.flow = null;
    showPanel(cell.step, cell.rank);
    if (!data) return;
    showRange(data[0] * 1e3, (data[0] + data[1]) * 1e3);
    const head = state.heads.find(h => h.rank === cell.rank);
    if (head) scrollTo(head.y);
    repaint();
  });
}

/* ---- Keys ----------------------------------------------------------------------------- */

const KEYS = [['W S', 'zoom in and out'], ['A D  \u2190 \u2192', 'move'], ['\u2191 \u2193', 'scroll'],
  ['wheel', 'zoom; with shift: move; over the names: scroll'], ['drag', 'move; with shift: measure'],
  ['0', 'show everything'], ['F', 'zoom to the selected event'], ['[ ]', 'previous, next event of the row'],
  ['/', 'search'], ['N P', 'next, previous match'], ['T', 'dark or light'], ['Esc', 'let go']];

function showKeys() {
  const box = element('keys');
  box.hidden = !box.hidden;
  if (box.hidden || box.firstChild) return;
  const list = make('table');
  for (const [key, what] of KEYS) {
    const line = make('tr'), cell = make('td');
    cell.append(make('kbd', key));
    line.append(cell, make('td', what));
    list.append(line);
  }
  box.append(list);
}

function neighbour(way) {
  if (state.selected < 0) return;
  const e = state.e, row = state.rows[e.row[state.selected]];
  const index = row.strips[Math.min(e.depth[state.selected], row.strips.length - 1)].index;
  const at = index.indexOf(state.selected) + way;
  if (at < 0 || at >= index.length) return;
  reveal(index[at]);
  select(index[at]);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === element('query')) {
    if (event.key === 'Enter') { jump(event.shiftKey ? -1 : 1); event.preventDefault(); }
    if (event.key === 'Escape') { event.target.value = ''; runSearch(); element('tracks').focus(); }
    return;
  }
  if (event.target.tagName === 'SELECT') return;
  const center = GUTTER + (state.width - GUTTER) / 2, move = (state.width - GUTTER) * 0.12;
  const actions = {
    w: () => zoom(1.35, center), s: () => zoom(1 / 1.35, center), a: () => pan(-move, 0), d: () => pan(move, 0),
    arrowleft: () => pan(-move, 0), arrowright: () => pan(move, 0), arrowup: () => pan(0, -60),
    arrowdown: () => pan(0, 60), 0: () => showRange(0, state.end), home: () => showRange(0, state.end),
    f: () => { const i = state.selected; if (i >= 0) showRange(state.e.start[i], state.e.start[i] + state.e.dur[i]); },
    '[': () => neighbour(-1), ']': () => neighbour(1), '/': () => element('query').focus(), n: () => jump(1),
    p: () => jump(-1), '?': showKeys, t: () => element('theme').click(),
    escape: () => { state.measure = null; element('keys').hidden = true; select(-1); },
  };
  const action = actions[event.key.toLowerCase()];
  if (!action) return;
  event.preventDefault();
  action();
}

/* ---- Benchmark ------------------------------------------------------------------------ */

/* Paints frames at all zooms and reads a pixel back after each, so that the painting has happened.
 * The figures go into the title and into attributes of the page, for tests to read. */
function bench() {
  const times = [], began = performance.now();
  for (let frame = 0; frame < 60; frame++) {
    const depth = frame % 20 / 19;
    state.scale = (state.width - GUTTER) / state.end * Math.pow(2000, depth);
    state.from = state.end * 0.37 * depth + state.end * 0.001 * frame;
    state.scroll = (frame % 7) * 40;
    clampView();
    const start = performance.now();
    drawTracks(state);
    state.g.getImageData(0, 0, 1, 1);
    times.push(performance.now() - start);
  }
  times.sort((a, b) => a - b);
  const root = document.documentElement;
  root.dataset.frameMs = times[times.length >> 1].toFixed(2);
  root.dataset.frameP95Ms = times[Math.floor(times.length * 0.95)].toFixed(2);
  root.dataset.events = state.e.count;
  root.dataset.benchMs = (performance.now() - began).toFixed(0);
  document.title = 'frame ' + root.dataset.frameMs + ' ms, p95 ' + root.dataset.frameP95Ms + ' ms, ' +
    state.e.count + ' events';
  showRange(0, state.end);
  root.dataset.slopes = countSlopes();
}

/* Lines of counters that are neither level nor upright, at any of some zooms: there may be none. */
function countSlopes() {
  let slopes = 0;
  for (const row of state.rows) {
    if (row.type !== CLASS_COUNTER || !row.strips[0] || row.max === 0) continue;
    for (const part of [40, 10, 1, 0.1, 0.01]) { /* from all in a few pixels to one hundredth in sight */
      const view = { ...state, from: 0.3 * state.end * Math.max(0, 1 - part),
        scale: (state.width - GUTTER) / (state.end * part) };
      counterOutline(view, row).forEach(([x, y], k, all) => {
        if (k > 0 && x !== all[k - 1][0] && y !== all[k - 1][1]) slopes++;
      });
    }
  }
  return slopes;
}

/* ---- Start ---------------------------------------------------------------------------- */

function fillLegend() {
  const box = element('legend');
  const add = (color, text) => {
    const item = make('span'), swatch = make('span', undefined, 'swatch');
    swatch.style.background = color;
    item.append(swatch, text);
    box.append(item);
  };
  for (const [kind, text] of LEGEND) add(COLORS[kind], text);
  const spans = new Set();
  for (let i = 0; i < state.e.count; i++) {
    const isWork = state.e.kind[i] === KIND.COMPUTE && !isStreamWait(state.e, i);
    if (isWork || state.e.kind[i] === KIND.SPAN) spans.add(state.e.name[i]);
  }
  let next = 0;
  for (const name of spans) {
    state.spanColor[name] = next % SPAN_COLORS.length;
    if (next++ < 8) add(SPAN_COLORS[state.spanColor[name]], state.meta.strings[name] || 'span');
  }
  box.append(make('span', 'W S zoom   A D move   / search   ? keys', 'keys'));
}

function fillHead() {
  const meta = state.meta, nodes = new Set(meta.ranks.map(r => r.host)).size;
  const facts = [meta.ranks.length + (meta.ranks.length === 1 ? ' rank' : ' ranks') + ' on ' + nodes + (nodes === 1 ? ' node' : ' nodes'),
    meta.events.toLocaleString('en') + ' events', formatTime(meta.end, 2)];
  if (meta.marked) facts.push('steps ' + meta.steps[0] + '\u2013' + meta.steps[meta.steps.length - 1]);
  const clocks = meta.ranks.map(r => r.clock);
  facts.push(clocks.includes(undefined) ? 'clocks not measured' : 'clock error \u2264 ' + (Math.max(...clocks) / 1e3).toFixed(0) + ' \u00b5s');
  const sum = key => meta.ranks.reduce((total, r) => total + r[key], 0);
  const lost = lossText({ dropped: sum('dropped'), outside: sum('outside') });
  if (lost !== '') facts.push(lost);
  element('title').textContent = meta.title;
  element('facts').textContent = facts.join('  \u00b7  ');
  const metrics = [['late', 'behind in compute'], ['step', 'step time']].concat(meta.parts.map(p => [p, p]));
  for (const [value, text] of metrics) element('metric').append(new Option(text, value));
}

function start() {
  const began = performance.now(), root = document.documentElement;
  state.e = decodeEvents(decodeBase64(element('data').textContent.trim()), state.meta);
  element('data').textContent = '';
  state.rows = makeRows(state.e, state.meta);
  state.end = Math.max(state.meta.end, 1000);
  state.g = element('tracks').getContext('2d', { alpha: false });
  state.heat = element('heat').getContext('2d', { alpha: false });
  const hash = new URLSearchParams(location.hash.slice(1).replace(/^(bench|dark|light)$/, '$1=1'));
  let isDark = window.matchMedia('(prefers-color-scheme: dark)').matches;
  if (hash.has('dark')) isDark = true;
  if (hash.has('light')) isDark = false;
  setTheme(isDark ? 'dark' : 'light');
  fillHead();
  fillLegend();
  layout(state);
  showPanel();
  if (!state.meta.marked) element('heatbox').style.display = 'none';
  resize();
  showRange(0, state.end);
  window.addEventListener('resize', resize);
  window.addEventListener('keydown', onKey);
  watchTracks(element('tracks'));
  watchHeat(element('heat'));
  element('metric').onchange = event => { state.metric = event.target.value; drawHeat(state); };
  element('query').oninput = runSearch;
  element('next').onclick = () => jump(1);
  element('previous').onclick = () => jump(-1);
  element('all').onclick = () => showRange(0, state.end);
  element('help').onclick = showKeys;
  element('theme').onclick = () => { setTheme(state.theme === 'dark' ? 'light' : 'dark'); drawHeat(state); showPanel(); repaint(); };
  root.dataset.loadMs = (performance.now() - began).toFixed(0);
  drawTracks(state);
  /* #find=NAME selects the first match, #step=N shows a step, #bucket=N its way: links into a page, and tests */
  if (hash.has('step')) {
    const at = state.meta.steps.indexOf(+hash.get('step')), cell = state.meta.cells[at * state.meta.ranks.length];
    if (cell) showRange(cell[0] * 1e3, (cell[0] + cell[1]) * 1e3);
  }
  if (hash.has('find')) { element('query').value = hash.get('find'); runSearch(); jump(1); }
  if (hash.has('bucket'))
    select(bucketEvents(state.e, state.rows, +hash.get('bucket')).find(i => state.e.kind[i] === KIND.WIRE) ?? -1);
  if (hash.has('bench')) bench();
  drawTracks(state);
  root.dataset.ready = state.e.count;
}

start();
