// What far receives in place of chats with private texts: finds these texts, hides them, and restores them in far's
// answers. hybrid.js loads this file if the policy has `private.masks`.

import type { ClassifyParams } from "../api/encoder_types.js";
import type { ClassifyResponse, MaskedText } from "../api/replies.js";
import type { ChatCompletionChunk, ChatCompletionToolCallDelta, RequestOptions } from "../api/types.js";
import { NearfarError, RequestError } from "../errors.js";
import { unlessAborted } from "../runtime/abort.js";
import type { Policy } from "../shared/decision/policy.js";
import type { MaskRules } from "../shared/decision/policy_schema.js";
import type { PrivateCheck } from "../shared/decision/privacy.js";
import type { Situation } from "../shared/decision/situation.js";
import type { Form } from "../shared/masks/addresses.js";
import { entitiesOf, textWindows } from "../shared/masks/entities.js";
import type { Entity } from "../shared/masks/mask_request.js";
import { hasMasked, maskMessages, maskText, maskableTexts } from "../shared/masks/mask_request.js";
import type { Mask } from "../shared/masks/placeholders.js";
import type { Pending } from "../shared/masks/restorer.js";
import { NOTHING_PENDING, restore } from "../shared/masks/restorer.js";
import { privateText } from "../shared/router/failures.js";
import type { HybridRequest } from "./request.js";
import { withMessages } from "./request.js";
import type { AnswerSoFar, PlainParams, Side, SideRequest } from "./sides/sides.js";
import { textOf } from "./sides/sides.js";

/** A model on this device that labels the tokens of texts: an `Engine` with a classifier of tokens is one. */
export interface EntityFinder {
  classify(params: ClassifyParams, options?: RequestOptions): PromiseLike<Pick<ClassifyResponse, "data">>;
}

/** Whether these texts of a request may leave; for a policy whose `private.masks.then` is "ask". */
export type Confirm = (texts: readonly MaskedText[]) => boolean | PromiseLike<boolean>;

export interface MaskOptions {
  readonly finder: EntityFinder | null;
  readonly confirm: Confirm | null;
}

/** Texts whose entities are retained, so that a conversation's next turn does not search them again. */
const MOST = 256;
const MOST_CONFIRMED = 4096;
/** In a text of these formats, a placeholder may be impossible. */
const STRICT_FORMATS: readonly unknown[] = ["regex", "grammar"];

export class Masker {
  readonly #rules: MaskRules;
  readonly #entities = new Map<string, readonly Entity[]>();
  /** The last texts that the application has agreed to. */
  readonly #confirmed = new Set<string>();

  /** Throws RequestError with the code "bad_policy" for options that do not fit the policy. */
  constructor(
    private readonly policy: Policy,
    private readonly check: PrivateCheck,
    private readonly options: MaskOptions,
  ) {
    const { masks } = policy.private;
    if (masks === null) throw new Error("the policy has no masks");
    this.#rules = masks;
  }

