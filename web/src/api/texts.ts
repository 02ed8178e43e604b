// What is given as texts or as token ids, one or several of them: it flows in as OpenAI takes it, each as token ids flows out.

import type { TextCodec } from "./model.js";

export type TextInput = string | readonly string[] | readonly number[] | readonly (readonly number[])[];

/** The ids of each, with the special tokens that texts get, and its text. */
export function textsOf(codec: TextCodec, input: TextInput): readonly { readonly ids: readonly number[]; readonly text: string }[] {
  const one = (part: string | readonly number[]) =>
    typeof part === "string" ? { ids: codec.encode(part), text: part } : { ids: part, text: codec.decode(part) };
  if (typeof input === "string") return [one(input)];
  return input.every((part) => typeof part === "number") ? [one(input)] : input.map(one);
}
