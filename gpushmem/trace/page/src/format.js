import { format } from "d3-format";

const three = format(".3~r");

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]];

/** Nanoseconds, in three digits. */
export function time(ns) {
  for (const [scale, unit] of UNITS) if (Math.abs(ns) >= scale) return `${three(ns / scale)} ${unit}`;
  return `${Math.round(ns)} ns`;
}

/** A moment, exact where what is shown is short: `step` is how far apart two labels are. */
export function moment(ns, step) {
  const [scale, unit] = UNITS.find(([scale]) => Math.abs(ns) >= scale) ?? [1, "ns"];
  const digits = Math.max(0, Math.ceil(Math.log10(scale / Math.max(step, 1e-3))));
  return `${(ns / scale).toFixed(Math.min(digits, 9))} ${unit}`;
}

export function size(bytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (bytes < 1024 || unit === "TiB") return `${unit === "B" ? bytes : three(bytes)} ${unit}`;
    bytes /= 1024;
  }
}

export const count = format(",");
export const percent = format(".0%");
