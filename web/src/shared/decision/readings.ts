// Every way to read a text: with the escapes of JSON undone, and without what a reader does not see or cannot
// distinguish. Invisible characters are removed by Unicode property, compatible forms become one (NFKC), every dash a
// hyphen, every wide space a space, and combining marks are dropped.
//
// server_fallback/router/decision/readings.py does the same and has more details; tests/conformance/router_private.json
// requires the same results of both.

/** Separates the parts of a message. It is white space, so no reading removes it. */
export const BOUNDARY = "\v";

const INVISIBLE = /[\p{DI}\u2800]|(?![\t-\r\x85])\p{C}/gu;
const MARKS = /\p{M}/gu;
/** UAX #15, stream-safe text: no language has longer runs, and normalizing takes quadratic time in their length. */
const MARK_RUNS = /(\p{M}{30})\p{M}+/gu;
const DASHES = /[\p{Pd}\u2212]/gu;
const SPACES = /(?![\t-\r])\p{White_Space}/gu;
/** Characters that may combine with the one before them; a boundary is moved behind them. */
const EARLY_BOUNDARY =
  /\v([\p{M}\u1160-\u11ff\u3130-\u318f\uff9e-\uffdc](?:\v?[\p{M}\u1160-\u11ff\u3130-\u318f\uff9e-\uffdc])*)\v?/gu;
const JSON_ESCAPE = /\\\v?(?:u((?:\v?[0-9a-fA-F]){4})|(["\\/bfnrt]))/g;
const ESCAPED: Readonly<Record<string, string>> = { b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };

/** The text and every other way to read it, each reading once. */
export function readings(text: string, ignoreCase: boolean): readonly string[] {
  const ways = cleared(text);
  for (const way of new Set(ways.slice(0, 3))) if (way.includes("\\")) ways.push(...cleared(jsonUnescaped(way)));
  // Patterns have both cases of their own letters. Capitals find letters that become others (final sigma) or two (sharp
  // s).
  return [...new Set(ignoreCase ? [...ways, ...ways.map((way) => way.toUpperCase())] : ways)];
}

function cleared(text: string): string[] {
  // A part may have no visible character, so two boundaries may meet.
  const seen = text
    .replace(INVISIBLE, "")
    .replace(/\v{2,}/g, BOUNDARY)
    .replace(EARLY_BOUNDARY, (_, composing: string) => composing.replaceAll(BOUNDARY, "") + BOUNDARY);
  const folded = seen.replace(MARK_RUNS, "$1").replace(DASHES, "-").replace(SPACES, " ").normalize("NFKC");
  return [text, seen, seen.replace(MARKS, ""), folded, folded.normalize("NFKD").replace(MARKS, "")];
}

function jsonUnescaped(text: string): string {
  return text.replace(JSON_ESCAPE, (escape, code: string | undefined, sign: string | undefined) => {
    const plain =
      code === undefined
        ? (ESCAPED[sign ?? ""] ?? sign ?? "")
        : String.fromCharCode(Number.parseInt(code.replaceAll(BOUNDARY, ""), 16));
    return escape.includes(BOUNDARY) ? plain + BOUNDARY : plain;
  });
}
