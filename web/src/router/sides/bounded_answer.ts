// Cuts a far side's answer at the limits of the request.
//
// The router does not rely on the server to stop there. Choices that were not requested, text after the end and tokens
// beyond the limit are left out. Tokens are counted exactly if they are listed with their log-probabilities; otherwise,
// if pieces count, a piece of text counts as one token, the minimum. Whatever a server reports about its tokens, text
// with more words or characters than that number of tokens can hold is cut too.

import type { ChatCompletionChunk } from "../../api/types.js";

type Choice = ChatCompletionChunk["choices"][number];

/** The usage follows the end in one chunk. */
const AFTER_END_CHUNKS = 16;

/** Tokenizers split text at spaces, except a few whose tokens hold up to 4 words. */
const WORDS_PER_TOKEN = 4;
/** The longest tokens of published vocabularies are runs of spaces. */
const CHARACTERS_PER_TOKEN = 256;

/**
 * ``limit`` is in tokens, Infinity for none. A failure after the end changes nothing. Throws what ``chunks`` throws
 * before it.
 */
export async function* boundedAnswer(
  chunks: AsyncIterable<ChatCompletionChunk>,
  limit: number,
  countsPieces: boolean,
): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  let tokens = 0;
  let words = 0;
  let characters = 0;
  let last = " ";
  let ended = false;
  let afterEnd = 0;
  let counted = Infinity;
  /**
   * One piece beyond the limit, with the end if that arrived: it may be text of earlier tokens that the server had held
   * back.
   */
  const late: ChatCompletionChunk[] = [];
  try {
    for await (const chunk of chunks) {
      counted = chunk.usage?.completion_tokens ?? counted;
      const choice: Choice | undefined = ended ? undefined : chunk.choices.find(({ index }) => index === 0);
      if (choice === undefined) {
        if (ended && ++afterEnd > AFTER_END_CHUNKS) break;
        yield { ...chunk, choices: [] };
        continue;
      }
      const listed = choice.logprobs?.content?.length ?? 0;
      const text = (choice.delta.content ?? "") + (choice.delta.reasoning_content ?? "");
      words += (last + text).match(/[ \n\t][^ \n\t]/g)?.length ?? 0;
      characters += text.length;
      last = text.at(-1) ?? last;
      const isTooLong = Math.max(words / WORDS_PER_TOKEN, characters / CHARACTERS_PER_TOKEN) > limit;
      const size = listed > 0 ? listed : Number(countsPieces && text !== "");
      tokens += size;
      const isOver = size > 0 && tokens > limit;
      ended = choice.finish_reason !== null;
      if (isTooLong || (isOver && (listed > 0 || late.length > 0))) {
        ended = true;
        late.length = 0;
        yield cut(chunk);
      } else if (isOver || late.length > 0) late.push({ ...chunk, choices: [choice] });
      else yield { ...chunk, choices: [choice] };
    }
  } catch (error) {
    if (!ended) throw error;
  }
  const [first] = late;
  if (counted <= limit) yield* late;
  else if (ended && first !== undefined) yield cut(first);
}

function cut(chunk: ChatCompletionChunk): ChatCompletionChunk {
  return { ...chunk, choices: [{ index: 0, delta: {}, logprobs: null, finish_reason: "length" }] };
}
