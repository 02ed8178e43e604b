// Runs a bundle in Node and prints the result as JSON: {token_ids, target, reason, activation, dispatches_per_token,
// adapter, prefill_chunk, total_bytes, computed_tokens, drafted_tokens, accepted_tokens, experts, self_test}. WebGPU
// bundles run on Dawn, ONNX bundles on onnxruntime-node. Given several bundles, it runs the first one that this machine
// can run. A run that takes long prints on stderr how far it is, and ends with an error after --limit seconds.
//
//     node dist/tools/run_bundle.js BUNDLE ... --tokens 1,2,3 [--max-tokens 64] [--expert-memory BYTES]
//         [--memory-budget BYTES] [--prefill-chunk TOKENS] [--draft BUNDLE|heads|ngram] [--limit 600]

import { parseArgs } from "node:util";

import { Engine } from "../src/engine.js";
import { NearfarError } from "../src/errors.js";
import type { LoadProgress } from "../src/load_options.js";
import { dawn } from "./dawn.js";
import { folderSource } from "./folder_source.js";

const USAGE =
  "usage: run_bundle BUNDLE ... --tokens 1,2,3 [--max-tokens 64] [--expert-memory BYTES] [--memory-budget BYTES] " +
  "[--prefill-chunk TOKENS] [--draft BUNDLE|heads|ngram] [--limit SECONDS]";
// How often a long run prints how far it is.
const PRINT_MS = 5000;

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      tokens: { type: "string" },
      "max-tokens": { type: "string", default: "64" },
      "expert-memory": { type: "string" },
      "memory-budget": { type: "string" },
      "prefill-chunk": { type: "string" },
      draft: { type: "string" },
      limit: { type: "string", default: "600" },
    },
  });
  if (positionals.length === 0 || values.tokens === undefined) throw new Error(USAGE);
  const { draft } = values;
  const promptIds = values.tokens.split(",").map(Number);
  const state: State = { progress: null, tokens: 0 };
  const signal = limitOf(Number(values.limit), state);
  const printing = setInterval(() => {
    console.error(stateText(state));
  }, PRINT_MS);
  const engine = await Engine.load(positionals.map(folderSource), {
    gpu: dawn(),
    onnx: { runtime: () => import("onnxruntime-node") },
    expertMemory: numberOf(values["expert-memory"]),
    memoryBudget: numberOf(values["memory-budget"]),
    prefillChunk: numberOf(values["prefill-chunk"]),
    draft: draft === undefined || draft === "heads" || draft === "ngram" ? draft : folderSource(draft),
    signal,
    onProgress: (progress) => {
      state.progress = progress;
    },
  });
  const tokenIds: number[] = [];
  const maxTokens = Number(values["max-tokens"]);
  for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens, signal }))
    state.tokens = tokenIds.push(tokenId);
  clearInterval(printing);
  const { target, reason, activation, dispatchesPerToken, adapter, prefillChunk, selfTest, totalBytes } = engine.info;
  const { computedTokens, draftedTokens, acceptedTokens, experts } = engine.counts;
  console.log(
    JSON.stringify({
      token_ids: tokenIds,
      target,
      reason,
      activation,
      dispatches_per_token: dispatchesPerToken,
      adapter,
      prefill_chunk: prefillChunk,
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

/** How far a run is; ``progress`` is null before the load begins. */
interface State {
  progress: LoadProgress | null;
  tokens: number;
}

/** Aborts after a number of seconds with an error that says how far the run was. Throws for a limit that is no time. */
function limitOf(seconds: number, state: State): AbortSignal {
  if (!(seconds > 0)) throw new Error(`--limit must be a number of seconds above 0; ${USAGE}`);
  const stopped = new AbortController();
  setTimeout(() => {
    const text = `the run did not end within ${seconds} s (${stateText(state)}); raise --limit, or use a faster adapter`;
    stopped.abort(new Error(text));
  }, seconds * 1000);
  return stopped.signal;
}

function stateText({ progress, tokens }: State): string {
  if (progress === null) return "nothing is loaded";
  const { phase, loadedBytes, totalBytes, compiledKernels, totalKernels, selfTestRuns = 0 } = progress;
  if (phase === "ready") return `${tokens} tokens generated`;
  const parts = [`${loadedBytes} of ${totalBytes} bytes`, `${compiledKernels} of ${totalKernels} kernels compiled`];
  return `${phase}: ${parts.join(", ")}, ${selfTestRuns} runs of the self-test`;
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
