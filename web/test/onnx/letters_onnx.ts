// A hand-written ONNX bundle for tests without the compiler and native libraries. ONNX Runtime is a stub: its one-layer
// "model" stores each token id as its key and its value, and reads the entire sequence back from its past input. So a
// wrong page causes a wrong answer.

import { createHash } from "node:crypto";

import type { OnnxRuntime, OnnxSession, OnnxTensor } from "../../src/onnx/options.js";
import type { ExportManifest } from "../../src/runtime/manifest.js";
import { VOCAB, nextToken } from "../engine/fake_model.js";
import { bytesOf, lettersBundle } from "../letters_bundle.js";
import type { Files } from "../letters_bundle.js";

const HEADS = 2;
const HEAD_DIM = 3;
export const CONTEXT = 200;

export function lettersOnnx(changes: Partial<ExportManifest> = {}): {
  readonly manifest: ExportManifest;
  readonly files: Files;
} {
  const letters = lettersBundle();
  const contents = {
    "onnx/model.onnx": bytesOf("graph"),
    "onnx/model.onnx_data": bytesOf("weights"),
    "config.json": bytesOf("{}"),
  };
  const { format_version, generator, model, quantization, tokenizer, files } = letters.manifest;
  const spec = {
    ...letters.manifest.spec,
    num_layers: 1,
    num_heads: HEADS,
    num_kv_heads: HEADS,
    head_dim: HEAD_DIM,
    vocab_size: VOCAB,
  };
  const added = Object.entries(contents).map(([file, bytes]) => ({
    file,
    size: bytes.length,
    sha256: createHash("sha256").update(bytes).digest("hex"),
  }));
  const manifest: ExportManifest = {
    format_version,
    generator,
    target: "onnx",
    model,
    spec,
    origin: null,
    prefixes: [],
    embedding: null,
    classifier: null,
    speech: null,
    ctc: null,
    images: null,
    sounds: null,
    quantization,
    context: CONTEXT,
    page_size: CONTEXT,
    kv: "activation",
    tokenizer,
    files: [...files, ...added],
    device: "cpu",
    activation: "float32",
    group_size: null,
    ...changes,
  };
  return { manifest, files: { ...letters.files, ...contents, "manifest.json": bytesOf(JSON.stringify(manifest)) } };
}

class StubTensor implements OnnxTensor {
  constructor(
    readonly type: string,
    readonly data: Float32Array | Uint16Array | BigInt64Array,
    readonly dims: readonly number[],
  ) {}
}

/**
 * The calls of the stub. ``created``: the model's bytes and the options of each session; ``runs``: the new tokens and
 * all tokens of each run.
 */
export interface StubLog {
  readonly created: {
    readonly model: Uint8Array | string;
    readonly options: { readonly externalData?: readonly { readonly path: string }[] };
  }[];
  readonly runs: (readonly [tokens: number, total: number])[];
  released: number;
}

/** A run throws the result of ``failure``, if it returns one. */
export function stubRuntime(failure: (run: number) => Error | null = () => null): {
  readonly ort: OnnxRuntime;
  readonly log: StubLog;
} {
  const log: StubLog = { created: [], runs: [], released: 0 };
  const session: OnnxSession = {
    inputNames: [],
    outputNames: [],
    async run(feeds, fetches) {
      await Promise.resolve();
      const failed = failure(log.runs.length);
      if (failed !== null) throw failed;
      return compute(feeds, fetches, log);
    },
    release: () => {
      log.released++;
      return Promise.resolve();
    },
  };
  const create = (model: Uint8Array | string, options: object = {}): Promise<OnnxSession> => {
    log.created.push({ model, options });
    return Promise.resolve(session);
  };
  return { ort: { InferenceSession: { create }, Tensor: StubTensor, env: { versions: { common: "0" } } }, log };
}

function compute(
  feeds: Parameters<OnnxSession["run"]>[0],
  fetches: Parameters<OnnxSession["run"]>[1],
  log: StubLog,
): Record<string, OnnxTensor> {
  const ids = Array.from((feeds.input_ids?.data ?? []) as BigInt64Array, Number);
  const total = feeds.attention_mask?.dims[1] ?? 0;
  log.runs.push([ids.length, total]);
  const past = feeds["past_key_values.0.value"];
  const capacity = past?.dims[2] ?? 0;
  const values = (past?.data ?? new Float32Array()) as Float32Array;
  const start = total - ids.length;
  // The last head and element, so that a wrongly copied head is detected.
  const tokens = Array.from({ length: total }, (_, position) =>
    position < start
      ? (values[((HEADS - 1) * capacity + position) * HEAD_DIM + HEAD_DIM - 1] ?? -1)
      : (ids[position - start] ?? -1),
  );
  const logits = new Float32Array(VOCAB);
  logits[nextToken(tokens)] = 10;
  const outputs: Record<string, OnnxTensor> = { logits: new StubTensor("float32", logits, [1, 1, VOCAB]) };
  for (const kind of ["key", "value"]) {
    const present = `present.0.${kind}`;
    const given = Array.isArray(fetches) ? null : (fetches as Record<string, OnnxTensor | null>)[present];
    if (given != null) {
      const array = given.data as Float32Array;
      for (let head = 0; head < HEADS; head++)
        ids.forEach((id, row) =>
          array.fill(id, (head * capacity + start + row) * HEAD_DIM, (head * capacity + start + row + 1) * HEAD_DIM),
        );
      outputs[present] = given;
    } else {
      const rows = Float32Array.from(
        { length: HEADS * ids.length * HEAD_DIM },
        (_, index) => ids[Math.floor(index / HEAD_DIM) % ids.length] ?? -1,
      );
      outputs[`nearfar.new.${present}`] = new StubTensor("float32", rows, [1, HEADS, ids.length, HEAD_DIM]);
    }
  }
  return outputs;
}
