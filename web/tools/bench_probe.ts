// Compares what a probe predicts with what the loaded model does, on Dawn in Node, and prints both as JSON.
//
//     node dist/tools/bench_probe.js BUNDLE [--prompts 16,64,256] [--contexts 16,256] [--tokens 32] [--runs 3]
//         [--rounds 1] [--platform JSON] [--pages 100] [--limit 2000] [--clock cpu]
//
// With --rounds 0 it only probes. With --clock cpu, all times are processor time: on a driver for CPUs, other programs
// change it little, and it says nothing about threads that wait for each other. --platform is what a browser's navigator
// says.

import { parseArgs } from "node:util";

import { probeRound } from "../page/probe_round.js";
import type { Platform } from "../src/probe/index.js";
import { probe } from "../src/probe/index.js";
import { dawn } from "./dawn.js";
import { folderSource } from "./folder_source.js";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    prompts: { type: "string", default: "16,64,256" },
    contexts: { type: "string", default: "16,256" },
    tokens: { type: "string", default: "32" },
    runs: { type: "string", default: "3" },
    rounds: { type: "string", default: "1" },
    platform: { type: "string", default: "{}" },
    pages: { type: "string" },
    limit: { type: "string", default: "2000" },
    clock: { type: "string", default: "wall" },
  },
});
const [folder] = positionals;
if (folder === undefined) throw new Error("usage: bench_probe BUNDLE [--prompts 16,64] [--contexts 16,256]");
if (values.clock === "cpu") {
  // Of all threads of this process, of which the driver's are a part.
  const now = (): number => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  };
  Object.defineProperty(performance, "now", { value: now });
}
const numbers = (text: string): number[] => text.split(",").map(Number);
const gpu = dawn();
const source = folderSource(folder);
const options = {
  gpu,
  again: true,
  promptTokens: numbers(values.prompts),
  limitMs: Number(values.limit),
  platform: JSON.parse(values.platform) as Platform,
  ...(values.pages === undefined ? {} : { pages: Number(values.pages) }),
};
const sizes = {
  prompts: numbers(values.prompts),
  contexts: numbers(values.contexts),
  tokens: Number(values.tokens),
  runs: Number(values.runs),
};

if (values.rounds === "0") console.log(JSON.stringify(await probe(source, options)));
for (let round = 0; round < Number(values.rounds); round++)
  console.log(JSON.stringify(await probeRound(source, sizes, options)));
// Dawn's threads would keep the process alive.
process.exit(0);
