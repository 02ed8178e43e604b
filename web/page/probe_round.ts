// Compares what a probe predicts with what the loaded model then does, one after the other, so that both see the device
// as it is then. Node runs it as well as a page.

import type { DeviceReport, ProbeOptions } from "../src/probe/index.js";
import { probe } from "../src/probe/index.js";
import { Engine } from "../src/index.js";
import { openBundle } from "../src/runtime/bundle.js";
import type { Source } from "../src/runtime/source.js";
import { bundleFacts } from "./bundle_facts.js";
import type { DecodeRow, EncodeRow, PrefillRow } from "./measure.js";
import { measureDecode, measureEncode, measurePrefill } from "./measure.js";
import { openModel } from "./model.js";

/** ``prompts`` and ``contexts`` in tokens; ``tokens`` of each answer; ``runs`` of each prompt. */
export interface RoundSizes {
  readonly prompts: readonly number[];
  readonly contexts: readonly number[];
  readonly tokens: number;
  readonly runs: number;
}

/** A model of text has ``prefill`` and ``decode``, one of vectors has ``encode``, for the batches of its report. */
export interface ProbeRound {
  readonly report: DeviceReport;
  readonly prefill: readonly PrefillRow[];
  readonly decode: readonly DecodeRow[];
  readonly encode: readonly EncodeRow[];
}

/** Throws what a probe or a model throws. */
export async function probeRound(
  source: Source,
  { prompts, contexts, tokens, runs }: RoundSizes,
  options: ProbeOptions = {},
): Promise<ProbeRound> {
  const { signal } = new AbortController();
  const report = await probe(source, { ...options, again: true, promptTokens: prompts });
  const facts = bundleFacts((await openBundle(source, signal)).manifest);
  if (report.encode.length > 0) {
    const engine = await Engine.load(source, { gpu: options.gpu, tuning: false });
    try {
      await measureEncode(engine.embeddings, facts.vocabSize, report.encode, 1);
      const encode = await measureEncode(engine.embeddings, facts.vocabSize, report.encode, runs);
      return { report, prefill: [], decode: [], encode };
    } finally {
      engine.unload();
    }
  }
  const model = await openModel(source, { gpu: options.gpu, tuning: false });
  try {
    // The first steps of a pipeline may take longer; lavapipe compiles it in them.
    await measureDecode(model, facts, [8], 4, signal);
    await measurePrefill(model, facts, prompts, 1, signal);
    const prefill = await measurePrefill(model, facts, prompts, runs, signal, 1);
    return { report, prefill, decode: await measureDecode(model, facts, contexts, tokens, signal), encode: [] };
  } finally {
    model.close();
  }
}
