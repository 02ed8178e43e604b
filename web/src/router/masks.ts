// What far receives in place of chats with private texts: finds these texts, hides them, and restores them in far's
// answers. hybrid.js loads this file if the policy has `private.masks`.

import type { ClassifyParams } from "../api/encoder_types.js";
import type { ClassifyResponse, MaskedText } from "../api/replies.js";
import type {
  ChatCompletionAnnotation,
  ChatCompletionChunk,
  ChatCompletionToolCallDelta,
  RequestOptions,
} from "../api/types.js";
import { anySignal } from "../api/stream.js";
import { NearfarError, RequestError, Unavailable } from "../errors.js";
import { unlessAborted } from "../runtime/abort.js";
import type { Finds } from "../shared/decision/contradictions.js";
import { checkMasks } from "../shared/decision/contradictions.js";
import type { Policy } from "../shared/decision/policy.js";
import type { MaskRules } from "../shared/decision/policy_schema.js";
import type { PrivateCheck } from "../shared/decision/privacy.js";
import type { Situation } from "../shared/decision/situation.js";
import type { Form } from "../shared/masks/addresses.js";
import { entitiesOf, searchedWindows } from "../shared/masks/entities.js";
import type { Entity } from "../shared/masks/mask_request.js";
import { hasMasked, maskMessages, maskText, maskableTexts } from "../shared/masks/mask_request.js";
import type { Mask } from "../shared/masks/placeholders.js";
import type { Pending } from "../shared/masks/restorer.js";
import { restore, restoredCitations } from "../shared/masks/restorer.js";
import { leavingTexts, strictRequest, unmaskedTexts } from "../shared/masks/strict.js";
import { privateText } from "../shared/router/failures.js";
import type { HybridRequest } from "./request.js";
import type { AnswerSoFar, PlainParams, Side, SideRequest } from "./sides/sides.js";
import { textOf } from "./sides/sides.js";

/** What labels spans of texts on this device. A `Finder` is one, of an engine with a classifier of tokens. */
export interface EntityFinder extends Finds {
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
/** Those that the finder reads at once. */
const MOST_WINDOWS = 64;
/** The milliseconds that the search of a request's texts may take. */
const SEARCH_MS = 20_000;
const MOST_CONFIRMED = 4096;
/** In a text of these formats, a placeholder may be impossible. */
const STRICT_FORMATS: readonly unknown[] = ["regex", "grammar"];

/** A request with other messages. */
type WithMessages = (request: HybridRequest, messages: PlainParams["messages"]) => HybridRequest;

export class Masker {
  readonly #rules: MaskRules;
  readonly #entities = new Map<string, readonly Entity[]>();
  /** The last texts that the application has agreed to. */
  readonly #confirmed = new Set<string>();
  /** What far receives in place of each request; null if it must stay on the device. */
  readonly #masked = new WeakMap<HybridRequest, MaskedRequest | null>();
  /** The path of what keeps a request on the device under strict masks. */
  readonly #refused = new WeakMap<HybridRequest, string>();

  /** Throws RequestError with the code "bad_policy" for options that do not fit the policy. */
  constructor(
    private readonly policy: Policy,
    private readonly check: PrivateCheck,
    private readonly options: MaskOptions,
    private readonly withMessages: WithMessages,
  ) {
    const { masks } = policy.private;
    if (masks === null) throw new Error("the policy has no masks");
    this.#rules = masks;
    // Its labels have the model's names, so a policy's kinds would find nothing.
    if (options.finder !== null && "info" in options.finder)
      throw new RequestError("finder is an engine; make a finder of it: new Finder(engine, labels) of finder.js", {
        param: "finder",
      });
    checkMasks(policy, options.finder, options.confirm !== null);
  }

  get asks(): boolean {
    return this.#rules.then === "ask";
  }

  get strict(): boolean {
    return this.#rules.strict;
  }

