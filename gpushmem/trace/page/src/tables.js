// The tables below the timeline; a row that has a place in the timeline leads there.

import { select } from "d3-selection";
import { count, percent, size, time } from "./format.js";
import { STATES } from "./timeline.js";

const MOST = 200; // rows shown at first
const PICTURED = 128; // PEs of which there is a picture of the traffic

/**
 * A table. `columns`: {name, of: row => value, as: value => text, go: row => anything to follow}.
 * It is sorted by a column whose name is clicked, as is the next one with this `order`; rows of
 * which `marked(row)` holds are marked.
 */
function table(into, columns, rows, { follow, order, marked = () => false }) {
  let sorted = rows;
  const root = into.append("table");
  const head = root.append("thead").append("tr");
  const body = root.append("tbody");
  const more = into.append("button").text("Show all rows").on("click", () => { order.most = Infinity; fill(); });
  const numeric = (column) => rows.length > 0 && typeof column.of(rows[0]) === "number";
  for (const column of columns) {
    const title = head.append("th").attr("scope", "col").classed("number", numeric(column));
    if (!column.name) continue;
    title.append("button").text(column.name).on("click", () => {
      order.down = order.by === column.name ? !order.down : numeric(column);
      order.by = column.name;
      sort();
      fill();
    });
  }
  function sort() {
    const { of } = columns.find(({ name }) => name === order.by) ?? {}, sign = order.down ? -1 : 1;
    if (of) sorted = [...rows].sort((a, b) => sign * (of(a) > of(b) ? 1 : of(a) < of(b) ? -1 : 0));
  }
  function fill() {
    const sign = order.down ? "descending" : "ascending";
    head.selectAll("th").attr("aria-sort", (_, k) => (order.by && columns[k].name === order.by ? sign : null));
    body.selectAll("tr").remove();
    for (const row of sorted.slice(0, order.most)) {
      const line = body.append("tr").classed("marked", marked(row));
      for (const column of columns) {
        const cell = line.append("td").classed("number", numeric(column)).classed("mono", !!column.mono);
        const value = column.of(row), text = column.as ? column.as(value, row) : value;
        const to = column.go?.(row);
        if (to) cell.append("button").text(text).on("click", () => follow(to));
        else if (column.draw) column.draw(cell, row);
        else cell.text(text);
      }
    }
    more.attr("hidden", rows.length > order.most ? null : "");
  }
  sort();
  fill();
}

/** Whether a row is of what the selected event does, and of its line. */
const isAt = (row, what, { chosen }) => what === chosen?.label && row.line === chosen.line;

function pes(into, { summary }, how) {
  into.append("p").text(
    "At each moment a PE waits if all its blocks do, else moves data if an operation does, else computes; " +
    "while no kernel runs it compiles if its host does. Shares are of the time without compiling." +
    (summary.whole ? " Overlapped: the part of moving in which another block of the PE computes." : ""));
  const rest = (pe) => Math.max(summary.ns - pe.compiling, 1), shared = STATES.filter((name) => name !== "compiling");
  const states = STATES.map((name) => ({
    name, of: (pe) => pe[name], as: (ns, pe) => (name === "compiling" ? time(ns) : `${time(ns)} · ${percent(ns / rest(pe))}`),
  }));
  const bar = (cell, pe) => {
    const root = cell.append("div").attr("class", "bar").attr("aria-hidden", "true");
    for (const name of shared) {
      root.append("i").style("width", `${(100 * pe[name]) / rest(pe)}%`).style("background", `var(--${name})`);
    }
  };
  const overlapped = { name: "overlapped", of: (pe) => (pe.moving ? pe.overlap / pe.moving : 0), as: percent };
  table(into, [
    { name: "PE", of: (pe) => pe.pe, go: (pe) => ({ pe: pe.pe }) },
    ...states,
    ...(summary.whole ? [overlapped] : []),
    { name: "sent", of: (pe) => pe.sent, as: size },
    { name: "received", of: (pe) => pe.received, as: size },
    { name: "", of: () => "", draw: bar },
  ], summary.pes, { ...how, marked: (pe) => pe.pe === how.chosen?.pe });
}