  /** The request for far, or null if it must stay on the device. Throws the signal's reason. */
  async mask(request: HybridRequest, signal: AbortSignal): Promise<MaskedRequest | null> {
    const { params, properties } = request;
    const isPrivate = (of: Pick<Situation, "messages" | "texts">): boolean =>
      this.check.isPrivate({ labels: properties.labels, ...of } as Situation);
    const entities: (readonly [string, readonly Entity[]])[] = [];
    for (const text of maskableTexts(params.messages)) {
      const found = await this.#find(text, signal);
      if (found === null) return null;
      entities.push([text, found]);
    }
    const { ignore_case: ignoreCase } = this.policy.private;
    const masked = maskMessages(this.#rules, ignoreCase, params.messages, entities);
    if (masked === null) return isPrivate(properties) ? null : new MaskedRequest(this, params, [], []);
    const format = params.response_format?.type;
    if (this.#rules.then === "near" || params.logprobs === true || STRICT_FORMATS.includes(format)) return null;
    const sent = withMessages(request, masked.messages as PlainParams["messages"]);
    const { messages, texts } = sent.properties;
    const parts = messages.map(({ content, parts: own = [] }) => (own.length > 0 ? own : [content]));
    const groups = [...parts, parts.flat(), ...texts.map((text) => (typeof text === "string" ? [text] : text))];
    if (isPrivate(sent.properties) || hasMasked(masked.masks, groups)) return null;
    return new MaskedRequest(this, sent.params, masked.masks, masked.texts);
  }

  /** A text of near's with the masks of its request; null if it must not leave. */
  async maskMore(
    text: string,
    masks: readonly Mask[],
    signal: AbortSignal,
  ): Promise<{ readonly text: string; readonly masks: readonly Mask[] } | null> {
    const entities = await this.#find(text, signal);
    if (entities === null) return null;
    const masked = maskText(this.#rules, this.policy.private.ignore_case, text, entities, masks);
    const isNew = masked.masks.length > masks.length;
    return isNew && this.#rules.then !== "mask" ? null : masked;
  }

  /** Whether the application agrees that far receives these texts; each of them is asked about once. */
  async mayLeave({ texts }: MaskedRequest, signal: AbortSignal): Promise<boolean> {
    if (this.#rules.then !== "ask" || texts.every(({ text }) => this.#confirmed.has(text))) return true;
    const agreed = this.options.confirm !== null && (await unlessAborted(this.#confirm(texts), signal));
    if (agreed) for (const { text } of texts) this.#confirmed.add(text);
    for (const oldest of [...this.#confirmed].slice(0, -MOST_CONFIRMED)) this.#confirmed.delete(oldest);
    return agreed;
  }

  /** Whether near's text, which meets the last message, still matches a pattern. */
  matches(params: PlainParams, { text, reasoning = "" }: Pick<AnswerSoFar, "text" | "reasoning">): boolean {
    return this.check.matches(...params.messages.slice(-1).map(textOf), text) || this.check.matches(reasoning);
  }

  async #confirm(texts: readonly MaskedText[]): Promise<boolean> {
    return (await this.options.confirm?.(texts)) === true;
  }

  /** The entities of a text; null if the model fails. */
  async #find(text: string, signal: AbortSignal): Promise<readonly Entity[] | null> {
    const { finder } = this.options;
    if (this.#rules.entities.length === 0 || finder === null || text.trim() === "") return [];
    const known = this.#entities.get(text);
    if (known !== undefined) return known;
    const windows = textWindows(text).filter((window) => window.text.trim() !== "");
    try {
      const { data } = await finder.classify({ input: windows.map((window) => window.text) }, { signal });
      const found = windows.flatMap((window, index) => {
        const labelled = data[index];
        if (labelled?.spans === undefined) throw noSpans();
        return entitiesOf(window, labelled.spans);
      });
      this.#entities.set(text, found);
      const [oldest] = this.#entities.keys();
      if (this.#entities.size > MOST && oldest !== undefined) this.#entities.delete(oldest);
      return found;
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof NearfarError) return null;
      throw error;
    }
  }
}

/** A chat as far receives it. */
export class MaskedRequest {
  readonly #left: MaskedText[] = [];

  /** ``texts`` are those that differ from the request's own. */
  constructor(
    private readonly masker: Masker,
    readonly params: PlainParams,
    readonly masks: readonly Mask[],
    readonly texts: readonly MaskedText[],
  ) {}

  /** The masked texts that were sent to far, word for word. */
  get left(): readonly MaskedText[] {
    return this.#left;
  }

  /** Something of the request is sent. */
  leaves(more: readonly MaskedText[] = []): void {
    for (const text of [...this.texts, ...more])
      if (!this.#left.some((known) => known.path === text.path && known.text === text.text)) this.#left.push(text);
  }

  /** ``far``, which receives these messages in place of any others, and whose answer has the private texts. */
  over(far: Side): Side {
    return { answer: (request) => this.#answer(far, request) };
  }

  async *#answer(far: Side, request: SideRequest): AsyncGenerator<ChatCompletionChunk, void, undefined> {
    const { signal } = request;
    const { messages } = this.params;
    let { masks } = this;
    let { from } = request;
    if (from !== null) {
      const more: MaskedText[] = [];
      const hidden: { text: string; reasoning: string } = { text: from.text, reasoning: from.reasoning ?? "" };
      for (const name of ["reasoning", "text"] as const) {
        const masked = await this.masker.maskMore(hidden[name], masks, signal);
        if (masked === null) throw privateText();
        masks = masked.masks;
        if (masked.text !== hidden[name]) more.push({ path: `answer.${name}`, text: masked.text });
        hidden[name] = masked.text;
      }
      if (this.masker.matches(this.params, hidden)) throw privateText();
      from = { ...from, ...hidden, tokenIds: masks.length === 0 ? from.tokenIds : null };
      this.leaves(more);
    } else this.leaves();
    const answer = far.answer({ ...request, params: { ...request.params, messages }, from });
    yield* masks.length === 0 ? answer : restoredChunks(masks, this.params, answer);
  }
}

function noSpans(): RequestError {
  return new RequestError("the finder finds no spans in a text; use a classifier of tokens", { param: "finder" });
}

/** The chunks of an answer with their private texts, which come once their placeholders are complete. */
async function* restoredChunks(
  masks: readonly Mask[],
  { response_format: format }: PlainParams,
  chunks: AsyncIterable<ChatCompletionChunk>,
): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  const pending = new Map<string, Pending>();
  const restoredOf = (key: string, form: Form, piece: string, last: boolean): string => {
    const [text, after] = restore(masks, form, pending.get(key) ?? NOTHING_PENDING, piece, last);
    pending.set(key, after);
    return text;
  };
  const contentForm: Form = format === undefined || format.type === "text" ? "text" : "json";
  for await (const chunk of chunks) {
    const [choice] = chunk.choices;
    if (choice === undefined) {
      yield chunk;
      continue;
    }
    const { finish_reason: end, delta } = choice;
    const last = end !== null;
    const { content, reasoning_content: thought, tool_calls: calls = [] } = delta;
    const text = restoredOf("content", contentForm, content ?? "", last);
    const reasoning = restoredOf("reasoning", "text", thought ?? "", last);
    const given = new Map<number, ChatCompletionToolCallDelta>();
    for (const call of calls) {
      const { arguments: piece } = call.function ?? {};
      const restored =
        piece === undefined
          ? call.function
          : {
              ...call.function,
              arguments: restoredOf(`call ${call.index}`, "json", piece, false),
            };
      given.set(call.index, restored === undefined ? call : { ...call, function: restored });
    }
    // What is held of each call's arguments.
    if (last)
      for (const key of [...pending.keys()].filter((each) => each.startsWith("call "))) {
        const index = Number(key.slice("call ".length));
        const rest = restoredOf(key, "json", "", true);
        const call = given.get(index) ?? { index };
        if (rest !== "")
          given.set(index, {
            ...call,
            function: { ...call.function, arguments: (call.function?.arguments ?? "") + rest },
          });
      }
    yield {
      ...chunk,
      choices: [
        {
          ...choice,
          logprobs: null,
          delta: {
            ...delta,
            ...((content !== undefined || text !== "") && { content: text }),
            ...((thought !== undefined || reasoning !== "") && { reasoning_content: reasoning }),
            ...(given.size > 0 && { tool_calls: [...given.values()] }),
          },
        },
      ],
    };
  }
}
