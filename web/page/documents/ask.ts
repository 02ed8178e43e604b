// One question: find passages, and let one of the sides answer from them.
//
// The far side only ever receives passages that the policy lets go, and the question. The router decides on this
// request, unless the question itself is private. If it chooses this device, the answer begins again with all passages, which then cannot change sides.

import type { Engine } from "../../src/index.js";
import type { Hit, IndexApi } from "../../src/retrieval/index.js";
import { answerRoom } from "../fit_messages.js";
import type { Answerer, ChatMessage, Piece, Settings, Side } from "../model.js";
import type { Sides } from "../sides.js";
import type { Source } from "./sources.js";
import { isPrivateText, promptOf, sourcesOf } from "./sources.js";

/** What can answer. ``sides`` is null if no server is connected, ``near`` if this device has no model. */
export interface Answering {
  readonly index: IndexApi;
  readonly near: { readonly engine: Engine; readonly answerer: Answerer } | null;
  readonly sides: Sides | null;
  readonly locked: ReadonlySet<string>;
  readonly style: "numbered" | "plain";
}

export type AnswerEvent =
  | { readonly type: "sources"; readonly sources: readonly Source[] }
  /** ``given``: the sources that this side reads. The text so far is withdrawn. */
  | { readonly type: "side"; readonly side: Side; readonly given: readonly Source[] }
  | { readonly type: "text"; readonly text: string };

const PASSAGES = 5;
const SETTINGS: Settings = { temperature: 0, maxTokens: 256, seed: null };
/** What a server's model surely reads, if this device has no model to count with. */
const FAR_CHARACTERS = 6000;

/** Throws what the index and the sides throw, or the signal's reason. */
export async function* askDocuments(
  question: string,
  { index, near, sides, locked, style }: Answering,
  signal: AbortSignal,
): AsyncGenerator<AnswerEvent, void, undefined> {
  const hits = await index.search(question, { count: PASSAGES, signal });
  const all = sourcesOf(hits, await textsOf(index, hits), sides?.policy ?? null, locked);
  yield { type: "sources", sources: all };
  const request = async (some: readonly Source[]): Promise<{ messages: ChatMessage[]; given: readonly Source[] }> => {
    const given = await fitting(question, some, near?.engine ?? null, style);
    return { messages: [{ role: "user", content: promptOf(question, given, style), private: false }], given };
  };
  const staysHere = near !== null && sides !== null && isPrivateText(question, sides.policy);
  if (sides?.farModel != null && !staysHere) {
    const open = all.filter((source) => !source.private);
    const { messages, given } = await request(open);
    const staysNear = yield* follow(
      sides.answer(messages, SETTINGS, signal),
      given,
      open.length < all.length && near !== null,
    );
    if (!staysNear) return;
  }
  if (near === null) throw new Error("neither this device nor a server can answer");
  const { messages, given } = await request(all);
  yield { type: "side", side: "near", given };
  for await (const piece of near.answerer.answer(messages, SETTINGS, signal))
    if (piece.type === "text") yield { type: "text", text: piece.text };
}

/** ``leaveNear``: end at once, and return true, when this device is chosen. */
async function* follow(
  pieces: AsyncIterable<Piece>,
  given: readonly Source[],
  leaveNear: boolean,
): AsyncGenerator<AnswerEvent, boolean, undefined> {
  let side: Side | null = null;
  for await (const piece of pieces) {
    if (piece.type === "text") yield { type: "text", text: piece.text };
    if (piece.type !== "route") continue;
    if (leaveNear && side === null && piece.route.side === "near") return true;
    // A continued answer keeps its text.
    if (side === null || piece.route.switched_at === 0) yield { type: "side", side: piece.route.side, given };
    side = piece.route.side;
  }
  return false;
}

/** The first sources whose prompt leaves room for an answer; at least one. */
async function fitting(
  question: string,
  sources: readonly Source[],
  engine: Engine | null,
  style: Answering["style"],
): Promise<readonly Source[]> {
  for (let count = sources.length; count > 1; count--) {
    const some = sources.slice(0, count);
    const prompt = promptOf(question, some, style);
    const fits =
      engine === null
        ? prompt.length <= FAR_CHARACTERS
        : (await engine.countTokens([{ role: "user", content: prompt }])) +
            answerRoom(engine.info.context, SETTINGS.maxTokens) <=
          engine.info.context;
    if (fits) return some;
  }
  return sources.slice(0, 1);
}

async function textsOf(index: IndexApi, hits: readonly Hit[]): Promise<ReadonlyMap<string, string>> {
  const ids = [...new Set(hits.map(({ document }) => document))];
  return new Map(await Promise.all(ids.map(async (id) => [id, (await index.textOf(id)) ?? ""] as const)));
}