function waits(into, { summary }, how) {
  into.append("p").text(
    "Who waited for whom. A wait is released by the last write to what it waits for; a barrier or a collective by the PE " +
    "that came last. Follow the longest to see it.");
  table(into, [
    { name: "waited", of: (row) => row.ns, as: time },
    { name: "times", of: (row) => row.times, as: count },
    { name: "longest", of: (row) => row.longest_ns, as: time, go: (row) => ({ at: row.longest_at, ns: row.longest_ns, pe: row.pe }) },
    { name: "PE", of: (row) => row.pe },
    { name: "in", of: (row) => row.what },
    { name: "at", of: (row) => row.line, mono: true, go: (row) => row.line && { find: row.line } },
    { name: "for PE", of: (row) => row.by_pe ?? -1, as: (pe) => (pe < 0 ? "?" : pe) },
    { name: "until", of: (row) => row.by_what || "?" },
    { name: "at", of: (row) => row.by_line, mono: true, go: (row) => row.by_line && { find: row.by_line } },
  ], summary.waits, { ...how, marked: (row) => isAt(row, row.what, how) && row.pe === how.chosen.pe });
}

/** Bytes from each PE to each, as a picture if they are not too many, and as a table. */
function traffic(into, { summary, n_pes }, how) {
  if (n_pes <= PICTURED) picture(into.append("div"), summary.sent, n_pes);
  const pairs = summary.sent.flatMap((row, from) => row.map((bytes, to) => ({ from, to, bytes })).filter(({ bytes }) => bytes));
  table(into, [
    { name: "bytes", of: (pair) => pair.bytes, as: size },
    { name: "from PE", of: (pair) => pair.from },
    { name: "to PE", of: (pair) => pair.to },
  ], pairs.sort((a, b) => b.bytes - a.bytes), how);
}

function picture(into, sent, n_pes) {
  into.append("p").text("Bytes that each PE (row) has sent to each (column), by puts and gets.");
  const cell = Math.max(8, Math.min(64, Math.floor(640 / n_pes))), left = 60, top = 26;
  const most = sent.flat().reduce((a, b) => Math.max(a, b), 1);
  const root = into.append("svg").attr("width", left + cell * n_pes + 10).attr("height", top + cell * n_pes + 4)
    .attr("role", "img").attr("aria-label", "Bytes from each PE to each, as in the table below");
  const every = Math.ceil(26 / cell);
  sent.forEach((row, from) => {
    if (from % every === 0) {
      root.append("text").attr("x", left - 6).attr("y", top + cell * (from + 0.5) + 4).attr("text-anchor", "end").text(`PE ${from}`);
      root.append("text").attr("x", left + cell * (from + 0.5)).attr("y", top - 7).attr("text-anchor", "middle").text(from);
    }
    row.forEach((bytes, to) => {
      root.append("rect").attr("x", left + cell * to).attr("y", top + cell * from).attr("width", cell - 1).attr("height", cell - 1)
        .attr("fill", bytes ? "var(--moving)" : "var(--idle)").attr("fill-opacity", bytes ? 0.15 + (0.85 * bytes) / most : 1)
        .append("title").text(`PE ${from} to PE ${to}: ${size(bytes)}`);
      if (bytes && cell >= 56) {
        root.append("text").attr("x", left + cell * (to + 0.5)).attr("y", top + cell * (from + 0.5) + 4).attr("text-anchor", "middle").text(size(bytes));
      }
    });
  });
}

function path(into, { summary }, how) {
  into.append("p").text(
    "From the end of the job back to its beginning: on each PE to the last time that it waited for another, and on from that one. " +
    "Only what is on it makes the job shorter if it becomes faster.");
  table(into, [
    { name: "at", of: (step) => step.began, as: time, go: (step) => ({ at: step.began, ns: step.ended - step.began, pe: step.pe }) },
    { name: "for", of: (step) => step.ended - step.began, as: time },
    { name: "on PE", of: (step) => step.pe },
    { name: "then releases PE", of: (step) => step.then?.pe ?? -1, as: (pe) => (pe < 0 ? "–" : pe) },
    { name: "in", of: (step) => step.then?.what ?? "the end of the job" },
    { name: "line", of: (step) => step.then?.line ?? "", mono: true, go: (step) => step.then?.line && { find: step.then.line } },
    { name: "that waited", of: (step) => step.then?.waited_ns ?? 0, as: time },
  ], summary.critical_path, how);
}

