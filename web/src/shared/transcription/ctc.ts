// What becomes of the rows of an encoder of sound: which of them each window keeps, the tokens that they name
// (connectionist temporal classification, Graves et al. 2006), and the words and segments that these form.

/** Rows of sound: those of a window, and the samples of each. */
export interface RowSizes {
  readonly rows: number;
  readonly rowSamples: number;
  readonly frameSamples: number;
}

/** The samples from ``start`` to before ``end``, and of the window's rows those from ``first`` to before ``last``. */
export interface RowWindow {
  readonly start: number;
  readonly end: number;
  readonly first: number;
  readonly last: number;
}

/** A token, the rows that name it, and the mean of its log-probabilities in them. */
export interface TokenSpan {
  readonly token: number;
  readonly start: number;
  readonly end: number;
  readonly logprob: number;
}

/** What a row names: its likeliest token, and the log-probability of that. */
export interface NamedRows {
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
}

/** Seconds from the start of the sound. */
export interface Word {
  readonly word: string;
  readonly start: number;
  readonly end: number;
}

/** A part of a transcript, with its tokens' spans. */
export interface WordSegment {
  readonly start: number;
  readonly end: number;
  readonly text: string;
  readonly words: readonly Word[];
  readonly tokens: readonly number[];
  readonly logprob: number;
}

/** A pause that ends a segment, and the length beyond which a word begins another one, in seconds. */
const PAUSE_SECONDS = 0.8;
const LONGEST_SECONDS = 15;
/** The end of a sentence. */
const SENTENCE_END = /[.?!。？！]["'”’)\]]*$/u;
/** Of a window, the part at either side that another window knows better: it has sound on both sides of it. */
const SIDE = 6;

/**
 * The windows of so many samples. Neighbours overlap by a third: each keeps the rows of its middle, the first one also
 * those before them, and the last one those behind them.
 */
export function rowWindows(samples: number, { rows, rowSamples, frameSamples }: RowSizes): readonly RowWindow[] {
  const all = Math.ceil(Math.floor(samples / frameSamples) / (rowSamples / frameSamples));
  const side = Math.floor(rows / SIDE);
  const windows: RowWindow[] = [];
  for (let row = 0; ; row += rows - 2 * side) {
    const isLast = row + rows >= all;
    windows.push({
      start: row * rowSamples,
      end: isLast ? samples : (row + rows) * rowSamples,
      first: row === 0 ? 0 : side,
      last: isLast ? all - row : rows - side,
    });
    if (isLast) return windows;
  }
}

/** The spans with those of the rows from ``row`` on. Neighbours that name one token are one span. */
export function withRows(
  spans: readonly TokenSpan[],
  { tokens, logprobs }: NamedRows,
  row: number,
  blank: number,
): readonly TokenSpan[] {
  const all = [...spans];
  for (const [index, token] of tokens.entries()) {
    if (token === blank) continue;
    const at = row + index;
    const logprob = logprobs[index] ?? 0;
    const before = all.at(-1);
    if (before?.token === token && before.end === at) {
      const count = at - before.start;
      all[all.length - 1] = { ...before, end: at + 1, logprob: (before.logprob * count + logprob) / (count + 1) };
    } else all.push({ token, start: at, end: at + 1, logprob });
  }
  return all;
}

/**
 * The segments that are complete, and how many of the spans they have. ``texts``: for each span, the text of all tokens
 * up to it. ``soundSeconds``: the length of the sound, behind which no word ends, although a row may. ``isLast``: no span
 * follows, so that all segments are complete. A segment ends at a pause, at the end of a sentence, and before it is longer
 * than 15 seconds.
 */
export function wordSegments(
  spans: readonly TokenSpan[],
  texts: readonly string[],
  rowSeconds: number,
  soundSeconds: number,
  isLast: boolean,
): { readonly segments: readonly WordSegment[]; readonly used: number } {
  const words = wordsOf(spans, texts, rowSeconds, soundSeconds);
  const segments: WordSegment[] = [];
  let first = 0;
  for (const [index, word] of words.entries()) {
    const next = words[index + 1];
    const begun = words[first] ?? word;
    const ends =
      next === undefined
        ? isLast
        : rounded(next.start - word.end) >= PAUSE_SECONDS ||
          SENTENCE_END.test(word.word) ||
          rounded(next.end - begun.start) > LONGEST_SECONDS;
    if (!ends) continue;
    const own = words.slice(first, index + 1);
    const of = spans.slice(begun.first, word.last + 1);
    segments.push({
      start: begun.start,
      end: word.end,
      text: own.map((each) => (each.apart ? " " : "") + each.word).join(""),
      words: own.map(({ word: text, start, end }) => ({ word: text, start, end })),
      tokens: of.map(({ token }) => token),
      logprob: of.reduce((sum, { logprob }) => sum + logprob, 0) / Math.max(1, of.length),
    });
    first = index + 1;
  }
  return { segments, used: isLast ? spans.length : (words[first]?.first ?? 0) };
}

/** Seconds to the millisecond. */
const rounded = (seconds: number): number => Math.round(seconds * 1000) / 1000;

/** A word with the first and the last span that it has characters of. */
interface SpannedWord extends Word {
  readonly first: number;
  readonly last: number;
  /** Whether a space parts it from the word before. */
  readonly apart: boolean;
}

const UNSPACED = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u;
/** Letters between spaces; of scripts that are written without spaces, each letter, with the marks behind it. */
const WORDS =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]\p{P}*|[^\s\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]+/gu;

function wordsOf(
  spans: readonly TokenSpan[],
  texts: readonly string[],
  rowSeconds: number,
  soundSeconds: number,
): readonly SpannedWord[] {
  const text = texts.at(-1) ?? "";
  const seconds = (row: number): number => rounded(Math.min(row * rowSeconds, soundSeconds));
  return [...text.matchAll(WORDS)].map(({ 0: word, index }) => {
    // The first span that reaches into the word, and the first one that reaches its end.
    const first = Math.max(
      0,
      texts.findIndex((each) => each.length > index),
    );
    const end = texts.findIndex((each) => each.length >= index + word.length);
    const last = Math.max(first, end === -1 ? texts.length - 1 : end);
    // What precedes the text's first word is not known.
    const apart = index === 0 ? !UNSPACED.test(word) : /\s/u.test(text[index - 1] ?? "");
    return { word, apart, first, last, start: seconds(spans[first]?.start ?? 0), end: seconds(spans[last]?.end ?? 0) };
  });
}
