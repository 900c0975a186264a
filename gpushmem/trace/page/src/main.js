// The page of a trace: reads what is in it, and joins the timeline, the tables and the controls.

import { described, read } from "./data.js";
import { count, moment, size, time } from "./format.js";
import { tables } from "./tables.js";
import { Timeline } from "./timeline.js";
import { within } from "./view.js";

const KEYS = {
  "← → or a d": "move", "+ − or w s": "zoom; also the wheel with Ctrl", "↑ ↓": "scroll", "0": "the whole job",
  "n p": "next and previous event of the row, or of those found", f: "go to what released the selected wait",
  z: "zoom to the selected event", e: "expand or collapse all PEs", Enter: "the PE of the selected event", "/": "find", Esc: "clear, or close these keys", "?": "these keys",
};
const LEGEND = [
  ["computing", "computing"], ["moving", "moving data"], ["waiting", "waiting"], ["meet", "barrier or collective"],
  ["kernel", "kernel"], ["compiling", "compiling"], ["range", "range"], ["host", "host"], ["idle", "idle"],
];
const id = (name) => document.getElementById(name);

function facts(data) {
  const pes = data.n_pes === 1 ? "1 PE" : `${data.n_pes} PEs`;
  id("title").textContent = document.title = data.title;
  id("facts").textContent = `${pes} · ${time(data.ns_all)} · ${count(data.began.length)} events`;
  const lost = Object.entries(data.lost);
  if (!lost.length) return;
  const text = lost.map(([pe, n]) => `${count(n)} of PE ${pe}`).join(", ");
  id("warning").textContent = `The oldest events are lost: ${text}. Set GPUSHMEM_TRACE_EVENTS to keep more.`;
  id("warning").hidden = false;
}

function legend() {
  for (const [colour, text] of LEGEND) {
    const entry = document.createElement("span"), box = document.createElement("i");
    box.style.background = `var(--${colour})`;
    entry.append(box, text);
    id("legend").append(entry);
  }
  for (const [key, text] of Object.entries(KEYS)) {
    const [term, meaning] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = key;
    meaning.textContent = text;
    id("keys").append(term, meaning);
  }
}

/** What is said of an event, as nodes: in the tip short, below the timeline with a way to its releaser. */
function told(data, k, follow) {
  const event = described(data, k), root = document.createElement("div"), name = document.createElement("b");
  name.textContent = event.label;
  const parts = [` on PE ${event.pe}, ${event.track}`];
  if (event.thread >= 0 && event.category !== "kernel" && event.track.startsWith("block")) parts.push(`thread ${event.thread}`);
  if (event.bytes > 0) parts.push(size(event.bytes));
  if (event.peer >= 0) parts.push(`with PE ${event.peer}`);
  parts.push(`at ${moment(event.began, 1)}`, event.open ? "had not ended" : `took ${time(event.ns)}`);
  root.append(name, parts.join(", "));
  if (event.line) {
    const line = document.createElement("div");
    line.className = "mono";
    line.textContent = event.line;
    root.append(line);
  }
  if (event.by >= 0) {
    const by = described(data, event.by), line = document.createElement("div");
    line.append(`released by ${by.label} of PE ${by.pe}${by.line ? `, ${by.line}` : ""} `);
    if (follow) {
      const button = document.createElement("button");
      button.textContent = "Go there";
      button.onclick = () => follow(event.by);
      line.append(button);
    }
    root.append(line);
  }
  return root;
}

/** The events whose operation, kernel or line has the text: their indices, row by row. */
function found(data, text) {
  const wanted = text.toLowerCase(), has = (texts) => texts.map((each) => each.toLowerCase().includes(wanted));
  const [labels, sites] = [has(data.labels), has(data.sites)];
  const hits = [];
  for (let k = 0; k < data.began.length; k++) if (labels[data.label[k]] || sites[data.site[k]]) hits.push(k);
  return Uint32Array.from(hits);
}

