'use strict';
/*
 * data.js - turns the page's text into typed arrays, and rows into strips that can be drawn at any
 * zoom. It knows nothing of canvases.
 *
 * A strip is one depth of one row. Its events do not overlap, so starts and ends are both sorted
 * and a pixel's share of busy time comes from two binary searches in running sums: the cost of a
 * frame depends on pixels, not on events.
 */
const KIND = { STEP: 1, SPAN: 2, SUBMIT: 3, WAIT: 4, AGREE: 5, LAUNCH: 6, PACK: 7, WIRE: 8,
  UNPACK: 9, WAIT_RANK: 10, COMPUTE: 11, COUNTER: 12, CLOCK: 13, FAULT: 14, CONTROL: 15 };
const CLASS_COUNTER = 9;

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const pad = text.endsWith('==') ? 2 : text.endsWith('=') ? 1 : 0;
  const out = new Uint8Array(text.length / 4 * 3 - pad);
  for (let i = 0, at = 0; i < text.length; i += 1 << 18) {
    const part = atob(text.slice(i, i + (1 << 18)));
    for (let k = 0; k < part.length; k++) out[at++] = part.charCodeAt(k);
  }
  return out;
}

function decodeEvents(bytes, meta) {
  const n = meta.events;
  const e = { count: n, start: new Float64Array(n), dur: new Float64Array(n),
    kind: new Uint8Array(n), open: new Uint8Array(n), depth: new Uint8Array(n),
    name: new Uint32Array(n), bucket: new Float64Array(n), id: new Float64Array(n),
    bytes: new Float64Array(n), aux: new Uint32Array(n), row: new Uint32Array(n) };
  let at = 0, i = 0;
  const read = () => {
    let b = bytes[at++], value = b & 127, scale = 128;
    while (b >= 128) { b = bytes[at++]; value += (b & 127) * scale; scale *= 128; }
    return value;
  };
  const signed = () => { const v = read(); return v % 2 ? -(v + 1) / 2 : v / 2; };
  meta.rows.forEach((row, r) => {
    let start = 0, bucket = 0, id = 0;
    for (const end = i + row[3]; i < end; i++) {
      e.row[i] = r;
      e.start[i] = start += read();
      e.dur[i] = read();
      const kind = read();
      e.kind[i] = kind & 31;
      e.open[i] = kind >> 5;
      e.depth[i] = read();
      e.name[i] = read();
      e.bucket[i] = bucket += signed();
      e.id[i] = id += signed();
      e.bytes[i] = read();
      e.aux[i] = read();
    }
  });
  return e;
}

/* index: events of one strip in order of start. */
function makeStrip(e, index) {
  const busy = new Float64Array(index.length + 1);
  for (let i = 0; i < index.length; i++) busy[i + 1] = busy[i] + e.dur[index[i]];
  return { index, busy };
}

function makeRows(e, meta) {
  let first = 0;
  return meta.rows.map(([rank, type, depth, count, label], r) => {
    const row = { rank, type, depth, count, label, first, number: r, strips: [], max: 0 };
    const sizes = new Uint32Array(depth);
    for (let i = first; i < first + count; i++) sizes[Math.min(e.depth[i], depth - 1)]++;
    const lists = Array.from(sizes, size => new Uint32Array(size));
    sizes.fill(0);
    for (let i = first; i < first + count; i++) {
      const d = Math.min(e.depth[i], depth - 1);
      lists[d][sizes[d]++] = i;
      if (type === CLASS_COUNTER && e.id[i] > row.max) row.max = e.id[i];
    }
    row.strips = lists.map(list => makeStrip(e, list));
    first += count;
    return row;
  });
}

