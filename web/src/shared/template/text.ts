// Python's strings: sequences of code points, with Python's white space, lines and letter case.

/** The inside of a regular expression's class. */
export const SPACES = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const LEADING = new RegExp(`^[${SPACES}]+`);
const TRAILING = new RegExp(`[${SPACES}]+$`);
const ONLY_SPACES = new RegExp(`^[${SPACES}]+$`);
const SPACE = new RegExp(`[${SPACES}]+`);
const LINE_ENDS = "\\n-\\r\\x1c-\\x1e\\x85\\u2028\\u2029";
const LINE_END = new RegExp(`\\r\\n|[${LINE_ENDS}]`);

/** The code points of a text. */
export function points(text: string): readonly string[] {
  return Array.from(text);
}

/** The number of code points. */
export const size = (text: string): number => points(text).length;

/** Negative, 0 or positive by code points. UTF-16 sorts characters beyond U+FFFF before U+E000. */
export function compareTexts(left: string, right: string): number {
  const [ones, others] = [points(left), points(right)];
  const at = ones.findIndex((character, index) => character !== others[index]);
  if (at === -1) return ones.length - others.length;
  return (ones[at]?.codePointAt(0) ?? 0) - (others[at]?.codePointAt(0) ?? -1);
}

/** The code points that str.isprintable() accepts. */
export const isPrintable = (character: string): boolean => character === " " || !/[\p{C}\p{Z}]/u.test(character);

export const isSpace = (text: string): boolean => ONLY_SPACES.test(text);

/** Without ``chars``, or white space, at the sides "l", "r" or "lr". */
export function strip(text: string, chars: string | undefined, sides: "l" | "r" | "lr"): string {
  if (chars === undefined) {
    const left = sides === "r" ? text : text.replace(LEADING, "");
    // A regular expression for the end would try every run of spaces.
    return sides === "l" ? left : left.slice(0, trimmedEnd(left));
  }
  const set = new Set(points(chars));
  const characters = points(text);
  let [start, end] = [0, characters.length];
  if (sides !== "r") while (start < end && set.has(characters[start] ?? "")) start += 1;
  if (sides !== "l") while (end > start && set.has(characters[end - 1] ?? "")) end -= 1;
  return characters.slice(start, end).join("");
}

function trimmedEnd(text: string): number {
  let end = text.length;
  while (end > 0 && isSpace(text[end - 1] ?? "")) end -= 1;
  return end;
}

/** str.split() without a separator: at most ``most`` splits, from the left. */
export function splitSpaces(text: string, most: number): readonly string[] {
  const parts: string[] = [];
  let rest = text.replace(LEADING, "");
  while (rest !== "" && parts.length < most) {
    const match = SPACE.exec(rest);
    if (match === null) break;
    parts.push(rest.slice(0, match.index));
    rest = rest.slice(match.index + match[0].length);
  }
  const last = parts.length < most ? rest.replace(TRAILING, "") : rest;
  return last === "" ? parts : [...parts, last];
}

export const reversed = (text: string): string => points(text).toReversed().join("");

/** str.splitlines(). */
export function splitLines(text: string, keepEnds: boolean): readonly string[] {
  const lines: string[] = [];
  let rest = text;
  for (let match = LINE_END.exec(rest); match !== null; match = LINE_END.exec(rest)) {
    const end = match.index + match[0].length;
    lines.push(rest.slice(0, keepEnds ? end : match.index));
    rest = rest.slice(end);
  }
  return rest === "" ? lines : [...lines, rest];
}

/** ``text`` with ``old`` replaced at most ``most`` times. An empty ``old`` stands between the characters. */
export function replace(text: string, old: string, by: string, most: number): string {
  const parts = old === "" ? ["", ...points(text), ""] : text.split(old);
  const count = Math.min(most, parts.length - 1);
  const head = parts.slice(0, count + 1).join(by);
  return parts.length === count + 1 ? head : head + old + parts.slice(count + 1).join(old);
}

