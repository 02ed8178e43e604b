// node miniflare.mjs FAR PAGE: runs the relay of web/docs/relay.md on this machine, with the settings of its file for
// wrangler, and prints its address. It ends with its standard input.

import { readFile } from "node:fs/promises";

import { Miniflare } from "miniflare";

const [FAR, PAGE] = process.argv.slice(2);
process.stdin.resume();
const ended = new Promise((resolve) => process.stdin.once("end", resolve));
// JSON may not have commas before a closing bracket, and wrangler's file may.
const settings = JSON.parse((await readFile("wrangler.jsonc", "utf8")).replace(/,(?=\s*[}\]])/g, ""));
const relay = new Miniflare({
  modules: true,
  script: await readFile(settings.main, "utf8"),
  compatibilityDate: settings.compatibility_date,
  bindings: { ...settings.vars, FAR, PAGE, FAR_KEY: "secret" },
  ratelimits: Object.fromEntries(settings.ratelimits.map(({ name, simple }) => [name, { simple }])),
});
console.log(String(await relay.ready));
await ended;
await relay.dispose();
