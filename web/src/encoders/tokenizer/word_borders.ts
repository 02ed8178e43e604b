// Where a text may be cut so that the tokens of its beginning are the first tokens of the whole: between two words that a
// tokenizer always divides. compiler/runtime/text/word_borders.py has the same borders.

/** A long text is cut near the end of a part. A part without a border there is made longer. */
const WINDOW = 4096;
const MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
const MARK = "[!-/:-@\\[-`{-~]";
const WORD = "[\\p{L}\\p{N}]";

interface Kind {
  readonly pattern: string;
  /** Texts on its two sides, which show whether a tokenizer divides there. */
  readonly sides: readonly (readonly [left: string, right: string])[];
}

/** A space behind a letter, a digit or a mark, in front of a letter or a digit. */
const SPACE: Kind = {
  pattern: `(?<=${WORD}|${MARK}) (?=${WORD})`,
  sides: [["ab", " cd"], ["12", " éß"], ["日本", " 34"], ...Array.from(MARKS, (mark) => [`a${mark}`, " b"] as const)],
};
const KINDS: readonly Kind[] = [
  SPACE,
  // Two ideographs, two marks, or a mark and a letter, which are words of their own for BERT.
  {
    pattern: "(?<=[一-鿿])(?=[一-鿿])",
    sides: [
      ["日", "本"],
      ["中文", "字符"],
    ],
  },
  { pattern: `(?<=${MARK})(?=${MARK})`, sides: Array.from(MARKS, (mark) => [`a${mark}`, ",b"] as const) },
  // Not of marks in the names of special tokens, such as "</s>" and "[CLS]".
  {
    pattern: "(?<=[!-.:;=?@\\\\^`{}~])(?=[!-.:;=?@\\\\^`{}~])",
    sides: Array.from("!\"#$%&'()*+,-.:;=?@\\^`{}~", (mark) => [`a${mark}`, ",b"] as const),
  },
  {
    pattern: `(?<=[!-.:;=?@\\\\^-\`{-~])(?=${WORD})`,
    sides: Array.from("!.:;=?@\\^_`{~", (mark) => [`a${mark}`, "b"] as const),
  },
];

/** A pattern of the borders for a tokenizer that makes ``words`` of a text, null if it has none. */
export function bordersOf(words: (text: string) => readonly string[], added: readonly string[]): RegExp | null {
  const divides = (left: string, right: string): boolean =>
    JSON.stringify([...words(left), ...words(right)]) === JSON.stringify(words(left + right));
  return union(
    KINDS.filter(({ sides }) => sides.every(([left, right]) => divides(left, right))),
    added,
  );
}

/** The borders of GPT-2's pattern, whose words begin with their space. */
export function byteLevelBorders(added: readonly string[]): RegExp | null {
  return union([SPACE], added);
}

/** A border is not inside an added token. */
function union(kinds: readonly Kind[], added: readonly string[]): RegExp | null {
  const patterns = kinds
    .map(({ pattern }) => pattern)
    .filter((pattern) => !added.some((name) => new RegExp(pattern, "u").test(name)));
  return patterns.length === 0 ? null : new RegExp(patterns.join("|"), "gu");
}

/** The last border at most `WINDOW` characters before ``size``; null if there is none. */
export function borderBefore(borders: RegExp, text: string, size: number): number | null {
  const from = Math.max(0, size - WINDOW);
  const last = [...text.slice(from, size).matchAll(borders)].at(-1);
  return last === undefined ? null : from + last.index;
}
