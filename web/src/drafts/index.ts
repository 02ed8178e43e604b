// Opens a model together with what guesses its tokens: a smaller model with the same tokens, its own heads, or the text
// itself.

import type { Backend, BackendInfo, Opening, openWebGpu } from "../backend.js";
import type { StepRunner } from "../engine/step_runner.js";
import { RequestError } from "../errors.js";
import type { AnyManifest } from "../runtime/any_manifest.js";
import { isExport } from "../runtime/any_manifest.js";
import type { Bundle } from "../runtime/bundle.js";
import type { DecodeTimes, Manifest } from "../runtime/manifest.js";
import { AdaptiveDrafter } from "./adaptive_drafter.js";
import { DraftAssistant, DraftHeads } from "./draft_heads.js";
import { DraftModel } from "./draft_model.js";
import { Drafting } from "./drafting.js";
import type { Planner } from "./memory.js";
import { shareMemory } from "./memory.js";
import { NgramDrafter } from "./ngram_drafter.js";

export { shareMemory } from "./memory.js";

/** The drafts that a model has by default: those of the text, while they pay on a device with these times. */
export function adaptiveDrafting(times: DecodeTimes): Drafting {
  return new Drafting(new AdaptiveDrafter(times));
}

/** Throws RequestError unless a model can check drafts, and has heads if these make them. */
export function requireDrafts(model: AnyManifest, usesHeads: boolean): void {
  const { embedding, classifier, speech, ctc } = model;
  if (isExport(model) || [embedding, classifier, speech, ctc].some((other) => other !== null))
    throw new RequestError(`${model.model} cannot check drafts; leave out draft, or use a WebGPU bundle for text`, {
      param: "draft",
    });
  if (usesHeads && model.plans.draft === undefined)
    throw new RequestError(
      `${model.model} has no heads that draft tokens; use "ngram", or compile a checkpoint with mtp.* tensors, or a ` +
        "Gemma 4 model with its --assistant",
      { param: "draft" },
    );
}

/** Throws RequestError unless a draft has the tokens of the model, and runs through WebGPU as it does. */
export function requireSameTokens(model: AnyManifest, draft: AnyManifest): void {
  const refuse = (found: string, wanted: string): never => {
    throw new RequestError(
      `The draft ${draft.model} ${found}, ${model.model} ${wanted}; use a draft with the same tokenizer, or "ngram"`,
      { param: "draft" },
    );
  };
  if (isExport(draft) || draft.embedding !== null || draft.classifier !== null)
    return refuse("is not a bundle for WebGPU that generates text", "needs one");
  const size = draft.spec.vocab_size;
  if (size !== model.spec.vocab_size) refuse(`has ${size} tokens`, `has ${model.spec.vocab_size}`);
  const [own, other] = [model, draft].map(
    ({ files, tokenizer }) => files.find(({ file }) => file === tokenizer.file)?.sha256 ?? "",
  );
  if (own !== other) refuse(`has the tokenizer ${other}`, `has ${own}`);
}

/** What guesses the tokens of a model: another model's bundle, its own heads, or the text. */
export type DraftKind = Bundle<AnyManifest> | "heads" | "ngram";

/**
 * Open a bundle with its draft. ``open`` opens a bundle, and ``plan`` plans its memory. Throws their errors; then all
 * devices are free.
 */
export async function openWithDrafts(
  open: typeof openWebGpu,
  plan: Planner,
  bundle: Bundle,
  draft: DraftKind,
  options: Parameters<typeof openWebGpu>[1],
  opening: Opening,
): Promise<Backend> {
  if (draft === "ngram")
    return { ...(await open(bundle, options, opening)), drafting: new Drafting(new NgramDrafter()) };
  if (draft === "heads") {
    const backend = await open(bundle, options, opening);
    return { ...backend, drafting: new Drafting(headsOf(backend.runner, bundle.manifest)) };
  }
  const small = draft as Bundle;
  const shared = shareMemory(plan, bundle.manifest, small.manifest, options);
  // If one of the two fails, the other stops.
  const failed = new AbortController();
  const signal = AbortSignal.any([opening.signal, failed.signal]);
  const stop = (error: unknown): never => {
    failed.abort(error);
    throw error;
  };
  const [large, other] = await Promise.allSettled([
    open(bundle, { ...options, ...shared.large }, { ...opening, signal }).catch(stop),
    // An adapter opens one device only.
    open(
      small,
      { ...options, ...shared.small, adapter: undefined },
      { ...opening, signal, onKernel: nothing, onTest: nothing },
    ).catch(stop),
  ]);
  if (large.status === "fulfilled" && other.status === "fulfilled") {
    const [{ value: backend }, { value: guesser }] = [large, other];
    return {
      ...backend,
      info: sumOf(backend.info, guesser.info),
      drafting: new Drafting(new DraftModel(guesser.runner)),
      destroy: () => {
        backend.destroy();
        guesser.destroy();
      },
    };
  }
  for (const each of [large, other]) if (each.status === "fulfilled") each.value.destroy();
  throw failed.signal.reason as Error;
}

/** What drafts the tokens of a bundle with a plan "draft": the model's heads, or its assistant. */
export function headsOf(runner: StepRunner, manifest: Manifest): DraftHeads {
  if (hasAssistant(manifest)) return new DraftAssistant(runner);
  // Those of an earlier compiler read text only.
  const reads = (manifest.images ?? manifest.sounds) === null || manifest.plans.draft?.inputs.features !== undefined;
  return new DraftHeads(runner, reads);
}

/** Whether what drafts tokens reads the keys and values of the model, and has none of its own. */
function hasAssistant({ plans: { draft } }: Manifest): boolean {
  return !Object.values(draft?.states ?? {}).some(({ shape: [first] }) => first === "PD");
}

/** The info of a model with the memory of its draft. */
function sumOf(info: BackendInfo, { weightBytes, stateBytes, totalBytes }: BackendInfo): BackendInfo {
  return {
    ...info,
    weightBytes: info.weightBytes + weightBytes,
    stateBytes: info.stateBytes + stateBytes,
    totalBytes: info.totalBytes + totalBytes,
    draftBytes: totalBytes,
  };
}

function nothing(): void {
  // Only the model's own kernels and self-test are reported.
}