/** The first index of ``part``, or the last, in code points within [start, stop); -1 if there is none. */
export function find(text: string, part: string, start: number, stop: number, last: boolean): number {
  const characters = points(text);
  if (start > characters.length) return -1;
  const searched = characters.slice(start, stop).join("");
  if (stop < start) return -1;
  const at = last ? searched.lastIndexOf(part) : searched.indexOf(part);
  return at === -1 ? -1 : start + size(searched.slice(0, at));
}

const isCased = (character: string): boolean => /\p{Cased}/u.test(character);
export const isLowerCharacter = (character: string): boolean => /\p{Lowercase}/u.test(character);
export const isUpperCharacter = (character: string): boolean => /\p{Uppercase}/u.test(character);

/** str.islower() and str.isupper(): some character has the case, and none the other. */
export function hasCase(text: string, lower: boolean): boolean {
  const [wanted, other] = lower ? [isLowerCharacter, isUpperCharacter] : [isUpperCharacter, isLowerCharacter];
  const characters = points(text);
  return characters.some(wanted) && !characters.some((each) => other(each) || isTitleCharacter(each));
}

const isTitleCharacter = (character: string): boolean => /\p{Lt}/u.test(character);

/** str.istitle(): words start with a capital letter, and have no other. */
export function isTitle(text: string): boolean {
  let [inWord, found] = [false, false];
  for (const character of points(text)) {
    const capital = isUpperCharacter(character) || isTitleCharacter(character);
    const letter = capital || isLowerCharacter(character);
    if (letter && capital === inWord) return false;
    inWord = letter;
    found ||= letter;
  }
  return found;
}

/** The characters in lower case. A final sigma depends on the characters around it. */
function lowered(text: string): readonly string[] {
  // İ is the only character that becomes two.
  const lower = points(text.replaceAll("İ", "I").toLowerCase());
  return points(text).map((character, index) => (character === "İ" ? "i̇" : (lower[index] ?? "")));
}

/** A character as the first of a word, by the title case of Unicode's SpecialCasing.txt. */
function titleCharacter(character: string): string {
  // Each Latin digraph has three forms in a row, of which the second is for titles.
  const digraph = "ǄǅǆǇǈǉǊǋǌǱǲǳ".indexOf(character);
  if (digraph !== -1) return "ǅǈǋǲ"[Math.floor(digraph / 3)] ?? "";
  if (/^[ა-ჿ]/.test(character)) return character;
  const upper = character.toUpperCase();
  if (character === "ŉ") return upper;
  if (/^[ᾀ-῿]/.test(character) && /.Ι$/.test(upper)) {
    const subscribed = upper.replace(/Ι$/, "\u0345");
    return subscribed.length === 2 ? subscribed.normalize("NFC") : subscribed;
  }
  const [first = "", ...rest] = points(upper);
  return first + rest.join("").toLowerCase();
}

export function capitalize(text: string): string {
  const [first = ""] = points(text);
  return titleCharacter(first) + lowered(text).slice(1).join("");
}

/** str.title(): words are runs of letters that have a case. */
export function title(text: string): string {
  const [characters, lower] = [points(text), lowered(text)];
  return characters
    .map((character, index) =>
      isCased(characters[index - 1] ?? "") ? (lower[index] ?? "") : titleCharacter(character),
    )
    .join("");
}

export function swapCase(text: string): string {
  const lower = lowered(text);
  return points(text)
    .map((each, at) => (isUpperCharacter(each) ? lower[at] : isLowerCharacter(each) ? each.toUpperCase() : each))
    .join("");
}

/** str.casefold(): the full case folding of Unicode's CaseFolding.txt. */
export function caseFolded(text: string): string {
  return points(text)
    .map((character) => {
      if (character === "ı") return character;
      if (/[Ꭰ-ᏽꭰ-ꮿ]/.test(character)) return character.toUpperCase();
      return character.toLowerCase().toUpperCase().toLowerCase();
    })
    .join("");
}

/** With decimal digits of any script as those of ASCII, which int() and float() read alike. */
export function asciiDigits(text: string): string {
  return text.replace(/[^\P{Nd}0-9]/gu, (digit) => {
    // Each script has its ten digits in a row.
    const code = digit.codePointAt(0) ?? 0;
    let zero = code;
    while (/\p{Nd}/u.test(String.fromCodePoint(zero - 1))) zero -= 1;
    return String((code - zero) % 10);
  });
}