/* The first position of strip whose event ends after time; ends are sorted as starts are. */
function firstEnding(e, index, time, low = 0) {
  let high = index.length;
  while (low < high) {
    const middle = (low + high) >> 1, i = index[middle];
    if (e.start[i] + e.dur[i] > time || (e.dur[i] === 0 && e.start[i] >= time)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/* The first position whose event starts at or after time. */
function firstStarting(e, index, time, low = 0) {
  let high = index.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (e.start[index[middle]] >= time) high = middle; else low = middle + 1;
  }
  return low;
}

/* ---- Words ---------------------------------------------------------------------------- */

function formatTime(ns, digits = 3) {
  const a = Math.abs(ns);
  if (a >= 1e9) return (ns / 1e9).toFixed(digits) + ' s';
  if (a >= 1e6) return (ns / 1e6).toFixed(digits) + ' ms';
  if (a >= 1e3) return (ns / 1e3).toFixed(Math.min(digits, 2)) + ' \u00b5s';
  return Math.round(ns) + ' ns';
}

/* Counts records that the recorder no longer has: dropped records are missing here, outside ones are not. */
function lossText({ dropped, outside }) {
  const parts = [];
  if (dropped > 0) parts.push(dropped.toLocaleString('en') + ' records dropped');
  if (outside > 0) parts.push(outside.toLocaleString('en') + ' records outside the window');
  return parts.join(', ');
}

function formatBytes(bytes) {
  if (bytes >= 1e9) return (bytes / 1e9).toFixed(2) + ' GB';
  if (bytes >= 1e6) return (bytes / 1e6).toFixed(2) + ' MB';
  if (bytes >= 1e3) return (bytes / 1e3).toFixed(1) + ' kB';
  return bytes + ' B';
}

/* A device's stream waits inside of the program's work there. */
function isStreamWait(e, i) { return e.kind[i] === KIND.COMPUTE && e.aux[i] > 0; }

function eventName(e, meta, i) {
  const kind = e.kind[i];
  if (kind === KIND.STEP) return 'step ' + e.id[i];
  if (kind === KIND.WAIT_RANK) return 'rank ' + e.aux[i];
  const text = (isStreamWait(e, i) ? 'waits for ' : '') + (meta.strings[e.name[i]] || meta.kinds[kind]);
  const more = kind >= KIND.AGREE && kind <= KIND.UNPACK && e.aux[i] > 1 ? ' +' + (e.aux[i] - 1) : '';
  return text + more;
}

/* ---- Search --------------------------------------------------------------------------- */

/* Positions of all matches in order of time, and the rows' strips reduced to them. */
function search(e, meta, rows, query) {
  const text = query.trim().toLowerCase();
  if (text === '') return null;
  const number = /^(step|bucket|rank)\s+(\d+)$/.exec(text);
  const names = meta.strings.map(s => s !== '' && s.toLowerCase().includes(text));
  const kinds = meta.kinds.map(s => s.includes(text));
  const matches = i => {
    if (number && number[1] === 'step') return e.kind[i] === KIND.STEP && e.id[i] === +number[2];
    if (number && number[1] === 'bucket') return e.bucket[i] === +number[2];
    if (number) return e.kind[i] === KIND.WAIT_RANK && e.aux[i] === +number[2];
    return names[e.name[i]] || kinds[e.kind[i]];
  };
  const all = [], strips = [];
  for (const row of rows)
    strips.push(row.type === CLASS_COUNTER ? [] :
      row.strips.map(strip => makeStrip(e, strip.index.filter(matches))));
  for (const row of strips) for (const strip of row) for (const i of strip.index) all.push(i);
  const list = Uint32Array.from(all).sort((a, b) => e.start[a] - e.start[b]);
  return { list, strips, at: -1 };
}

/* Every event of a bucket, by rank. */
function bucketEvents(e, rows, bucket) {
  const found = [];
  for (let i = 0; i < e.count; i++) if (e.bucket[i] === bucket) found.push(i);
  return found.sort((a, b) => rows[e.row[a]].rank - rows[e.row[b]].rank || e.start[a] - e.start[b]);
}
