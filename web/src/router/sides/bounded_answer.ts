// The bounds of a far side's answer: chunks as the server sent them flow in, those of choice 0 that belong to the answer flow out.
//
// A server is not trusted to stop where it should. Choices that nobody asked for, text after the end and tokens beyond the limit are left out. Tokens are
// counted exactly if they are listed with their log-probabilities; otherwise, if pieces count, a piece of text counts as one token, the least that it can be.

import type { ChatCompletionChunk } from "../../api/types.js";

type Choice = ChatCompletionChunk["choices"][number];

/** The usage follows the end in one chunk. */
const AFTER_END_CHUNKS = 16;

/** ``limit`` in tokens, Infinity for none. A failure after the end changes nothing. Throws what ``chunks`` throws before it. */
export async function* boundedAnswer(chunks: AsyncIterable<ChatCompletionChunk>, limit: number, countsPieces: boolean): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  let tokens = 0;
  let ended = false;
  let afterEnd = 0;
  let counted = Infinity;
  /** One piece beyond the limit, with the end if that came: it may be text of earlier tokens that the server had held back. */
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
      const size = listed > 0 ? listed : Number(countsPieces && [choice.delta.content, choice.delta.reasoning_content].some(Boolean));
      tokens += size;
      const isOver = size > 0 && tokens > limit;
      ended = choice.finish_reason !== null;
      if (isOver && (listed > 0 || late.length > 0)) {
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
