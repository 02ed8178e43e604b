// The words of a text, as the index of words counts them.

const SEGMENTER = new Intl.Segmenter("en", { granularity: "word" });

/**
 * The words in lower case and in compatible forms (NFKC), in their order. An identifier such as maxTokens or max_tokens
 * also gives its parts. English plurals lose their ending (the S-stemmer of Harman 1991).
 */
export function wordsOf(text: string): string[] {
  const words: string[] = [];
  for (const { segment, isWordLike } of SEGMENTER.segment(text.normalize("NFKC"))) {
    if (isWordLike !== true) continue;
    words.push(singular(segment.toLowerCase()));
    const parts = segment.match(/\p{Lu}+(?!\p{Ll})|\p{Lu}?\p{Ll}+|\p{Lo}+|\p{N}+/gu) ?? [];
    if (parts.length > 1) words.push(...parts.map((part) => singular(part.toLowerCase())));
  }
  return words;
}

function singular(word: string): string {
  if (word.length < 4 || !word.endsWith("s")) return word;
  if (word.endsWith("ies") && !/[ae]ies$/.test(word)) return `${word.slice(0, -3)}y`;
  if (word.endsWith("es") && !/[aeo]es$/.test(word)) return word.slice(0, -1);
  return /[us]s$/.test(word) ? word : word.slice(0, -1);
}
