// Where addresses are in a text that is read in pieces. A private text is never restored within one: if far were made to
// write a link or a picture whose address has a placeholder, opening it would send the private text there.
//
// An address begins with a scheme of the web or with two slashes (browsers take a backslash for one). It ends with white
// space; after a quotation mark or <, with its counterpart, because such an address may contain spaces. In JSON it ends
// with its string.

/** "json": a text within JSON, such as the arguments of a call. */
export type Form = "text" | "json";

/** The state after a text. */
export interface Place {
  /** The last characters since white space. */
  readonly word: string;
  /** The last quotation mark or < in that word, else "". */
  readonly quote: string;
  readonly inAddress: boolean;
}

export const START: Place = { word: "", quote: "", inAddress: false };
const BEGINS: Readonly<Record<Form, RegExp>> = {
  text: /(?:https?|wss?|ftp):$|[/\\]{2}$/i,
  json: /(?:https?|wss?|ftp):$|(?:\\?\/|\\\\){2}$/i,
};
const ANY = /(?:https?|wss?|ftp):|[/\\]{2}/i;
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

function next(form: Form, { word, quote, inAddress }: Place, character: string): Place {
  const ends = inAddress ? isEnd(form, quote, word.slice(-1), character) : SPACE.test(character);
  if (ends) return START;
  const longer = (word + character).slice(-WORD_CHARACTERS);
  if (inAddress) return { word: longer, quote, inAddress };
  const opened = /["'<]/.test(character) ? character : quote;
  return { word: longer, quote: opened, inAddress: BEGINS[form].test(longer) };
}

function isEnd(form: Form, quote: string, before: string, character: string): boolean {
  if (form === "json")
    return SPACE.test(character) || character === '"' || (before === "\\" && /[nrt]/.test(character));
  if (quote === "") return SPACE.test(character);
  return /[\n\r]/.test(character) || character === (quote === "<" ? ">" : quote);
}
