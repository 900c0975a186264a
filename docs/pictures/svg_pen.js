// What the page's timeline draws on its canvas, as SVG: a pen with those of a canvas's methods that
// it uses. `draw` returns the picture of a span of time, with all PEs open, or none.

const round = (x) => Math.round(x * 10) / 10;
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

class SvgPen {
  constructor() {
    this.out = [];
    this.state = { dx: 0, dy: 0, groups: 0 };
    this.saved = [];
    this.clips = 0;
    this.globalAlpha = this.lineWidth = 1;
  }
  setTransform() {}
  clearRect() {}
  save() {
    this.saved.push({ ...this.state, font: this.font });
    this.state.groups = 0;
  }
  restore() {
    this.out.push("</g>".repeat(this.state.groups));
    const { font, ...state } = this.saved.pop();
    Object.assign(this, { font, state });
  }
  translate(x, y) { this.state.dx += x; this.state.dy += y; }
  at(x, y) { return `${round(x + this.state.dx)} ${round(y + this.state.dy)}`; }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${this.at(x, y)}`; }
  lineTo(x, y) { this.path += `L${this.at(x, y)}`; }
  bezierCurveTo(a, b, c, d, x, y) { this.path += `C${this.at(a, b)} ${this.at(c, d)} ${this.at(x, y)}`; }
  rect(x, y, width, height) {
    if (width > 0 && height > 0) this.path += `M${this.at(x, y)}h${round(width)}v${round(height)}h${-round(width)}z`;
  }
  clip() {
    const id = `c${this.clips++}`;
    this.out.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath><g clip-path="url(#${id})">`);
    this.state.groups += 1;
  }
  get alpha() { return this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : ""; }
  fill() { if (this.path) this.out.push(`<path d="${this.path}" fill="${this.fillStyle}"${this.alpha}/>`); }
  stroke() {
    this.out.push(`<path d="${this.path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"${this.alpha}/>`);
  }
  fillRect(x, y, width, height) {
    this.beginPath();
    this.rect(x, y, width, height);
    this.fill();
  }
  fillText(text, x, y) {
    const [, weight, size] = this.font.match(/^(?:(\d+) )?([\d.]+px)/);
    const [left, top] = this.at(x, y).split(" "), anchor = this.textAlign === "center" ? ' text-anchor="middle"' : "";
    this.out.push(`<text x="${left}" y="${top}" font-size="${size}" font-weight="${weight ?? 400}"`
      + ` fill="${this.fillStyle}"${anchor} dominant-baseline="central">${escaped(text)}</text>`);
  }
}

function draw(from, to, open) {
  const { timeline } = trace;
  timeline.expand(open);
  timeline.view.style.maxHeight = timeline.view.style.height = `${timeline.height + 2}px`;
  timeline.show(from, to);
  timeline.pen = new SvgPen();
  timeline.paint();
  const [width, height] = [timeline.view.clientWidth, timeline.height];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"`
    + ` font-family="system-ui, sans-serif"><rect width="100%" height="100%" rx="6" fill="${timeline.colour("back")}"/>`
    + `${timeline.pen.out.join("\n")}</svg>\n`;
}