  /** The request for far, or null if it must stay on the device; the same each time. Throws the signal's reason. */
  async mask(request: HybridRequest, signal: AbortSignal): Promise<MaskedRequest | null> {
    if (!this.#masked.has(request)) this.#masked.set(request, await this.#mask(request, signal));
    return this.of(request);
  }

  /** Of a request that was masked before. */
  of(request: HybridRequest): MaskedRequest | null {
    return this.#masked.get(request) ?? null;
  }

  /** The error of a request that nobody may or can answer, which names what keeps it on the device. */
  explained(request: HybridRequest, error: unknown): unknown {
    const param = this.#refused.get(request);
    if (param === undefined || !(error instanceof NearfarError)) return error;
    const advice = "remove it, or let near answer: the policy's private.masks are strict";
    const message = `${param}: may not leave; ${advice} (${error.message})`;
    const details = { ...error.details, param };
    return error instanceof RequestError ? new RequestError(message, details) : new Unavailable(message, details);
  }

  async #mask(request: HybridRequest, signal: AbortSignal): Promise<MaskedRequest | null> {
    const { params, properties } = request;
    const isPrivate = (of: Pick<Situation, "messages" | "texts">): boolean =>
      this.check.isPrivate({ labels: properties.labels, ...of } as Situation);
    const listed = this.strict ? strictRequest(params) : { params, refused: null };
    if (listed.refused !== null) return this.#refuse(request, listed.refused);
    const allowed = listed.params as PlainParams;
    const unmasked = this.strict ? unmaskedTexts(allowed) : [];
    const texts = maskableTexts(allowed.messages);
    const found = await this.#find([...texts, ...unmasked.map(({ text }) => text)], signal);
    if (found === null) return null;
    const entities = texts.map((text) => [text, found.get(text) ?? []] as const);
    const { ignore_case: ignoreCase } = this.policy.private;
    const masked = maskMessages(this.#rules, ignoreCase, allowed.messages, entities);
    const hidden = unmasked.find(({ text }) => this.#hasPrivate(text, masked?.masks ?? [], found.get(text) ?? []));
    if (hidden !== undefined) return this.#refuse(request, hidden.path);
    if (masked === null && !this.strict) return isPrivate(properties) ? null : new MaskedRequest(this, params, [], []);
    const format = allowed.response_format?.type;
    const isHard = this.#rules.then === "near" || allowed.logprobs === true || STRICT_FORMATS.includes(format);
    if (masked !== null && isHard) return null;
    const messages = (masked?.messages ?? allowed.messages) as PlainParams["messages"];
    const { params: sent, properties: now } = this.withMessages({ ...request, params: allowed }, messages);
    const parts = now.messages.map(({ content, parts: own = [] }) => (own.length > 0 ? own : [content]));
    const groups = [...parts, parts.flat(), ...now.texts.map((text) => (typeof text === "string" ? [text] : text))];
    const masks = masked?.masks ?? [];
    if (isPrivate(now) || hasMasked(masks, groups)) return null;
    return new MaskedRequest(this, sent, masks, this.strict ? leavingTexts(sent) : (masked?.texts ?? []));
  }

  #refuse(request: HybridRequest, path: string): null {
    this.#refused.set(request, path);
    return null;
  }

  /** Whether a text that is not masked matches, has one of its entities, or has what is masked elsewhere. */
  #hasPrivate(text: string, masks: readonly Mask[], entities: readonly Entity[]): boolean {
    const labels = this.#rules.entities.map(({ label }) => label);
    if (entities.some(({ label }) => labels.includes(label))) return true;
    return this.check.matches(text) || hasMasked(masks, [[text]]);
  }

