// The timeline: a strip per PE of what it does, and below it, if it is open, its blocks, kernels and
// hosts. Time goes from `from` to `to`, in nanoseconds; the canvas is as high as what is seen of it.

import { scaleLinear } from "d3-scale";
import { first, lower } from "./data.js";
import { moment, size } from "./format.js";

const LEFT = 150, AXIS = 22, CHART = 34, STRIP = 20, LANE = 14, GAP = 3;
const APART = 16, LOOKED_AT = 200_000; // pixels between arrows to a row; waits looked at for them
const SHORTEST = 20; // nanoseconds that can be shown across the whole width
export const STATES = ["computing", "moving", "waiting", "compiling", "idle"]; // as in analysis.py
const BY_CATEGORY = {
  kernel: "kernel", block: "computing", host: "host", move: "moving", wait: "waiting", meet: "meet",
  order: "host", compute: "computing", compile: "compiling",
  range: "range",
};

export class Timeline {
  constructor(data, view, changed) {
    Object.assign(this, { data, view, changed });
    this.canvas = view.querySelector("canvas");
    this.space = view.querySelector("#space");
    this.pen = this.canvas.getContext("2d");
    this.open = new Set(data.n_pes <= 2 ? [...Array(data.n_pes).keys()] : []);
    this.showArrows = true;
    this.showPath = false;
    this.selected = this.pointed = -1; // events
    this.hits = null; // events that are searched for, in order
    this.from = 0;
    this.to = Math.max(data.ns_all, SHORTEST);
    this.arrange();
    this.draw();
    const again = () => this.draw();
    new ResizeObserver(again).observe(view);
    view.addEventListener("scroll", again);
    const anew = () => { this.colours = null; this.paint(); }; // at once: paper does not wait for a frame
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", anew);
    for (const when of ["beforeprint", "afterprint"]) addEventListener(when, () => setTimeout(anew));
    this.listen();
  }

  // --- what is where

  /** Where strips and lanes are, from the top of the content. */
  arrange() {
    const { data } = this;
    let y = AXIS + 2 * CHART;
    this.rows = [];
    this.stripAt = [];
    this.laneAt = new Float64Array(data.track.length).fill(-1);
    for (let pe = 0; pe < data.n_pes; pe++) {
      this.stripAt[pe] = y;
      this.rows.push({ y, height: STRIP, pe, name: `PE ${pe}` });
      y += STRIP + GAP;
      if (!this.open.has(pe)) continue;
      for (const track of data.tracks) {
        if (track.pe !== pe) continue;
        this.rows.push({ y, height: LANE * track.lanes, pe, name: track.name, track });
        for (let k = 0; k < track.lanes; k++) this.laneAt[track.first + k] = y + LANE * k;
        y += LANE * track.lanes + GAP;
      }
    }
    this.height = y;
    this.space.style.height = `${y}px`;
    this.view.style.maxHeight = `${y + 24}px`;
  }

  /** The middle of the row that shows an event. */
  yOf(k) {
    const lane = this.data.lane[k], at = this.laneAt[lane];
    if (at >= 0) return at + LANE / 2;
    return this.stripAt[this.peOf(k)] + STRIP / 2;
  }

  get width() { return this.view.clientWidth - LEFT; }
  xOf(ns) { return LEFT + ((ns - this.from) * this.width) / (this.to - this.from); }
  nsAt(x) { return this.from + ((x - LEFT) * (this.to - this.from)) / this.width; }

  peOf(k) { return this.data.tracks[this.data.track[this.data.lane[k]]].pe; }

