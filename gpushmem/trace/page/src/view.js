// What the tables show of a part of the job: as the summary of the whole, of what is between two moments.
// Times are those inside; events, and their bytes, count if any of them is.

import { lower } from "./data.js";
import { STATES } from "./timeline.js";

const PUT = 1;

/** How much of what lasts from one moment to another is between `from` and `to`; negative: nothing. */
const inside = (began, ended, from, to) => Math.min(ended, to) - Math.max(began, from);

/** The time that a PE spends in each state, by name. */
function spent(data, pe, from, to) {
  const [low, high] = [data.state_starts[pe], data.state_starts[pe + 1]];
  const time = Object.fromEntries(STATES.map((name) => [name, 0]));
  const end = (k) => data.state_began[k] + data.state_ns[k];
  for (let k = lower(end, from, low, high); k < high && data.state_began[k] < to; k++) {
    time[STATES[data.state[k]]] += Math.max(inside(data.state_began[k], end(k), from, to), 0);
  }
  return time;
}

/** Rows by key, and the row of a key, made by `make()` when it is first asked for. */
function grouped() {
  const rows = new Map();
  return [rows, (key, make) => rows.get(key) ?? rows.set(key, make()).get(key)];
}

const longest = (rows) => [...rows.values()].sort((a, b) => b.ns - a.ns);

/** The summary between two moments; that of the whole job if they are its beginning and end. */
export function within(data, from, to) {
  const { summary, n_pes } = data;
  if (from <= 0 && to >= data.ns_all) return { ...summary, from: 0, to: summary.ns, whole: true };
  const sent = Array.from({ length: n_pes }, () => Array(n_pes).fill(0));
  const [kernels, kernel] = grouped(), [lines, line] = grouped(), [ranges, range] = grouped(), [waits, wait] = grouped();
  const place = (k) => [data.tracks[data.track[data.lane[k]]].pe, data.labels[data.label[k]], data.sites[data.site[k]]];
  for (let k = 0; k < data.began.length; k++) {
    const began = data.began[k], ended = began + data.ns[k], ns = inside(began, ended, from, to);
    if (ns < 0) continue;
    const [pe, what, at] = place(k), category = data.categories[data.category[k]];
    if (category === "kernel") {
      const row = kernel(`${pe} ${what}`, () => ({ name: what, pe, times: 0, ns: 0 }));
      row.times += 1;
      row.ns += ns;
    } else if (category === "range") {
      const row = range(`${pe} ${what}`, () => ({ name: what, pe, times: 0, ns: 0, ...spent(data, pe, 0, 0) }));
      row.times += 1;
      row.ns += ns;
      const time = spent(data, pe, Math.max(began, from), Math.min(ended, to));
      for (const name of STATES) row[name] += time[name];
    }
    if (!data.has_line[k]) continue;
    const row = line(`${data.label[k]} ${data.site[k]}`, () => ({ what, line: at, times: 0, ns: 0, bytes: 0 }));
    row.times += 1;
    row.ns += ns;
    row.bytes += data.bytes[k];
    if (data.sends[k]) {
      const [source, target] = data.sends[k] === PUT ? [pe, data.peer[k]] : [data.peer[k], pe];
      sent[source][target] += data.bytes[k];
    }
  }
  for (let w = 0; w < data.wait_event.length; w++) {
    const [k, by, over, all] = [data.wait_event[w], data.wait_by[w], data.wait_over[w], data.wait_ns[w]];
    const ns = inside(over - all, over, from, to);
    if (all <= 0 || ns <= 0) continue;
    const [pe, what, at] = place(k), [byPe, byWhat, byLine] = by < 0 ? [null, "", ""] : place(by);
    const row = wait([pe, what, at, byPe, byWhat, byLine].join("\n"), () => ({
      pe, what, line: at, by_pe: byPe, by_what: byWhat, by_line: byLine, times: 0, ns: 0, longest_ns: 0, longest_at: 0,
    }));
    row.times += 1;
    row.ns += ns;
    if (all > row.longest_ns) [row.longest_ns, row.longest_at] = [all, over - all];
  }
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const pes = summary.pes.map(({ pe }) => ({
    pe, ...spent(data, pe, from, to), sent: sum(sent[pe]), received: sum(sent.map((row) => row[pe])),
  }));
  return {
    pes, sent, from, to, whole: false, ns: to - from,
    waits: longest(waits), lines: longest(lines), kernels: longest(kernels), ranges: longest(ranges),
    critical_path: summary.critical_path.filter((step) => inside(step.began, step.ended, from, to) >= 0),
  };
}
