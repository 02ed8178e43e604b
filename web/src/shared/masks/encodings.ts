// Parts of a text that are written in an encoding of text: base64, percent-encoding, the references of HTML, the escapes
// of programming languages; letter by letter; and with words for signs ("anna at example dot org"). A private text within one is masked with all of its part.

/** A part of a text, and what it is decoded. */
export interface Encoded {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

const BASE64 = /[A-Za-z0-9+/_-]{12,}={0,2}/g;
// At the beginning of a word alone, so that a long one is not searched from each of its characters.
const WORDS = /(?<!\S)\S*(?:%[0-9A-Fa-f]{2}|&#?[0-9A-Za-z]{2,8};|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4})\S*/g;
const LETTERS = /(?<!\S)\S(?: \S){5,}(?![^\s.,;:!?)])/g;
/** With two signs, because "look at example.org" has one. */
const SIGNS = /(?<!\S)\S+(?: (?:at|dot|dash|underscore) \S+){2,}/gi;
const SIGN: Readonly<Record<string, string>> = { at: "@", dot: ".", dash: "-", underscore: "_" };
/** Longer parts are files, not texts. */
const MOST_CHARACTERS = 10_000;
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const NAMED: Readonly<Record<string, string>> = {
  amp: "&",
  commat: "@",
  period: ".",
  hyphen: "-",
  nbsp: " ",
  colon: ":",
};

/** The encoded parts of a text that contain text. */
export function encodedParts(text: string): readonly Encoded[] {
  const found: Encoded[] = [];
  const add = (pattern: RegExp, decode: (part: string) => string | null): void => {
    for (const { 0: part, index } of text.matchAll(pattern)) {
      const decoded = part.length > MOST_CHARACTERS ? null : decode(part);
      if (decoded !== null && decoded !== part) found.push({ start: index, end: index + part.length, text: decoded });
    }
  };
  add(BASE64, fromBase64);
  add(LETTERS, (part) => part.replaceAll(" ", ""));
  add(SIGNS, (part) =>
    part.replace(/ (at|dot|dash|underscore) /gi, (_, word: string) => SIGN[word.toLowerCase()] ?? ""),
  );
  if (/[%&\\]/.test(text)) add(WORDS, fromEscapes);
  return found;
}

/** Null if the bytes are not a text. */
function fromBase64(part: string): string | null {
  let [bits, count, escapes] = [0, 0, ""];
  for (const character of part.replace(/=+$/, "").replaceAll("-", "+").replaceAll("_", "/")) {
    bits = ((bits << 6) | ALPHABET.indexOf(character)) & 0xffff;
    count += 6;
    if (count >= 8) {
      count -= 8;
      escapes += `%${((bits >> count) & 0xff).toString(16).padStart(2, "0")}`;
    }
  }
  const text = fromPercents(escapes);
  return text === null || /(?![\t\n\r])\p{Cc}/u.test(text) ? null : text;
}

function fromPercents(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

function fromEscapes(part: string): string {
  const points = part
    .replace(/\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})/g, (_, two?: string, four?: string) =>
      String.fromCharCode(Number.parseInt(two ?? four ?? "", 16)),
    )
    .replace(/&#(?:x([0-9A-Fa-f]{1,6})|([0-9]{1,7}));/gi, (given, hex?: string, decimal?: string) => {
      const point = hex === undefined ? Number(decimal) : Number.parseInt(hex, 16);
      return point <= 0x10ffff ? String.fromCodePoint(point) : given;
    })
    .replace(/&([a-z]+);/gi, (given, name: string) => NAMED[name.toLowerCase()] ?? given);
  return points.replace(/(?:%[0-9A-Fa-f]{2})+/g, (run) => fromPercents(run) ?? run);
}