function ranges(into, { summary }, how) {
  into.append("p").text("What the program names by trace_range and trace_range_start, and what the PE did in that time.");
  const share = (name) => ({ name, of: (row) => row[name] / Math.max(row.ns, 1), as: percent });
  table(into, [
    { name: "time", of: (row) => row.ns, as: time },
    { name: "times", of: (row) => row.times, as: count },
    ...STATES.slice(0, -1).map(share),
    { name: "PE", of: (row) => row.pe },
    { name: "range", of: (row) => row.name, go: (row) => ({ find: row.name }) },
  ], summary.ranges, how);
}

function kernels(into, { summary }, how) {
  table(into, [
    { name: "time", of: (row) => row.ns, as: time },
    { name: "times", of: (row) => row.times, as: count },
    { name: "PE", of: (row) => row.pe },
    { name: "kernel", of: (row) => row.name, mono: true, go: (row) => ({ find: row.name }) },
  ], summary.kernels, { ...how, marked: (row) => row.name === how.chosen?.label && row.pe === how.chosen.pe });
}

function lines(into, { summary }, how) {
  into.append("p").text("Operations and the host's calls by source line, of all PEs.");
  table(into, [
    { name: "time", of: (row) => row.ns, as: time },
    { name: "times", of: (row) => row.times, as: count },
    { name: "bytes", of: (row) => row.bytes, as: (bytes) => (bytes ? size(bytes) : "") },
    { name: "what", of: (row) => row.what, go: (row) => ({ find: row.what }) },
    { name: "line", of: (row) => row.line, mono: true, go: (row) => row.line && { find: row.line } },
  ], summary.lines, { ...how, marked: (row) => isAt(row, row.what, how) });
}

const PANELS = {
  PEs: pes, "Who waited for whom": waits, Traffic: traffic, "Critical path": path, Ranges: ranges, Kernels: kernels, Lines: lines,
};

/** Fill the tabs and panels; `follow` is told where the reader wants to go. Returns `update`. */
export function tables(data, follow) {
  const tabs = select("#tabs"), panels = select("#panels"), names = Object.keys(PANELS).filter((name) => name !== "Ranges" || data.summary.ranges.length);
  const orders = Object.fromEntries(names.map((name) => [name, { by: null, down: true, most: MOST }]));
  let summary = { ...data.summary, whole: true }, chosen = null, current = names[0], filled = new Set();
  const show = (name) => {
    current = name;
    tabs.selectAll("button").attr("aria-selected", (_, k) => String(names[k] === name)).attr("tabindex", (_, k) => (names[k] === name ? 0 : -1));
    panels.selectAll("section").attr("hidden", (_, k) => (names[k] === name ? null : ""));
    fill(name);
  };
  function fill(name) {
    if (filled.has(name)) return;
    filled.add(name);
    const panel = select(`#panel${names.indexOf(name)}`);
    const focused = [...panel.node().querySelectorAll("button")].indexOf(document.activeElement);
    panel.selectAll("*").remove();
    panel.append("h2").text(name);
    if (!summary.whole) panel.append("p").attr("class", "span").text(`In view: ${time(summary.to - summary.from)} of ${time(data.ns_all)}.`);
    PANELS[name](panel, { ...data, summary }, { follow, order: orders[name], chosen });
    if (focused >= 0) panel.node().querySelectorAll("button")[focused]?.focus({ preventScroll: true });
  }
  names.forEach((name, k) => {
    tabs.append("button").attr("role", "tab").attr("id", `tab${k}`).attr("aria-controls", `panel${k}`).text(name)
      .on("click", () => show(name))
      .on("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        const to = (k + by + names.length) % names.length;
        show(names[to]);
        document.getElementById(`tab${to}`).focus();
      });
    panels.append("section").attr("class", "panel").attr("role", "tabpanel").attr("id", `panel${k}`).attr("aria-labelledby", `tab${k}`);
  });
  show(current);
  addEventListener("beforeprint", () => names.forEach(fill));
  /** Show what is in view, and where the selected event is in it. */
  return function update(inView, event) {
    [summary, chosen, filled] = [inView, event, new Set()];
    fill(current);
  };
}