  /** What is at a place of the canvas: {event} or {pe} or {row}. */
  at(x, y) {
    const content = y + this.view.scrollTop;
    if (y < AXIS + 2 * CHART) return {};
    const row = this.rows.find((row) => content >= row.y && content < row.y + row.height);
    if (!row || x < LEFT) return { row };
    if (!row.track) return { row, pe: row.pe };
    const lane = row.track.first + Math.floor((content - row.y) / LANE);
    const [low, high] = this.lane(lane), reach = (3 * (this.to - this.from)) / this.width;
    const ns = this.nsAt(x);
    let k = first(this.data.began, ns, low, high);
    const near = (k) => k >= low && k < high && this.data.began[k] - reach <= ns && this.end(k) + reach >= ns;
    if (k > low && this.end(k - 1) >= ns) k -= 1;
    return { row, event: near(k) ? k : near(k - 1) ? k - 1 : undefined };
  }

  lane(lane) { return [this.data.lane_starts[lane], this.data.lane_starts[lane + 1]]; }
  end(k) { return this.data.began[k] + this.data.ns[k]; }

  // --- moving about

  whole() { this.show(0, Math.max(this.data.ns_all, SHORTEST)); }

  // The view of a page that is opened: the whole job, or its kernels where most of it is compiling.
  begin() {
    const { data } = this;
    if (2 * data.summary.pes[0].compiling < data.ns_all) return;
    const kernel = data.categories.indexOf("kernel");
    let [from, to] = [Infinity, 0];
    for (let k = 0; k < data.began.length; k++) {
      if (data.category[k] !== kernel) continue;
      [from, to] = [Math.min(from, data.began[k]), Math.max(to, this.end(k))];
    }
    if (from < to) this.show(from - 0.05 * (to - from), to + 0.05 * (to - from));
  }

