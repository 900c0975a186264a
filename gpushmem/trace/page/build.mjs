// Builds ../page.html of the sources here: `npm install && npm run build`.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const options = { bundle: true, minify: true, write: false, legalComments: "inline", charset: "utf8" };
const [script] = (await build({ ...options, entryPoints: ["src/main.js"], format: "iife" })).outputFiles;
const [style] = (await build({ ...options, entryPoints: ["style.css"] })).outputFiles;

// tests/trace/test_page.py computes the same of the sources: a page that was not built anew is seen.
const sources = ["package.json", "page.html", "style.css", ...readdirSync("src").map((name) => `src/${name}`)];
const hash = createHash("sha256");
for (const name of sources.sort()) hash.update(readFileSync(name));

const put = (page, mark, text) => page.replace(mark, () => text);
let page = readFileSync("page.html", "utf8");
page = put(page, "/* style */", style.text.trim());
page = put(page, "/* script */", script.text.trim().replaceAll("</script", "<\\/script"));
page = put(page, "sources", hash.digest("hex"));
writeFileSync("../page.html", page);
console.log(`../page.html: ${page.length} bytes`);
