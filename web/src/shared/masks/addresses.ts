// Where addresses are in a text that is read in pieces. A private text is never restored within one: if far were made to
// write a link or a picture whose address has a placeholder, opening it would send the private text there.
//
// An address begins with a scheme of the web, with www. or with two slashes (browsers take a backslash for one), or with
// what Markdown, HTML or JSON may decode to that. It ends with white space; after a quotation mark or <, with its
// counterpart, because such an address may contain spaces, and in a tag of HTML also lines. In JSON it ends with its
// string if that begins with it, and otherwise with white space too.

/** "json": a text within JSON, such as the arguments of a call. */
export type Form = "text" | "json";

/** The state after a text. */
export interface Place {
  /** The last characters since white space; in a string of JSON, white space at its beginning does not count. */
  readonly word: string;
  /** The last quotation mark or < before the address, else "". */
  readonly quote: string;
  /** "<" after that sign, "tag" once a letter follows, until ">". In JSON "start" at the beginning of a string. */
  readonly within: "" | "<" | "tag" | "start";
  readonly inAddress: boolean;
}

export const START: Place = { word: "", quote: "", within: "", inAddress: false };
const BEGINS: Readonly<Record<Form, RegExp>> = {
  text: /(?:https?|wss?|ftp)\\?:$|(?:^|[^\p{L}\p{N}_])www\\?\.$|[/\\]{2}$|&(?:#|sol;|bsol;|colon;)$/iu,
  json: /(?:https?|wss?|ftp):$|(?:^|[^\p{L}\p{N}_])www\.$|(?:\\?\/|\\\\){2}$|\\u00(?:2f|3a|5c)$/iu,
};
const ANY = /(?:https?|wss?|ftp)\\?:|www\\?\.|[/\\]{2}|&(?:#|sol;|bsol;|colon;)/i;
/** More characters than any beginning of an address has. */
const WORD_CHARACTERS = 8;
const SPACE = /\s/;

/** The place after ``text``. */
export function placeAfter(form: Form, place: Place, text: string): Place {
  let after = place;
  for (const character of text) after = next(form, after, character);
  return after;
}

/** The addresses of a text: where the word begins that has the address, and where the address itself begins and ends. */
export function addressesIn(text: string): readonly (readonly [word: number, start: number, end: number])[] {
  if (!ANY.test(text)) return [];
  const found: [number, number, number][] = [];
  let place = START;
  let [word, at] = [0, 0];
  for (const character of text) {
    const after = next("text", place, character);
    at += character.length;
    if (after.inAddress && !place.inAddress) found.push([word, at, text.length]);
    const last = found.at(-1);
    if (place.inAddress && !after.inAddress && last !== undefined) last[2] = at;
    if (after.word === "") word = at;
    place = after;
  }
  return found;
}

function next(form: Form, place: Place, character: string): Place {
  return form === "json" ? nextInJson(place, character) : nextInText(place, character);
}

function nextInText(place: Place, character: string): Place {
  const { quote, inAddress } = place;
  const within = withinAfter(place, character);
  const ends = inAddress ? isEnd(place, character) : SPACE.test(character);
  if (ends) return { ...START, quote: within === "" || (inAddress && quote !== "<") ? "" : quote, within };
  const word = (place.word + character).slice(-WORD_CHARACTERS);
  if (inAddress) return { ...place, word, within };
  const opened = /["'<]/.test(character) ? character : quote === "<" && within === "" ? "" : quote;
  return { word, quote: opened, within, inAddress: BEGINS.text.test(word) };
}

function withinAfter({ within, quote, word, inAddress }: Place, character: string): Place["within"] {
  if (character === "<" && !(inAddress && quote !== "")) return "<";
  if (within === "<" && word.endsWith("<") && /[a-z]/i.test(character)) return "tag";
  const isClosed = within === "<" ? /[>\n\r]/.test(character) : character === ">" && !(inAddress && quote !== "");
  return isClosed ? "" : within;
}

function isEnd({ quote, within }: Place, character: string): boolean {
  if (quote === "") return SPACE.test(character);
  return (within !== "tag" && /[\n\r]/.test(character)) || character === (quote === "<" ? ">" : quote);
}

function nextInJson({ word, within, inAddress }: Place, character: string): Place {
  const isStart = within === "start";
  if (character === '"') return { ...START, within: "start" };
  const isEscaped = word.endsWith("\\") && /[nrt]/.test(character);
  if (SPACE.test(character) || isEscaped) {
    if (inAddress && isStart) return { word: "", quote: "", within, inAddress };
    // White space before an address is no part of it.
    const isFirst = isStart && (word === "" || word === "\\");
    return { ...START, within: isFirst ? within : "" };
  }
  const longer = (word + character).slice(-WORD_CHARACTERS);
  return { word: longer, quote: "", within, inAddress: inAddress || BEGINS.json.test(longer) };
}
