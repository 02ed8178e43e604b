// The normalizers of tokenizer.json that encoders use, as the tokenizers library defines them.

import type { Aligned } from "./aligned.js";
import { normalizeForm, replaceEach, replaceRanges, slice } from "./aligned.js";
import { Charsmap } from "./charsmap.js";
import { ACCENTS, CONTROLS, OTHER_MARKS, isCjk, isSpace } from "./unicode_tables.js";

export type Normalizer = (text: Aligned) => Aligned;

export interface Part {
  readonly type: string;
  readonly [key: string]: unknown;
}

/** Throws an error that names what is not supported. */
export function normalizerOf(part: Part | null | undefined): Normalizer {
  if (part == null) return (text) => text;
  switch (part.type) {
    case "Sequence": {
      const all = (part.normalizers as readonly Part[]).map(normalizerOf);
      return (text) => all.reduce((result, each) => each(result), text);
    }
    case "BertNormalizer":
      return bertNormalizer(part);
    case "Lowercase":
      return lowercase;
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD": {
      const form = part.type;
      return (text) => normalizeForm(text, form);
    }
    case "Precompiled": {
      const charsmap = part.precompiled_charsmap;
      if (charsmap === null) return (text) => text;
      const compiled = new Charsmap(charsmap as string);
      return (text) => compiled.normalize(text);
    }
    case "Replace":
      return replacer(part);
    case "Strip":
      return (text) => strip(text, part.strip_left === true, part.strip_right === true);
    case "StripAccents":
      return (text) => without(text, ACCENTS, OTHER_MARKS);
    case "Prepend":
      return (text) => (text.chars.length === 0 ? text : prepend(text, String(part.prepend)));
    default:
      throw new Error(`normalizer ${part.type} is not supported`);
  }
}

/** The added characters stand for the first one. */
export function prepend(text: Aligned, added: string): Aligned {
  const [first = ""] = text.chars;
  const { chars, starts, ends } = replaceRanges(slice(text, 0, 1), [{ from: 0, to: 1, by: added + first }]);
  const rest = slice(text, 1);
  return {
    chars: [...chars, ...rest.chars],
    starts: [...starts, ...rest.starts],
    ends: [...ends, ...rest.ends],
  };
}

function bertNormalizer(part: Part): Normalizer {
  const lowers = part.lowercase === true;
  const strips = (part.strip_accents ?? lowers) === true;
  const clean = (character: string): string =>
    CONTROLS.has(character.codePointAt(0) ?? 0) ? "" : isSpace(character) ? " " : character;
  const spaced = (character: string): string => (isCjk(character.codePointAt(0) ?? 0) ? ` ${character} ` : character);
  return (text) => {
    let result = text;
    if (part.clean_text === true) result = replaceEach(result, clean);
    if (part.handle_chinese_chars === true) result = replaceEach(result, spaced);
    if (strips) result = without(normalizeForm(result, "NFD"), ACCENTS);
    return lowers ? lowercase(result) : result;
  };
}

function without(text: Aligned, ...sets: readonly (typeof ACCENTS)[]): Aligned {
  return replaceEach(text, (character) => {
    const code = character.codePointAt(0) ?? 0;
    return sets.some((set) => set.has(code)) ? "" : character;
  });
}

/** Character by character, so that a sigma at the end of a word has no form of its own. */
function lowercase(text: Aligned): Aligned {
  return replaceEach(text, (character) => character.toLowerCase());
}

function strip(text: Aligned, left: boolean, right: boolean): Aligned {
  let [from, to] = [0, text.chars.length];
  if (left) while (from < to && isSpace(text.chars[from] ?? "")) from++;
  if (right) while (to > from && isSpace(text.chars[to - 1] ?? "")) to--;
  return slice(text, from, to);
}

function replacer({ pattern, content }: Part): Normalizer {
  const { String: literal, Regex: regex } = Object(pattern) as { readonly String?: string; readonly Regex?: string };
  const source = literal?.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&") ?? sourceOf(regex ?? "");
  if (source === null) throw new Error(`the pattern ${JSON.stringify(pattern)} of a Replace is not supported`);
  const found = new RegExp(source, "gu");
  return (text) => {
    const joined = text.chars.join("");
    const ranges = [...joined.matchAll(found)].flatMap(({ 0: match, index }) => {
      const from = Array.from(joined.slice(0, index)).length;
      const last = from + Array.from(match).length - 1;
      // What replaces several characters stands for the last one.
      const before = last > from ? [{ from, to: last, by: "" }] : [];
      return [...before, { from: last, to: last + 1, by: String(content) }];
    });
    return replaceRanges(text, ranges);
  };
}

/** A pattern of the library's regular expressions, which are Oniguruma's, in JavaScript's; null if it may differ. */
function sourceOf(regex: string): string | null {
  if (/^ (?:\{\d+,\d*\}|\+)$/.test(regex)) return regex;
  // DeBERTa's. Other characters are spaces of JavaScript's \s.
  return regex === "\\s{2,}|[\\n\\r\\t]" ? "\\p{White_Space}{2,}|[\\n\\r\\t]" : null;
}
