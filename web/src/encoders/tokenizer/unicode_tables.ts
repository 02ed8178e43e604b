// Sets of characters as Hugging Face's tokenizers library defines them: it has Unicode's properties of older versions
// than browsers. tests/web/test_unicode_tables.py compares them with the library.

/** Ranges of code points: the distance from the end of the previous one, and the length less 1, in base 36. */
class CharacterSet {
  readonly #starts: readonly number[];
  readonly #ends: readonly number[];

  constructor(ranges: string) {
    const numbers = ranges.split(" ").map((digits) => parseInt(digits, 36));
    const [starts, ends]: [number[], number[]] = [[], []];
    for (let index = 0, end = 0; index < numbers.length; index += 2) {
      const start = end + (numbers[index] ?? 0);
      end = start + (numbers[index + 1] ?? 0);
      starts.push(start);
      ends.push(end);
    }
    [this.#starts, this.#ends] = [starts, ends];
  }

  has(code: number): boolean {
    let [low, high] = [0, this.#starts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#starts[middle] ?? 0) <= code) low = middle + 1;
      else high = middle;
    }
    return low > 0 && code <= (this.#ends[low - 1] ?? -1);
  }
}

/** Marks that BERT's normalizer removes with accents (general category Mn). */
export const ACCENTS = new CharacterSet(
  "lc 33 7o 4 7e 18 2 0 2 1 2 1 2 0 21 a 1d k h 0 2u 6 3 5 3 1 2 3 10 0 v q 2k a 1n 8 z 3 2 8 2 2 2 4 18 2 " +
    "3s v 1k 0 2 0 5 7 5 0 4 6 b 1 u 0 1n 0 5 3 9 0 l 1 u 1 1m 0 5 1 5 1 3 2 4 0 v 1 4 0 c 1 1m 0 5 4 2 1 5 0 " +
    "l 1 u 0 1n 0 3 0 2 3 9 0 9 0 c 1 v 0 1q 0 d 0 1f 0 1q 2 6 2 2 3 8 1 c 1 u 0 1n 0 3 0 7 0 6 1 l 1 u 0 1s " +
    "3 9 0 l 1 2v 0 8 2 2 0 2j 0 3 6 d 7 2r 0 3 5 2 1 c 5 23 1 s 0 2 0 2 0 1k d 2 4 2 1 6 a 2 z a 0 2v 3 2 5 " +
    "2 1 3 1 q 1 5 2 h 3 e 0 3 1 7 0 g 0 jk 2 qb 2 u 2 u 1 v 1 1t 1 2 6 9 0 3 a a 0 1a 2 4c 0 3b 2 5 1 a 0 7 " +
    "2 64 1 3 0 1n 0 2 6 2 0 2 0 3 7 7 9 3 0 1d d 1v 3 1d 0 2 4 2 0 6 0 15 8 d 1 x 3 3 1 2 2 1l 0 2 1 4 0 2 2 " +
    "1n 7 3 1 49 2 2 c 2 6 5 0 7 0 4 1 5j 1h 7 3 k1 c 5 0 4 b 2db 2 3y 0 2p v ff 3 30 1 n9x 0 5 9 x 1 29 1 7l " +
    "0 4 0 5 0 q 1 4e 0 s h 1h 7 q a 1b 2 1d 0 3 3 3 0 15 0 1w 5 3 1 3 1 d 0 9 0 1c 0 1g 0 2 2 3 1 6 1 2 0 17 " +
    "1 9 0 6n 0 3 0 5 0 fn5 0 ki f h f r2 0 6b 0 46 4 1af 2 2 1 6 3 15 2 5 0 4m 1 10b 0 1j e 1l 2 1e 3 3 1 1y " +
    "2 11 4 2 7 1r 0 d 1 1h 8 c 2 2r 2 3 0 2 1 4o 0 4 7 m 1 1n 0 4 0 12 6 4 4 8v 5 2 0 5 1 2 1 6n 3 7 1 2 1 s " +
    "1 2e 7 3 0 2 1 2z 0 2 0 3 5 2 0 2u 2 3 3 2 4 gjp 4 1o 6 ux 3 f7v 1 43t 2 i 7 3 6 v 3 45 2 1j0 1i 5 1d 9 " +
    "0 f 0 n 4 2 e 2sh 6 gzl6 6n",
);
/** What "StripAccents" removes besides: other marks (Mc, Me), and marks of later versions. */
export const OTHER_MARKS = new CharacterSet(
  "w8 1 uj d y 0 1k 0 3 2 9 3 2 1 1f 1 1n 2 7 1 3 1 b 0 18 0 1n 2 1v 0 1n 2 9 0 2 1 1i 1 1n 0 2 0 7 1 3 1 b 0 " +
    "2v 1 2 1 4 2 2 2 b 0 16 2 1q 3 1q 1 1n 0 2 4 3 1 2 1 a 1 18 1 1n 2 6 2 2 2 b 0 17 1 24 2 7 7 j 1 97 1 1s 0 " +
    "4s 1 5 0 7 0 3 1 q 1 b 2 3 6 m 1 3 5 3 0 b 2 1ei 0 8 7 2 1 59 1 4d 3 3 2 5 1 2 5 69 1 1n 0 2 0 a 0 2 1 9 5 " +
    "24 0 1y 0 1d 0 6 0 2 4 2 1 1q 0 v 0 5 1 3 0 1p 0 3 2 2 0 4 1 1d 7 9 1 4s 0 h 1 7c 0 ki 3 2 2 30q 1 ncx 2 " +
    "c1 1 3 0 2h 1 1f f 2 0 3x 1 1c 0 1d 1 5 1 2 3 33 1 3 1 p 0 1a 0 2 0 32 0 3 1 6 0 6m 1 2 1 2 1 2 0 jro 0 2 " +
    "0 3k 0 1a 2 5 1 38 0 2e 0 1d 2 a 1 30 2 4 1 2 0 9 0 4i 2 w 1 1n 1 2 3 3 1 3 2 a 0 b 1 5u h 2y 2 7 0 2 3 3 " +
    "0 6m 2 7 3 3 0 36 2 9 1 2 0 32 0 2 1 7 0 2y 1 5 0 zt 7 2 7 2b l 2 d gbf 19 jc7 1 7 5 2vi 6 2 g 3 6 2 1 2 4 " +
    "1sq 6",
);
/** Punctuation that BERT's pre-tokenizer isolates: that of ASCII, and the categories P. */
export const PUNCTUATION = new CharacterSet(
  "x e b 6 r 5 r 3 z 0 6 0 4 0 b 1 4 0 4 0 jj 0 9 0 cz 5 16 1 1g 0 2 0 3 0 3 0 19 1 l 1 2 1 e 0 3 1 23 3 2v " +
    "0 18 d 6i 2 1j e w 0 7a 1 b 0 ao 0 lg 0 2j 0 b 1 4p e 2 0 12 3 20 0 23 4 5 1 34 5 4s 0 h1 8 48 0 h9 1 19 " +
    "1 27 2 20 1 4e 2 2 2 12 a 8q 1 61 1 3l 6 2 5 4t 6 4c 3 1o 4 1r 1 1t 7 c 0 n1 n 9 j 2 c 2 b v 1 f 1 hm 3 " +
    "u 1 u6 d 28 1 w 9 b8 l 1s 3 x 1 l8 3 2 1 35 0 40 1a 2 i cf 2 5 9 3 b h 0 d 0 2r 0 2j 0 mwz 1 7i 2 2s 0 b " +
    "0 38 5 al 3 2f 1 15 2 2 0 1e 1 1c 0 2q c h 1 3h 3 3j 1 h 1 6y 0 g2b 1 5t 9 n y 2 d 2 0 5 0 2 1 46 2 2 5 " +
    "2 3 b 1 4 1 r 2 2 0 s 0 2 0 2 6 bf 2 il 0 1d 0 bj 0 ko 0 5k 0 w 0 7l 8 13 0 35 6 1v 6 2i 3 x7 6 32 1 2 3 " +
    "3j 3 1d 1 28 4 4 0 e 0 2 2 2h 5 30 0 f1 0 6z m 2y 2 6x 2 2lu 4 dtm 1 3q 0 1u 4 9 0 g2j 0 5wo 4",
);
/** Control characters and others that BERT's normalizer removes; not tabs and ends of lines. */
export const CONTROLS = new CharacterSet(
  "0 8 3 1 2 h 2o w e 0 11v 5 n 0 5d 0 1e 0 3cv 0 1kt 4 r 4 1e 4 2 9 11u9 4xr 16o 0 6y 2 2 0 3b4 0 xyb 3 " +
    "440 7 h407 0 v 2n 1egx 1ekd 3 1ekd",
);
/** Characters that have decompositions in newer versions of Unicode only. */
export const UNDECOMPOSED = new CharacterSet(
  "a2n 0 n3m 3 ol 0 huo 0 r 0 bh 4 2 15 2 8 2bt 0 2 0 9 0 3 0 1g 0 2 1 12o 0 e7d 7 2f4 2 iuk z 3sn 1p 3cv 0 " + "22s 9",
);

/** CJK characters that BERT's normalizer surrounds with spaces. The library begins the sixth range at U+2B920. */
const CJK: readonly (readonly [number, number])[] = [
  [0x3400, 0x4dbf],
  [0x4e00, 0x9fff],
  [0xf900, 0xfaff],
  [0x20000, 0x2a6df],
  [0x2a700, 0x2b81f],
  [0x2b920, 0x2ceaf],
  [0x2f800, 0x2fa1f],
];

export function isCjk(code: number): boolean {
  return CJK.some(([first, last]) => code >= first && code <= last);
}

/** Unicode's property White_Space. */
export function isSpace(character: string): boolean {
  return /^\p{White_Space}$/u.test(character);
}