  show(from, to) {
    const all = Math.max(this.data.ns_all, SHORTEST), span = Math.min(Math.max(to - from, SHORTEST), all);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - span / 2, 0), all - span);
    this.to = this.from + span;
    this.draw();
    this.changed();
  }

  zoom(factor, x = LEFT + this.width / 2) {
    const at = this.nsAt(x), span = Math.max((this.to - this.from) * factor, SHORTEST);
    const share = (x - LEFT) / this.width;
    this.show(at - share * span, at + (1 - share) * span);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  toggle(pe) {
    if (!this.open.delete(pe)) this.open.add(pe);
    this.arrange();
    this.draw();
    this.changed();
  }

  expand(all) {
    this.open = new Set(all ? Array(this.data.n_pes).keys() : []);
    this.arrange();
    this.draw();
    this.changed();
  }

  /** Select an event, and bring it into view; -1: none. */
  select(k, zoom = false) {
    this.selected = k;
    if (k >= 0) {
      this.open.add(this.peOf(k));
      this.arrange();
      const [began, end] = [this.data.began[k], this.end(k)];
      const ns = Math.max(end - began, SHORTEST / 4);
      if (zoom) this.show(began - ns / 2, end + ns / 2);
      else if (end < this.from || began > this.to) {
        const span = this.to - this.from;
        this.show(began - span / 2, began + span / 2);
      }
      const y = this.yOf(k), { scrollTop, clientHeight } = this.view;
      if (y < scrollTop + AXIS + 2 * CHART + LANE || y > scrollTop + clientHeight - LANE) {
        this.view.scrollTop = y - clientHeight / 2;
      }
    }
    this.draw();
    this.changed();
  }

  /** The pointer is at an event; -1: at none. */
  point(k) {
    if (k === this.pointed) return;
    this.pointed = k;
    this.draw();
  }

  /** The neighbour of the selected event in its lane; of what is searched for, if anything is. */
  step(by) {
    const { hits, selected } = this;
    if (hits) {
      if (!hits.length) return;
      let near = hits.indexOf(selected);
      if (near < 0 && by < 0) near = 0;
      this.select(hits[(near + by + hits.length) % hits.length]);
    } else if (selected >= 0) {
      const [low, high] = this.lane(this.data.lane[selected]);
      this.select(Math.min(Math.max(selected + by, low), high - 1));
    } else if (this.data.began.length) {
      this.select(0);
    }
  }

  listen() {
    const { view } = this;
    let drag = null;
    view.addEventListener("wheel", (event) => {
      const { left } = view.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) this.zoom(2 ** (event.deltaY / 200), event.clientX - left);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        this.pan((event.deltaX || event.deltaY) / this.width);
      } else return;
      event.preventDefault();
    }, { passive: false });
    view.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && event.target === this.canvas) drag = { x: event.clientX, from: this.from, moved: false };
    });
    addEventListener("pointermove", (event) => {
      if (!event.buttons) drag = null;
      if (!drag) return;
      const by = event.clientX - drag.x;
      if (Math.abs(by) > 3) drag.moved = true;
      if (!drag.moved) return;
      const span = this.to - this.from, from = drag.from - (by * span) / this.width;
      this.show(from, from + span);
    });
    addEventListener("pointercancel", () => { drag = null; });
    addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) {
        const box = this.canvas.getBoundingClientRect();
        const found = this.at(event.clientX - box.left, event.clientY - box.top);
        if (found.event !== undefined) this.select(found.event);
        else if (found.row && !found.row.track) this.toggle(found.row.pe);
        else this.select(-1);
      }
      drag = null;
    });
  }

  // --- drawing

  draw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      this.paint();
    });
  }

  colour(name) {
    if (!this.colours) {
      const style = getComputedStyle(document.documentElement);
      this.colours = new Map();
      this.css = (name) => style.getPropertyValue(`--${name}`).trim();
    }
    if (!this.colours.has(name)) this.colours.set(name, this.css(name));
    return this.colours.get(name);
  }

  paint() {
    const { pen, canvas, view } = this, ratio = devicePixelRatio || 1;
    if (this.width < 20) return; // there is no room, or it is hidden
    const width = view.clientWidth;
    const height = matchMedia("print").matches ? Math.min(this.height, 4000) : view.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const top = view.scrollTop, seen = (row) => row.y + row.height > top && row.y < top + height;
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS + 2 * CHART, width, height);
    pen.clip();
    pen.translate(0, -top);
    this.rows.filter(seen).forEach((row) => this.name(row));
    pen.beginPath();
    pen.rect(LEFT, 0, width, this.height);
    pen.clip();
    for (const row of this.rows.filter(seen)) {
      if (!row.track) this.strip(row);
      else for (let k = 0; k < row.track.lanes; k++) this.events(row.track.first + k, row.y + LANE * k);
    }
    if (this.showPath) this.path();
    if (this.showArrows) this.arrows(top, height);
    if (this.pointed >= 0) this.arrowsOf(this.pointed);
    if (this.selected >= 0) this.mark(this.selected);
    pen.restore();
    this.axis(width);
    this.chart(AXIS, "moved", "moving", (value) => `${size(value)}/s`, (from, to) => this.moved(from, to));
    this.chart(AXIS + CHART, "heap", "heap", size, (from) => this.heap(from));
  }

  name(row) {
    const { pen } = this, y = row.y + row.height / 2;
    pen.fillStyle = this.colour(row.track ? "faint" : "text");
    pen.textAlign = "left";
    const fits = row.track ? 20 : 6;
    const mark = row.track ? "" : this.open.has(row.pe) ? "▾ " : "▸ ";
    pen.fillText(mark + row.name, fits, Math.min(y, row.y + STRIP / 2), LEFT - fits - 6);
  }

  axis(width) {
    const { pen } = this, scale = scaleLinear([this.from, this.to], [LEFT, width]);
    const ticks = scale.ticks(Math.max(2, Math.floor(this.width / 110)));
    pen.fillStyle = this.colour("back");
    pen.fillRect(0, 0, width, AXIS + 2 * CHART);
    pen.textAlign = "center";
    for (const tick of ticks) {
      const x = scale(tick);
      pen.fillStyle = this.colour("line");
      pen.fillRect(x, AXIS - 5, 1, 5);
      pen.fillStyle = this.colour("faint");
      pen.fillText(moment(tick, ticks[1] - ticks[0]), Math.max(x, LEFT + 20), AXIS / 2 - 2);
    }
    pen.fillStyle = this.colour("line");
    pen.fillRect(0, AXIS, width, 1);
    pen.fillRect(0, AXIS + 2 * CHART - 1, width, 1);
  }

  /** Bars of a few pixels over the time; `value` tells how high, from one moment to another. */
  chart(y, name, colour, shown, value) {
    const { pen } = this, step = Math.max((3 * (this.to - this.from)) / this.width, 1);
    const first = Math.max(Math.floor(this.from / step), 0), last = Math.min(this.to, this.data.ns_all) / step;
    const values = [];
    for (let k = first; k < last; k++) values.push(value(k * step, (k + 1) * step));
    const most = values.reduce((a, b) => Math.max(a, b), 0);
    pen.textAlign = "left";
    pen.fillStyle = this.colour("faint");
    pen.fillText(name, 6, y + 11, LEFT - 12);
    pen.fillText(most ? `to ${shown(most)}` : "none", 6, y + 25, LEFT - 12);
    pen.fillStyle = this.colour(colour);
    pen.beginPath();
    values.forEach((each, k) => {
      const x = Math.max(this.xOf((first + k) * step), LEFT), high = most ? (each / most) * (CHART - 6) : 0;
      pen.rect(x, y + CHART - 2 - high, Math.max(this.xOf((first + k + 1) * step) - x, 0), high);
    });
    pen.fill();
  }

  /** Bytes a second between two moments. */
  moved(from, to) {
    const { moved, moved_at: at } = this.data;
    const until = (ns) => {
      const k = first(at, ns, 0, at.length);
      if (k === 0 || k === at.length) return moved[k === 0 ? 0 : k - 1] ?? 0;
      return moved[k - 1] + ((moved[k] - moved[k - 1]) * (ns - at[k - 1])) / (at[k] - at[k - 1]);
    };
    const bytes = until(to) - until(from), all = moved[moved.length - 1] ?? 0;
    return bytes > 1e-12 * all ? (bytes / (to - from)) * 1e9 : 0; // else it is what rounding leaves
  }

  /** Bytes that are allocated at a moment. */
  heap(at) {
    const k = first(this.data.heap_at, at + 1, 0, this.data.heap_at.length);
    return k ? this.data.heap[k - 1] : 0;
  }

  /** What the PE does, all in all. */
  strip(row) {
    const { data } = this, [low, high] = [data.state_starts[row.pe], data.state_starts[row.pe + 1]];
    this.spans((k) => data.state_began[k], (k) => data.state_began[k] + data.state_ns[k], low, high,
      row.y, STRIP, (k) => this.colour(STATES[data.state[k]]));
  }

  events(lane, y) {
    const { data, hits } = this, [low, high] = this.lane(lane);
    const colour = (k) => this.colour(BY_CATEGORY[data.categories[data.category[k]]]);
    const named = (k, x, width) => this.text(k, x, width, y);
    this.pen.globalAlpha = hits ? 0.2 : 1;
    this.spans((k) => data.began[k], (k) => this.end(k), low, high, y, LANE - 1, colour,
      hits ? null : named);
    this.pen.globalAlpha = 1;
    if (!hits) return;
    const [from, to] = [first(hits, low, 0, hits.length), first(hits, high, 0, hits.length)];
    this.spans((k) => data.began[hits[k]], (k) => this.end(hits[k]), from, to, y, LANE - 1,
      (k) => colour(hits[k]), (k, x, width) => named(hits[k], x, width));
  }

  /** Draw spans that do not overlap; those within a pixel as one. */
  spans(began, end, low, high, y, height, colour, named = null) {
    const { pen } = this, right = LEFT + this.width, perPixel = (this.to - this.from) / this.width;
    let k = lower(began, this.from, low, high);
    if (k > low) k -= 1;
    while (k < high && began(k) <= this.to) {
      const x0 = Math.max(this.xOf(began(k)), LEFT), x1 = Math.min(this.xOf(end(k)), right);
      if (x1 >= LEFT) {
        pen.fillStyle = colour(k);
        pen.fillRect(x0, y, Math.max(x1 - x0 - (x1 - x0 > 3 ? 0.5 : 0), 1), height);
        if (named && x1 - x0 > 30) named(k, x0, x1 - x0);
      }
      k += 1;
      if (k < high && this.xOf(began(k)) < x0 + 1 && x1 < x0 + 1) {
        const next = lower(began, this.nsAt(x0 + 1), k, high);
        k = next > k && end(next - 1) > this.nsAt(x0 + 1) + perPixel ? next - 1 : next;
      }
    }
  }

  text(k, x, width, y) {
    const { pen, data } = this;
    pen.save();
    pen.beginPath();
    pen.rect(x, y, width - 2, LANE);
    pen.clip();
    pen.textAlign = "left";
    pen.fillStyle = this.colour("back");
    pen.font = "600 10.5px system-ui, sans-serif";
    pen.fillText(data.labels[data.label[k]], x + 3, y + LANE / 2);
    pen.restore();
  }

  /** From what released a wait to where the wait was over: of those in view the longest, not close to each other. */
  arrows(top, height) {
    const { data } = this, most = Math.min(data.wait_event.length, LOOKED_AT);
    const drawn = new Set();
    for (let k = 0; k < most; k++) {
      const event = data.wait_event[k], by = data.wait_by[k];
      if (by < 0 || event === this.selected || by === this.selected || event === this.pointed || by === this.pointed) continue;
      if (data.wait_over[k] < this.from || data.began[by] > this.to) continue;
      const [y0, y1] = [this.yOf(by), this.yOf(event)], x1 = this.xOf(data.wait_over[k]);
      if (Math.max(y0, y1) < top || Math.min(y0, y1) > top + height || y0 === y1) continue;
      const place = Math.floor(x1 / APART) * 65536 + y1;
      if (drawn.has(place)) continue;
      drawn.add(place);
      this.arrow(this.xOf(data.began[by]), y0, x1, y1, 0.35);
    }
  }

  /** All arrows from and to an event. */
  arrowsOf(k) {
    const { data } = this;
    for (let w = 0; w < data.wait_event.length; w++) {
      const [event, by] = [data.wait_event[w], data.wait_by[w]];
      if (by < 0 || (event !== k && by !== k)) continue;
      this.arrow(this.xOf(data.began[by]), this.yOf(by), this.xOf(data.wait_over[w]), this.yOf(event), 1);
    }
  }

  arrow(x0, y0, x1, y1, alpha, colour = "text") {
    const { pen } = this, bend = Math.max(12, Math.min(60, Math.abs(x1 - x0) / 2));
    pen.globalAlpha = alpha;
    pen.strokeStyle = pen.fillStyle = this.colour(colour);
    pen.lineWidth = alpha === 1 ? 1.8 : 1;
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 2, y1);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x1 - 6, y1 - 3);
    pen.lineTo(x1 - 6, y1 + 3);
    pen.fill();
    pen.globalAlpha = 1;
  }

  /** The selected event, what released it, and what it released. */
  mark(k) {
    const { pen, data } = this, y = this.yOf(k);
    const x = Math.max(this.xOf(data.began[k]), LEFT - 3), right = Math.min(this.xOf(this.end(k)), LEFT + this.width);
    pen.strokeStyle = this.colour("text");
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, y - LANE / 2 - 1, Math.max(right - x, 1) + 2, LANE + 1);
    this.arrowsOf(k);
  }

  path() {
    const { pen, data } = this;
    data.summary.critical_path.forEach((step, k, steps) => {
      const y = this.stripAt[step.pe] + STRIP / 2, next = steps[k + 1];
      pen.strokeStyle = this.colour("path");
      pen.lineWidth = 3;
      pen.beginPath();
      pen.moveTo(Math.max(this.xOf(step.began), LEFT), y);
      pen.lineTo(Math.min(this.xOf(step.ended), LEFT + this.width), y);
      pen.stroke();
      if (next) this.arrow(this.xOf(step.ended), y, this.xOf(next.began), this.stripAt[next.pe] + STRIP / 2, 1, "path");
    });
  }
}

