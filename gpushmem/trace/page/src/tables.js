// The tables below the timeline; a row that has a place in the timeline leads there.

import { select } from "d3-selection";
import { count, percent, size, time } from "./format.js";
import { STATES } from "./timeline.js";

const MOST = 200; // rows shown at first
const PICTURED = 128; // PEs of which there is a picture of the traffic

/**
 * A table. `columns`: {name, of: row => value, as: value => text, go: row => anything to follow}.
 * It is sorted by a column whose name is clicked.
 */
function table(into, columns, rows, follow) {
  let sorted = rows, by = null, down = true, most = MOST;
  const root = into.append("table");
  const head = root.append("thead").append("tr");
  const body = root.append("tbody");
  const more = into.append("button").text("Show all rows").on("click", () => { most = Infinity; fill(); });
  const numeric = (column) => rows.length > 0 && typeof column.of(rows[0]) === "number";
  for (const column of columns) {
    const title = head.append("th").attr("scope", "col").classed("number", numeric(column));
    if (!column.name) continue;
    title.append("button").text(column.name).on("click", () => {
        down = by === column ? !down : numeric(column);
        by = column;
        const sign = down ? -1 : 1;
        sorted = [...rows].sort((a, b) => sign * (column.of(a) > column.of(b) ? 1 : column.of(a) < column.of(b) ? -1 : 0));
        fill();
      });
  }
  function fill() {
    head.selectAll("th").attr("aria-sort", (_, k) => (columns[k] === by ? (down ? "descending" : "ascending") : null));
    body.selectAll("tr").remove();
    for (const row of sorted.slice(0, most)) {
      const line = body.append("tr");
      for (const column of columns) {
        const cell = line.append("td").classed("number", numeric(column)).classed("mono", !!column.mono);
        const value = column.of(row), text = column.as ? column.as(value, row) : value;
        const to = column.go?.(row);
        if (to) cell.append("button").text(text).on("click", () => follow(to));
        else if (column.draw) column.draw(cell, row);
        else cell.text(text);
      }
    }
    more.attr("hidden", rows.length > most ? null : "");
  }
  fill();
}

function pes(into, { summary }, follow) {
  into.append("p").text(
    "At each moment a PE waits if all its blocks do, else moves data if an operation does, else computes; " +
    "while no kernel runs it compiles if its host does. " +
    "Overlapped: the part of moving in which another block of the PE computes.");
  const states = STATES.map((name) => ({
    name, of: (pe) => pe[name], as: (ns) => `${time(ns)} · ${percent(ns / Math.max(summary.ns, 1))}`,
  }));
  const bar = (cell, pe) => {
    const root = cell.append("div").attr("class", "bar").attr("aria-hidden", "true");
    for (const name of STATES) {
      root.append("i").style("width", `${(100 * pe[name]) / Math.max(summary.ns, 1)}%`).style("background", `var(--${name})`);
    }
  };
  table(into, [
    { name: "PE", of: (pe) => pe.pe, go: (pe) => ({ pe: pe.pe }) },
    ...states,
    { name: "overlapped", of: (pe) => (pe.moving ? pe.overlap / pe.moving : 0), as: percent },
    { name: "sent", of: (pe) => pe.sent, as: size },
    { name: "received", of: (pe) => pe.received, as: size },
    { name: "", of: () => "", draw: bar },
  ], summary.pes, follow);
}

function waits(into, { summary }, follow) {
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
  ], summary.waits, follow);
}

/** Bytes from each PE to each, as a picture if they are not too many, and as a table. */
function traffic(into, { summary, n_pes }, follow) {
  if (n_pes <= PICTURED) picture(into.append("div"), summary.sent, n_pes);
  const pairs = summary.sent.flatMap((row, from) => row.map((bytes, to) => ({ from, to, bytes })).filter(({ bytes }) => bytes));
  table(into, [
    { name: "bytes", of: (pair) => pair.bytes, as: size },
    { name: "from PE", of: (pair) => pair.from },
    { name: "to PE", of: (pair) => pair.to },
  ], pairs.sort((a, b) => b.bytes - a.bytes), follow);
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

function path(into, { summary }, follow) {
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
  ], summary.critical_path, follow);
}

function ranges(into, { summary }, follow) {
  into.append("p").text("What the program names by trace_range and trace_range_start, and what the PE did in that time.");
  const share = (name) => ({ name, of: (row) => row[name] / Math.max(row.ns, 1), as: percent });
  table(into, [
    { name: "time", of: (row) => row.ns, as: time },
    { name: "times", of: (row) => row.times, as: count },
    ...STATES.slice(0, -1).map(share),
    { name: "PE", of: (row) => row.pe },
    { name: "range", of: (row) => row.name, go: (row) => ({ find: row.name }) },
  ], summary.ranges, follow);
}

function kernels(into, { summary }, follow) {
  table(into, [
    { name: "time", of: (row) => row.ns, as: time },
    { name: "times", of: (row) => row.times, as: count },
    { name: "PE", of: (row) => row.pe },
    { name: "kernel", of: (row) => row.name, mono: true, go: (row) => ({ find: row.name }) },
  ], summary.kernels, follow);
}

function lines(into, { summary }, follow) {
  into.append("p").text("Operations and the host's calls by source line, of all PEs.");
  table(into, [
    { name: "time", of: (row) => row.ns, as: time },
    { name: "times", of: (row) => row.times, as: count },
    { name: "bytes", of: (row) => row.bytes, as: (bytes) => (bytes ? size(bytes) : "") },
    { name: "what", of: (row) => row.what, go: (row) => ({ find: row.what }) },
    { name: "line", of: (row) => row.line, mono: true, go: (row) => row.line && { find: row.line } },
  ], summary.lines, follow);
}

const PANELS = {
  PEs: pes, "Who waited for whom": waits, Traffic: traffic, "Critical path": path, Ranges: ranges, Kernels: kernels, Lines: lines,
};

/** Fill the tabs and panels; `follow` is told where the reader wants to go. */
export function tables(data, follow) {
  const tabs = select("#tabs"), panels = select("#panels"), names = Object.keys(PANELS).filter((name) => name !== "Ranges" || data.summary.ranges.length);
  const show = (chosen) => {
    tabs.selectAll("button").attr("aria-selected", (_, k) => String(names[k] === chosen)).attr("tabindex", (_, k) => (names[k] === chosen ? 0 : -1));
    panels.selectAll("section").attr("hidden", (_, k) => (names[k] === chosen ? null : ""));
  };
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
    const panel = panels.append("section").attr("class", "panel").attr("role", "tabpanel").attr("id", `panel${k}`).attr("aria-labelledby", `tab${k}`);
    panel.append("h2").text(name);
    PANELS[name](panel, data, follow);
  });
  show(names[0]);
}
