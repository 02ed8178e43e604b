// The tags of an HTML text, found as a browser finds them (https://html.spec.whatwg.org/multipage/parsing.html, 13.2.5).

export interface Tag {
  /** In lower case; "" for comments, doctypes and processing instructions. */
  readonly name: string;
  readonly closing: boolean;
  /** Whether the element has the attribute ``hidden``. */
  readonly hidden: boolean;
  readonly start: number;
  /** The offset behind the tag. A tag that does not end takes the rest of the text, as in a browser. */
  readonly end: number;
}

/** The first tag at or after ``from``; null if there is none. */
export function nextTag(source: string, from: number): Tag | null {
  for (let start = source.indexOf("<", from); start !== -1; start = source.indexOf("<", start + 1)) {
    const closing = source[start + 1] === "/";
    const first = source[start + (closing ? 2 : 1)] ?? "";
    if (/[a-z]/i.test(first)) return elementTag(source, start, closing);
    if (source.startsWith("<!--", start)) return ignored(source, start, "-->");
    if (first === "!" || first === "?" || closing) return ignored(source, start, ">");
  }
  return null;
}

function ignored(source: string, start: number, ending: string): Tag {
  const found = source.indexOf(ending, start + 2);
  const end = found === -1 ? source.length : found + ending.length;
  return { name: "", closing: false, hidden: false, start, end };
}

function elementTag(source: string, start: number, closing: boolean): Tag {
  const nameAt = start + (closing ? 2 : 1);
  let at = skip(source, nameAt, NOT_IN_NAME, false);
  const name = source.slice(nameAt, at).toLowerCase();
  let hidden = false;
  for (;;) {
    at = skip(source, at, BETWEEN, true);
    if (at >= source.length || source[at] === ">") break;
    // A name may begin with "=".
    const attributeAt = at;
    at = skip(source, at + 1, NOT_IN_ATTRIBUTE, false);
    if (source.slice(attributeAt, at).toLowerCase() === "hidden") hidden = true;
    const equals = skip(source, at, SPACE, true);
    if (source[equals] === "=") at = endOfValue(source, skip(source, equals + 1, SPACE, true));
  }
  return { name, closing, hidden, start, end: Math.min(at + 1, source.length) };
}

function endOfValue(source: string, at: number): number {
  const quote = source[at];
  if (quote !== '"' && quote !== "'") return skip(source, at, NOT_IN_VALUE, false);
  const end = source.indexOf(quote, at + 1);
  return end === -1 ? source.length : end + 1;
}

const SPACE = " \t\n\f\r";
const BETWEEN = `${SPACE}/`;
const NOT_IN_NAME = `${SPACE}/>`;
const NOT_IN_ATTRIBUTE = `${SPACE}/>=`;
const NOT_IN_VALUE = `${SPACE}>`;

/** The first offset from ``at`` on whose character is in ``set``, or is not, if those in ``set`` are skipped. */
function skip(source: string, at: number, set: string, those: boolean): number {
  let end = at;
  while (end < source.length && set.includes(source[end] ?? "") === those) end++;
  return end;
}
