// An embedder without a model: a text's vector counts its words in a few buckets.

import type { Embedder } from "../../src/retrieval/embedder.js";
import { wordsOf } from "../../src/retrieval/words.js";

export interface FakeEmbedder extends Embedder {
  /** The texts of each call. */
  readonly calls: (readonly string[])[];
}

export function fakeEmbedder(model = "fake", dimensions = 32): FakeEmbedder {
  const calls: (readonly string[])[] = [];
  return {
    model,
    dimensions,
    calls,
    embed: (texts, _kind, signal) => {
      signal?.throwIfAborted();
      calls.push(texts);
      return Promise.resolve(texts.map((text) => vectorOf(text, dimensions)));
    },
  };
}

function vectorOf(text: string, dimensions: number): Float32Array {
  const vector = new Float32Array(dimensions).fill(0.01);
  for (const word of wordsOf(text)) {
    let bucket = 7;
    for (const character of word) bucket = (bucket * 31 + (character.codePointAt(0) ?? 0)) % dimensions;
    vector[bucket] = (vector[bucket] ?? 0) + 1;
  }
  return vector;
}
