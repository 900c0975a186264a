// What `page.py` has put into the page: columns of numbers, and what they mean.

const TYPES = { f8: Float64Array, i4: Int32Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array };

async function inflated(text) {
  const packed = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** Everything of the trace: `meta` with the columns as typed arrays. */
export async function read() {
  const [meta, columns] = ["meta", "columns"].map((id) => document.getElementById(id));
  const data = JSON.parse(meta.textContent);
  const buffer = await inflated(columns.textContent.trim());
  columns.remove();
  for (const [name, [type, offset, length]] of Object.entries(data.columns)) {
    data[name] = new TYPES[type](buffer, offset, length);
  }
  return data;
}

/** The first index from `low` on, below `high`, at which what grows with it is not less than a value. */
export function lower(of, value, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(middle) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The same in a sorted column. */
export const first = (column, value, low, high) => lower((k) => column[k], value, low, high);

/** Everything that is said of one event. */
export function described(data, k) {
  const by = data.by[k];
  const label = data.labels[data.label[k]], line = data.sites[data.site[k]];
  return {
    label, line, by,
    pe: data.tracks[data.track[data.lane[k]]].pe, track: data.tracks[data.track[data.lane[k]]].name,
    began: data.began[k], ns: data.ns[k], open: data.open[k] === 1, bytes: data.bytes[k], peer: data.peer[k],
    thread: data.thread[k], category: data.categories[data.category[k]],
  };
}