  /** An answer so far with the masks of its request; null if its search fails. */
  async continued(
    { text, reasoning = "" }: Pick<AnswerSoFar, "text" | "reasoning">,
    masks: readonly Mask[],
    signal: AbortSignal,
  ): Promise<MaskedAnswer | null> {
    const hidden = { text, reasoning };
    const shown: MaskedText[] = [];
    let all = masks;
    for (const name of ["reasoning", "text"] as const) {
      const own = hidden[name];
      const found = await this.#find([own], signal);
      if (found === null) return null;
      const masked = maskText(this.#rules, this.policy.private.ignore_case, own, found.get(own) ?? [], all);
      const isShown = masked.text !== own || (this.strict && own !== "");
      if (isShown) shown.push({ path: `answer.${name}`, text: masked.text });
      hidden[name] = masked.text;
      all = masked.masks;
    }
    return { ...hidden, masks: all, shown, isNew: all.length > masks.length };
  }

  /** Whether far may receive it. */
  mayContinue(answer: Pick<MaskedAnswer, "isNew" | "shown">): boolean {
    const { then } = this.#rules;
    return then === "mask" || (then === "ask" ? this.#isConfirmed(this.#asked(answer)) : !answer.isNew);
  }

  /** The texts of an answer so far that nobody has agreed to with its request. */
  #asked({ isNew, shown }: Pick<MaskedAnswer, "isNew" | "shown">): readonly MaskedText[] {
    return isNew || this.strict ? shown : [];
  }

  #isConfirmed(texts: readonly MaskedText[]): boolean {
    return texts.every(({ text }) => this.#confirmed.has(text));
  }

  /**
   * Whether the application agrees that far receives the texts of a masked request, and of what an earlier page has
   * ``begun`` of its answer; each of them is asked about once. If not, the request stays on the device.
   */
  async mayLeave(
    request: HybridRequest,
    begun: Pick<AnswerSoFar, "text" | "reasoning"> | null,
    signal: AbortSignal,
  ): Promise<boolean> {
    const masked = this.of(request);
    if (!this.asks || masked === null) return true;
    const answer = begun === null ? null : await this.continued(begun, masked.masks, signal);
    const texts = [...masked.texts, ...(answer === null ? [] : this.#asked(answer))];
    if (this.#isConfirmed(texts)) return true;
    const agreed = this.options.confirm !== null && (await unlessAborted(this.#confirm(texts), signal));
    if (agreed) for (const { text } of texts) this.#confirmed.add(text);
    else this.#masked.set(request, null);
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

  /** The entities of each text; null if the texts are too long, or the model fails or takes too long. */
  async #find(texts: readonly string[], signal: AbortSignal): Promise<ReadonlyMap<string, readonly Entity[]> | null> {
    const { finder } = this.options;
    const found = new Map(texts.map((text) => [text, [...(this.#entities.get(text) ?? [])]]));
    if (this.#rules.entities.length === 0 || finder === null) return found;
    const unknown = [...found.keys()].filter((text) => !this.#entities.has(text));
    const windows = searchedWindows(unknown);
    if (windows === null) return null;
    const limit = AbortSignal.timeout(SEARCH_MS);
    const either = anySignal(signal, limit);
    try {
      for (let start = 0; start < windows.length; start += MOST_WINDOWS) {
        const part = windows.slice(start, start + MOST_WINDOWS);
        const input = part.map(({ text }) => text);
        const finding = Promise.resolve(finder.classify({ input }, { signal: either }));
        const { data } = await unlessAborted(finding, either);
        for (const [index, window] of part.entries()) {
          const labelled = data[index];
          if (labelled?.spans === undefined) throw noSpans();
          found.get(unknown[window.of] ?? "")?.push(...entitiesOf(window, labelled.spans));
        }
      }
    } catch (error) {
      signal.throwIfAborted();
      if (limit.aborted || error instanceof NearfarError) return null;
      throw error;
    }
    for (const text of unknown) this.#entities.set(text, found.get(text) ?? []);
    for (const oldest of [...this.#entities.keys()].slice(0, -MOST)) this.#entities.delete(oldest);
    return found;
  }
}

/**
 * What was written of an answer, with all masks. ``shown``: its texts that differ, or under strict masks all. ``isNew``: it
 * has private texts that its request has not.
 */
interface MaskedAnswer extends Required<Pick<AnswerSoFar, "text" | "reasoning">> {
  readonly masks: readonly Mask[];
  readonly shown: readonly MaskedText[];
  readonly isNew: boolean;
}

/** A chat without its private texts; without the rest if nothing of it is masked. */
export interface LeavingChat {
  readonly params: Pick<PlainParams, "messages">;
  /** Whether the policy wants the application to agree to what leaves. */
  readonly asks?: boolean;
  /** A text that came back, with the private texts. */
  readonly restored?: (text: string) => string;
}

/** A chat as far receives it. */
export class MaskedRequest implements LeavingChat {
  readonly #left: MaskedText[] = [];

  /** ``texts`` are those that differ from the request's own, or under strict masks all. */
  constructor(
    private readonly masker: Masker,
    readonly params: PlainParams,
    readonly masks: readonly Mask[],
    readonly texts: readonly MaskedText[],
  ) {}

  get asks(): boolean {
    return this.texts.length > 0 && this.masker.asks;
  }

  restored(text: string): string {
    return restore(this.masks, "text", null, text, true)[0];
  }

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
      const masked = await this.masker.continued(from, masks, signal);
      if (masked === null || !this.masker.mayContinue(masked) || this.masker.matches(this.params, masked))
        throw privateText();
      ({ masks } = masked);
      const { text, reasoning } = masked;
      from = { ...from, text, reasoning, tokenIds: masks.length === 0 && !this.masker.strict ? from.tokenIds : null };
      this.leaves(masked.shown);
    } else this.leaves();
    const params = { ...request.params, messages };
    const listed = this.masker.strict ? (strictRequest(params).params as typeof params) : params;
    const answer = far.answer({ ...request, params: listed, from });
    yield* masks.length === 0 ? answer : restoredChunks(masks, this.params, answer);
  }
}

function noSpans(): RequestError {
  return new RequestError("the finder finds no spans in a text; use a classifier of tokens", { param: "finder" });
}

/**
 * The chunks of an answer with their private texts, which come once their placeholders are complete. Citations, whose
 * offsets depend on all of the text, come with the end.
 */
async function* restoredChunks(
  masks: readonly Mask[],
  { response_format: format }: PlainParams,
  chunks: AsyncIterable<ChatCompletionChunk>,
): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  const pending = new Map<string, Pending>();
  const restoredOf = (key: string, form: Form, piece: string, last: boolean): string => {
    const [text, after] = restore(masks, form, pending.get(key) ?? null, piece, last);
    pending.set(key, after);
    return text;
  };
  const contentForm: Form = format === undefined || format.type === "text" ? "text" : "json";
  const citations: ChatCompletionAnnotation[] = [];
  for await (const chunk of chunks) {
    const [choice] = chunk.choices;
    if (choice === undefined) {
      yield chunk;
      continue;
    }
    const { finish_reason: end, delta } = choice;
    const last = end !== null;
    const { role, tool_calls: calls = [], annotations, ...rest } = delta;
    const texts: Record<string, unknown> = { ...rest };
    for (const key of new Set([...Object.keys(rest), ...(last ? [...pending.keys()] : [])])) {
      const piece = texts[key] ?? "";
      if (key.startsWith("call ") || typeof piece !== "string") continue;
      const text = restoredOf(key, key === "content" ? contentForm : "text", piece, last);
      if (key in rest || text !== "") texts[key] = text;
    }
    if (Array.isArray(annotations)) citations.push(...annotations);
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
        const held = restoredOf(key, "json", "", true);
        const call = given.get(index) ?? { index };
        if (held !== "")
          given.set(index, {
            ...call,
            function: { ...call.function, arguments: (call.function?.arguments ?? "") + held },
          });
      }
    const cited = last ? restoredCitations(masks, pending.get("content") ?? null, citations) : [];
    yield {
      ...chunk,
      choices: [
        {
          ...choice,
          logprobs: null,
          delta: {
            ...(role !== undefined && { role }),
            ...texts,
            ...(given.size > 0 && { tool_calls: [...given.values()] }),
            ...(last && citations.length > 0 && { annotations: cited as typeof citations }),
          },
        },
      ],
    };
  }
}
