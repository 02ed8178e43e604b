// Where the patterns of a policy match in a text. A text is searched as it is, and as a reader sees it: without
// invisible characters and accents, in compatible forms, and with Latin letters for those of other scripts that look
// like them, and in ASCII's digits; and its encoded parts are searched decoded. A span has whole words, so that a pattern for the beginning of a secret does not leave its end.
//
// What this does not find, such as a text that is split over messages, `PrivateCheck` finds in the masked request, which
// then stays on the device.

import type { Automaton, Visits } from "../decision/automaton.js";
import { encodedParts } from "./encodings.js";
import { findMatches } from "./find_matches.js";
import type { Span } from "./placeholders.js";

export interface CompiledMask {
  readonly kind: string;
  readonly pattern: Automaton;
}

/** A text in another way to read it; ``starts`` has the index in the text of each of its UTF-16 units. */
export interface Reading {
  readonly text: string;
  readonly starts: readonly number[] | null;
}

/** What a reader sees as it is. */
const PLAIN = /^[\t-\r -~]*$/;
const INVISIBLE = /^(?:[\p{DI}\u2800]|(?![\t-\r\x85])\p{C})$/u;
/** Also of a word that an invisible character splits. */
const IN_WORD = /[\p{L}\p{N}\p{M}_\p{DI}\u2800]|(?![\t-\r\x85])\p{C}/u;
const WORD = /[\p{L}\p{N}\p{M}_]/u;
/** The escapes of programming languages and addresses, whose last letter begins no word. */
const ESCAPED = /(?:\\(?:[a-z]|x[0-9a-f]{2}|u[0-9a-f]{4})|%[0-9a-f]{2})$/i;
const LONGEST_ESCAPE = 6;
/** Letters of Cyrillic and Greek, and the Latin ones that look like them (Unicode TR 39, confusables). */
const ALIKE: ReadonlyMap<string, string> = new Map(
  Array.from("асеіјорѕухһԁԛԝАВСЕНІЈКМОРЅТХУΑΒΕΖΗΙΚΜΝΟΡΤΥΧαονρυι", (letter, index): [string, string] => [
    letter,
    "aceijopsyxhdqwABCEHIJKMOPSTXYABEZHIKMNOPTYXaovpui"[index] ?? letter,
  ]),
);

/** The characters of the shortest text whose other occurrences are found. */
const LEAST_KNOWN = 3;

/** The parts of a text that match, in whole words. They may overlap. */
export function findSpans(text: string, masks: readonly CompiledMask[], visits: Visits): readonly Span[] {
  const encoded = encodedParts(text).flatMap(({ start, end, text: decoded }): Span[] => {
    const kind = masks.find(({ pattern }) =>
      readingsOf(decoded).some((reading) => pattern.test(reading.text, false, visits)),
    )?.kind;
    return kind === undefined ? [] : [{ start, end, kind }];
  });
  return [...plainSpans(text, masks, visits), ...encoded];
}

function plainSpans(text: string, masks: readonly CompiledMask[], visits: Visits): readonly Span[] {
  return readingsOf(text).flatMap((reading) =>
    masks.flatMap(({ kind, pattern }) =>
      findMatches(pattern, reading.text, visits).map(([first, end]) =>
        widened(text, { ...placeOf(reading, first, end), kind }),
      ),
    ),
  );
}

/** A text that is known to be private. */
export interface Known {
  readonly text: string;
  readonly kind: string;
}

/** Every occurrence of known texts, in whole words, in any case, and in any way that a reader sees as the same. */
export function findKnown(read: () => Reading, known: readonly Known[]): readonly Span[] {
  if (known.length === 0) return [];
  const reading = read();
  const spans: Span[] = [];
  for (const { text: value, kind } of known) {
    const wanted = seen(value, true).text;
    // A letter or two is in too many other texts.
    if (wanted.length < LEAST_KNOWN) continue;
    for (let at = reading.text.indexOf(wanted); at >= 0;) {
      const end = at + wanted.length;
      const before = reading.text.slice(Math.max(at - LONGEST_ESCAPE, 0), at);
      const isPart =
        (WORD.test(wanted.charAt(0)) && WORD.test(before.slice(-1)) && !ESCAPED.test(before)) ||
        (WORD.test(wanted.slice(-1)) && WORD.test(reading.text.charAt(end)));
      if (!isPart) spans.push({ ...placeOf(reading, at, end), kind });
      at = reading.text.indexOf(wanted, end);
    }
  }
  return spans;
}

function readingsOf(text: string): readonly Reading[] {
  const plain: Reading = { text, starts: null };
  return PLAIN.test(text) ? [plain] : [plain, seen(text, false)];
}

/** A text as a reader sees it. */
export function seen(text: string, ignoresCase: boolean): Reading {
  if (PLAIN.test(text)) return { text: ignoresCase ? text.toLowerCase() : text, starts: null };
  const starts: number[] = [];
  let read = "";
  let at = 0;
  for (const character of text) {
    const alike = INVISIBLE.test(character) ? "" : folded(character);
    const letters = ignoresCase ? alike.toLowerCase() : alike;
    starts.push(...Array.from({ length: letters.length }, () => at));
    read += letters;
    at += character.length;
  }
  return { text: read, starts: [...starts, text.length] };
}

function folded(character: string): string {
  if (/[\p{Pd}\u2212]/u.test(character)) return "-";
  if (/(?![\t-\r])\p{White_Space}/u.test(character)) return " ";
  const letters = character.normalize("NFKD").replace(/\p{M}/gu, "");
  return Array.from(letters, (each) => ALIKE.get(each) ?? asciiDigit(each) ?? each).join("");
}

/** The digit of a decimal number of any script, whose ten digits have adjacent code points. */
function asciiDigit(character: string): string | null {
  const isDigit = (point: number): boolean => /^\p{Nd}$/u.test(String.fromCodePoint(point));
  const point = character.codePointAt(0) ?? 0;
  if (point < 0x80 || !isDigit(point)) return null;
  let value = 0;
  while (value < 9 && isDigit(point - value - 1)) value++;
  return String(value);
}

function placeOf({ starts }: Reading, first: number, end: number): Pick<Span, "start" | "end"> {
  if (starts === null) return { start: first, end };
  return { start: starts[first] ?? 0, end: starts[end] ?? 0 };
}

/** A span with whole words, without white space at its ends. */
export function widened(text: string, { start, end, kind }: Span): Span {
  let [first, last] = [start, end];
  while (first < last && /\s/.test(text.charAt(first))) first++;
  while (last > first && /\s/.test(text.charAt(last - 1))) last--;
  while (first > 0 && IN_WORD.test(text.charAt(first)) && IN_WORD.test(text.charAt(first - 1))) first--;
  while (last < text.length && IN_WORD.test(text.charAt(last - 1)) && IN_WORD.test(text.charAt(last))) last++;
  return { start: first, end: last, kind };
}
