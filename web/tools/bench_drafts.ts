// Answers prompts of token ids on Dawn in Node, one after the other and greedily, and prints what they took as JSON: the
// answers, steps of the model, guesses, dispatches of the model and its draft together, and milliseconds of the
// processor, of all threads, and of the clock, after the device has been measured, and the times of this record. Without
// --draft there are no guesses; with "auto" those that the engine makes by default.
//
//     node dist/tools/bench_drafts.js BUNDLE --prompts '[[5, 3]]' [--draft BUNDLE_OR_auto_OR_ngram_OR_heads]
//         [--draft-tokens 4] [--max-tokens 64] [--rounds 1]

import { parseArgs } from "node:util";

import { globals } from "webgpu";

import type { WebGPUClasses } from "../page/count_calls.js";
import { countCalls } from "../page/count_calls.js";
import { Engine } from "../src/engine.js";
import { dawn } from "./dawn.js";
import { folderSource } from "./folder_source.js";

const USAGE =
  "usage: bench_drafts BUNDLE --prompts JSON [--draft BUNDLE_OR_auto_OR_ngram_OR_heads] [--draft-tokens 4] " +
  "[--max-tokens 64] [--rounds 1]";

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      prompts: { type: "string" },
      draft: { type: "string" },
      "draft-tokens": { type: "string", default: "4" },
      "max-tokens": { type: "string", default: "64" },
      rounds: { type: "string", default: "1" },
    },
  });
  const [folder] = positionals;
  const { prompts, draft } = values;
  if (folder === undefined || prompts === undefined) throw new Error(USAGE);
  const engine = await Engine.load(folderSource(folder), {
    gpu: dawn(),
    tuning: true,
    selfTest: "never",
    ...(draft === undefined
      ? { draft: false }
      : draft !== "auto" && {
          draft: draft === "ngram" || draft === "heads" ? draft : folderSource(draft),
          draftTokens: Number(values["draft-tokens"]),
        }),
  });
  const record = await engine.exportTuning();
  const maxTokens = Number(values["max-tokens"]);
  const answer = async (promptIds: readonly number[]): Promise<number[]> => {
    const ids: number[] = [];
    for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens, sampling: { temperature: 0 } }))
      ids.push(tokenId);
    return ids;
  };
  const all = JSON.parse(prompts) as readonly (readonly number[])[];
  // The first answer creates resources that later ones reuse.
  await answer(all[0] ?? []);
  const before = engine.counts;
  const calls = countCalls(globals as unknown as WebGPUClasses);
  const rounds = Number(values.rounds);
  let [answers, processorMs, clockMs]: [number[][], number, number] = [[], Infinity, Infinity];
  for (let round = 0; round < rounds; round++) {
    const [start, time] = [process.cpuUsage(), performance.now()];
    answers = [];
    for (const promptIds of all) answers.push(await answer(promptIds));
    const { user, system } = process.cpuUsage(start);
    processorMs = Math.min(processorMs, (user + system) / 1000);
    clockMs = Math.min(clockMs, performance.now() - time);
  }
  const { dispatches } = calls.read();
  calls.stop();
  const counts = engine.counts;
  const since = (key: "steps" | "draftedTokens" | "acceptedTokens"): number => (counts[key] - before[key]) / rounds;
  console.log(
    JSON.stringify({
      device: engine.info.adapter,
      answers,
      steps: since("steps"),
      drafted: since("draftedTokens"),
      accepted: since("acceptedTokens"),
      dispatches: dispatches / rounds,
      milliseconds: processorMs,
      clock_milliseconds: clockMs,
      decode: record?.steps?.decode ?? null,
    }),
  );
  engine.destroy();
}

main().then(
  // Dawn's threads would keep the process alive.
  () => process.exit(0),
  (error: unknown) => {
    console.error(error);
    process.exit(1);
  },
);
