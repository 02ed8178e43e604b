// Runs a bundle in Node and prints the result as JSON: {token_ids, target, reason, activation, dispatches_per_token,
// adapter, total_bytes, computed_tokens, drafted_tokens, accepted_tokens, experts, self_test}. WebGPU bundles run on Dawn,
// ONNX bundles on onnxruntime-node. Given several bundles, it runs the first one that this machine can run.
//
//     node dist/tools/run_bundle.js BUNDLE ... --tokens 1,2,3 [--max-tokens 64] [--expert-memory BYTES]
//         [--memory-budget BYTES] [--draft BUNDLE|heads|ngram]

import { parseArgs } from "node:util";

import { Engine } from "../src/engine.js";
import { NearfarError } from "../src/errors.js";
import { dawn } from "./dawn.js";
import { folderSource } from "./folder_source.js";

const USAGE =
  "usage: run_bundle BUNDLE ... --tokens 1,2,3 [--max-tokens 64] [--expert-memory BYTES] [--memory-budget BYTES] " +
  "[--draft BUNDLE|heads|ngram]";

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      tokens: { type: "string" },
      "max-tokens": { type: "string", default: "64" },
      "expert-memory": { type: "string" },
      "memory-budget": { type: "string" },
      draft: { type: "string" },
    },
  });
  if (positionals.length === 0 || values.tokens === undefined) throw new Error(USAGE);
  const { draft } = values;
  const promptIds = values.tokens.split(",").map(Number);
  const engine = await Engine.load(positionals.map(folderSource), {
    gpu: dawn(),
    onnx: { runtime: () => import("onnxruntime-node") },
    expertMemory: numberOf(values["expert-memory"]),
    memoryBudget: numberOf(values["memory-budget"]),
    draft: draft === undefined || draft === "heads" || draft === "ngram" ? draft : folderSource(draft),
  });
  const tokenIds: number[] = [];
  for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens: Number(values["max-tokens"]) }))
    tokenIds.push(tokenId);
  const { target, reason, activation, dispatchesPerToken, adapter, selfTest, totalBytes } = engine.info;
  const { computedTokens, draftedTokens, acceptedTokens, experts } = engine.counts;
  console.log(
    JSON.stringify({
      token_ids: tokenIds,
      target,
      reason,
      activation,
      dispatches_per_token: dispatchesPerToken,
      adapter,
      total_bytes: totalBytes,
      computed_tokens: computedTokens,
      drafted_tokens: draftedTokens,
      accepted_tokens: acceptedTokens,
      experts,
      self_test: {
        state: selfTest.state,
        switched_off: selfTest.switchedOff,
        largest_deviation: selfTest.largestDeviation,
      },
    }),
  );
  engine.destroy();
}

function numberOf(text: string | undefined): number | undefined {
  return text === undefined ? undefined : Number(text);
}

main().then(
  // Dawn's threads would keep the process alive.
  () => process.exit(0),
  (error: unknown) => {
    console.error(error instanceof NearfarError ? JSON.stringify(error) : error);
    process.exit(1);
  },
);
