// The pre-tokenizers of tokenizer.json that encoders use, as the tokenizers library defines them: they divide a
// normalized text into words.

import type { Aligned } from "./aligned.js";
import { replaceEach, slice } from "./aligned.js";
import type { Part } from "./normalizers.js";
import { prepend } from "./normalizers.js";
import { PUNCTUATION, isSpace } from "./unicode_tables.js";

export type PreTokenizer = (text: Aligned) => readonly Aligned[];

/** Throws an error that names what is not supported. */
export function preTokenizerOf(part: Part | null | undefined): PreTokenizer {
  if (part == null) return (text) => [text];
  switch (part.type) {
    case "Sequence": {
      const all = (part.pretokenizers as readonly Part[]).map(preTokenizerOf);
      return (text) => all.reduce<readonly Aligned[]>((words, each) => words.flatMap(each), [text]);
    }
    case "BertPreTokenizer":
      return (text) => atSpaces(text).flatMap(aroundPunctuation);
    case "Punctuation":
      if (part.behavior !== "Isolated")
        throw new Error(`pre-tokenizer Punctuation with behavior ${String(part.behavior)} is not supported`);
      return aroundPunctuation;
    case "WhitespaceSplit":
      return atSpaces;
    case "Metaspace":
      return metaspace(part);
    default:
      throw new Error(`pre-tokenizer ${part.type} is not supported`);
  }
}

/** The words between spaces, without the spaces. */
function atSpaces(text: Aligned): readonly Aligned[] {
  return cut(text, (character, index) => isSpace(character) || isSpace(text.chars[index - 1] ?? "")).filter(
    ({ chars }) => !isSpace(chars[0] ?? ""),
  );
}

/** Each punctuation mark is a word. */
function aroundPunctuation(text: Aligned): readonly Aligned[] {
  const isMark = (character = ""): boolean => PUNCTUATION.has(character.codePointAt(0) ?? -1);
  return cut(text, (character, index) => isMark(character) || isMark(text.chars[index - 1]));
}

/** Spaces become ``replacement``, which words begin with. */
function metaspace(part: Part): PreTokenizer {
  const replacement = String(part.replacement);
  // Older files have add_prefix_space.
  const scheme = part.prepend_scheme ?? (part.add_prefix_space === false ? "never" : "always");
  const splits = part.split !== false;
  return (text) => {
    let marked = replaceEach(text, (character) => (character === " " ? replacement : character));
    const isFirst = marked.starts[0] === 0;
    if (
      marked.chars.length > 0 &&
      marked.chars[0] !== replacement &&
      (scheme === "always" || (scheme === "first" && isFirst))
    )
      marked = prepend(marked, replacement);
    return splits ? cut(marked, (character) => character === replacement) : [marked];
  };
}

/** The parts between the indexes at which a new one begins. */
function cut(text: Aligned, begins: (character: string, index: number) => boolean): readonly Aligned[] {
  const starts = text.chars.flatMap((character, index) => (index === 0 || begins(character, index) ? [index] : []));
  return starts.map((start, index) => slice(text, start, starts[index + 1]));
}