function start(data) {
  facts(data);
  legend();
  const view = id("view");
  const timeline = new Timeline(data, view, () => changed());
  let later = 0, shown = -1, seen = null, update = () => {};
  function note() {
    if (!seen || seen.span[0] !== timeline.from || seen.span[1] !== timeline.to) {
      seen = { ...within(data, timeline.from, timeline.to), span: [timeline.from, timeline.to] };
    }
    update(seen, timeline.selected >= 0 ? described(data, timeline.selected) : null);
    const where = new URLSearchParams({ from: Math.round(timeline.from), to: Math.round(timeline.to) });
    if (timeline.selected >= 0) where.set("event", timeline.selected);
    if (location.protocol !== "about:") history.replaceState(null, "", `#${where}`); // not in a notebook's frame
  }
  function changed() {
    id("expand").textContent = timeline.open.size ? "Collapse all" : "Expand all";
    clearTimeout(later);
    later = setTimeout(note, 200);
    const { selected } = timeline;
    if (selected === shown) return;
    shown = selected;
    const go = (k) => { timeline.select(k); view.focus(); };
    id("detail").replaceChildren(...(selected >= 0 ? [told(data, selected, go)] : []));
  }
  function arrive() {
    const where = new URLSearchParams(location.hash.slice(1)), number = (name) => Number(where.get(name));
    const event = number("event");
    if (where.has("event") && Number.isInteger(event) && event >= 0 && event < data.began.length) timeline.select(event);
    if (where.has("from") && number("to") > number("from")) timeline.show(number("from"), number("to"));
    else if (!where.has("event")) timeline.begin();
  }
  function find(text) {
    id("query").value = text;
    timeline.hits = text ? found(data, text) : null;
    id("found").textContent = text ? `${count(timeline.hits.length)} events` : "";
    timeline.draw();
  }
  function follow(to) {
    if (to.find !== undefined) {
      find(to.find);
      if (timeline.hits.length) timeline.select(timeline.hits[0]);
    } else {
      if (to.pe !== undefined && !timeline.open.has(to.pe)) timeline.toggle(to.pe);
      if (to.at !== undefined) timeline.show(to.at - to.ns / 4, to.at + 1.25 * to.ns);
      view.scrollTop = timeline.stripAt[to.pe] - 120;
    }
    view.scrollIntoView({ block: "nearest" });
    view.focus({ preventScroll: true });
  }
  const expand = () => timeline.expand(timeline.open.size === 0);
  const help = () => {
    id("keys").hidden = !id("keys").hidden;
    id("help").setAttribute("aria-expanded", String(!id("keys").hidden));
  };
  const press = {
    out: () => timeline.zoom(1.6), in: () => timeline.zoom(1 / 1.6), fit: () => timeline.whole(), expand, help,
    link: async () => {
      note();
      await navigator.clipboard.writeText(location.href);
      id("link").textContent = "Copied";
      setTimeout(() => { id("link").textContent = "Copy link"; }, 1500);
    },
  };
  id("link").hidden = !navigator.clipboard || location.protocol === "about:";
  for (const [name, act] of Object.entries(press)) id(name).addEventListener("click", act);
  id("arrows").addEventListener("change", (event) => { timeline.showArrows = event.target.checked; timeline.draw(); });
  id("critical").addEventListener("change", (event) => { timeline.showPath = event.target.checked; timeline.draw(); });
  id("query").addEventListener("input", (event) => find(event.target.value));
  id("find").addEventListener("submit", (event) => { event.preventDefault(); timeline.step(1); });

  const keys = {
    ArrowLeft: () => timeline.pan(-0.1), ArrowRight: () => timeline.pan(0.1), a: () => timeline.pan(-0.1), d: () => timeline.pan(0.1),
    "+": press.in, "=": press.in, w: press.in, "-": press.out, s: press.out, 0: press.fit,
    ArrowUp: () => view.scrollBy(0, -40), ArrowDown: () => view.scrollBy(0, 40),
    n: () => timeline.step(1), p: () => timeline.step(-1), e: expand,
    Enter: () => timeline.selected >= 0 && timeline.toggle(timeline.peOf(timeline.selected)),
    f: () => timeline.selected >= 0 && data.by[timeline.selected] >= 0 && timeline.select(data.by[timeline.selected]),
    z: () => timeline.selected >= 0 && timeline.select(timeline.selected, true),
    Escape: () => { if (!id("keys").hidden) help(); else { find(""); timeline.select(-1); } },
    "/": () => id("query").focus(), "?": help,
  };
  // Wherever the focus is; but where a key has a meaning of its own, it keeps that.
  const own = (event) => {
    if (event.target.matches("input[type=search]")) return event.key !== "Escape";
    if (event.target.matches("button, input")) return ["Enter", " "].includes(event.key) || (event.target.role === "tab" && event.key.startsWith("Arrow"));
    return event.target !== view && ["ArrowUp", "ArrowDown"].includes(event.key); // they scroll the page
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || own(event)) return;
    keys[event.key]();
    if (event.target === id("query")) view.focus();
    event.preventDefault();
  });

  const tip = id("tip");
  view.addEventListener("pointermove", (event) => {
    const box = timeline.canvas.getBoundingClientRect();
    const { event: k, pe } = timeline.at(event.clientX - box.left, event.clientY - box.top);
    timeline.point(k ?? -1);
    view.style.cursor = k !== undefined || pe !== undefined ? "pointer" : "grab";
    tip.hidden = k === undefined;
    if (tip.hidden) return;
    tip.replaceChildren(told(data, k));
    const right = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${right}px`;
    tip.style.top = `${event.clientY + 18}px`;
  });
  view.addEventListener("pointerleave", () => { tip.hidden = true; timeline.point(-1); });

  update = tables(data, follow);
  addEventListener("hashchange", arrive);
  arrive();
  changed();
  window.trace = { data, timeline, within }; // for the console, and for tests
  document.body.dataset.ready = "1";
}

read().then(start).catch((error) => {
  id("warning").textContent = `The trace cannot be shown: ${error.message}`;
  id("warning").hidden = false;
});
