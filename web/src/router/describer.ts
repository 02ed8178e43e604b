// Describes the media of requests on this device, for policies that let only such texts leave. hybrid.js loads this file
// with the first request that needs it.

import type { SoundSource } from "../audio/index.js";
import { NearfarError, RequestError, Unavailable, messageOf } from "../errors.js";
import { unlessAborted } from "../runtime/abort.js";
import { anySignal } from "../api/stream.js";
import type { Description } from "../api/types.js";
import { choose, chooseDescribed } from "../shared/decision/decide.js";
import { describedText, describing, undescribed } from "../shared/decision/description.js";
import { BOUNDS, requireFew } from "../shared/attachments.js";
import type { OpaqueKind, OpaqueMedia } from "../shared/decision/media.js";
import { mediaPath } from "../shared/decision/media.js";
import type { Situation } from "../shared/decision/situation.js";
import type { HybridRequest } from "./request.js";
import { withMessages } from "./request.js";
import type { Routing, SituatedChoice } from "./routing.js";
import { withTimeout } from "./sides/clock.js";

/** A model on this device that writes down what is said: an `Engine` with Whisper is one. The sound may be private. */
export interface SoundTranscriber {
  transcribe(source: SoundSource, options?: { readonly signal?: AbortSignal }): PromiseLike<{ readonly text: string }>;
}

/** The request that is answered: with texts in the place of its media, or as it was. */
export interface DescribedRequest {
  readonly request: HybridRequest;
  readonly choice: SituatedChoice;
  readonly descriptions: readonly Description[];
}

type Part = Readonly<Record<string, unknown>>;

/** Texts that are retained, so that a conversation's next turn does not make them again. */
const MOST = 256;

export class Describer {
  readonly #texts = new Map<string, string>();

  constructor(
    private readonly routing: Routing,
    private readonly transcriber: SoundTranscriber | null,
  ) {}

  /**
   * Decides a request whose choice ``first`` needs descriptions. If near cannot make them, it answers itself, if
   * `fallback.near_continues` allows it. Throws RequestError or Unavailable (``details.code``: undescribed, or that of a
   * refusal), or the signal's reason.
   */
  async decide(
    request: HybridRequest,
    first: SituatedChoice,
    situate: (request: HybridRequest) => Promise<Situation>,
    isPrivate: (request: HybridRequest, situation: Situation) => Promise<boolean>,
    signal: AbortSignal,
  ): Promise<DescribedRequest> {
    const { policy } = this.routing.wiring;
    let descriptions: readonly Description[];
    try {
      descriptions = await this.#describe(request, first.describes, signal);
    } catch (error) {
      signal.throwIfAborted();
      const { near } = first.situation;
      const situation = { ...first.situation, near: { ...near, describes: [] } };
      const choice = choose(policy, situation, await isPrivate(request, situation));
      if (!policy.fallback.near_continues || choice.decision.side === null) throw error;
      return { request, choice: { ...choice, situation }, descriptions: [] };
    }
    const texts = new Map(descriptions.map(({ path, text }) => [path, text]));
    const messages = request.params.messages.map((message, index) => ({
      ...message,
      ...(Array.isArray(message.content) && {
        content: message.content.map((part: unknown, at) => {
          const text = texts.get(mediaPath({ message: index, part: at }));
          return text === undefined ? part : { type: "text", text };
        }) as typeof message.content,
      }),
    }));
    const described = withMessages(request, messages);
    const situation = await situate(described);
    const staysNear = await isPrivate(described, situation);
    const { reads_media: readsMedia, ...choice } = chooseDescribed(policy, first.situation, situation, staysNear);
    if (choice.decision.side === null) throw this.routing.refusal(choice.decision, situation);
    return readsMedia
      ? { request, choice: { ...choice, situation: first.situation }, descriptions: [] }
      : { request: described, choice: { ...choice, situation }, descriptions };
  }

  /** Throws RequestError or Unavailable with the code "undescribed", or the signal's reason. */
  async #describe(
    { params }: HybridRequest,
    described: readonly OpaqueMedia[],
    signal: AbortSignal,
  ): Promise<readonly Description[]> {
    const found: Description[] = [];
    requireFew("sounds", described.filter(({ kind }) => kind === "sound").length);
    for (const media of described) {
      const { kind, message, part: at } = media;
      const { content } = params.messages[message ?? -1] ?? {};
      const part = ((content ?? []) as unknown as readonly Part[])[at ?? -1] ?? {};
      const key = await keyOf(part);
      try {
        const text = this.#texts.get(key ?? "") ?? (await this.#text(media, part, signal));
        this.#retain(key, text);
        found.push({ path: mediaPath(media), kind, text: describedText(kind, text) });
      } catch (error) {
        signal.throwIfAborted();
        throw undescribed(media, messageOf(error), error instanceof RequestError);
      }
    }
    return found;
  }

  async #text({ kind }: OpaqueMedia, part: Part, signal: AbortSignal): Promise<string> {
    const { clock, policy } = this.routing.wiring;
    const { near_first_token_ms, between_tokens_ms } = policy.timeouts;
    return withTimeout(clock, near_first_token_ms + between_tokens_ms, (late) => {
      const until = anySignal(signal, late);
      return unlessAborted(
        kind === "sound" ? this.#transcript(part, until) : this.#description(kind, part, until),
        until,
      );
    });
  }

  async #transcript({ audio, input_audio: sound }: Part, signal: AbortSignal): Promise<string> {
    const { data } = Object(sound) as { readonly data?: unknown };
    if (this.transcriber === null || (audio === undefined && typeof data !== "string"))
      throw new RequestError(
        "there is no transcriber, or no sound; set transcriber, and send {data, format} in base64",
      );
    const source =
      audio === undefined ? Uint8Array.from(atob(String(data)), (character) => character.charCodeAt(0)) : audio;
    const bytes = source instanceof Blob ? source.size : ((source as { readonly byteLength?: number }).byteLength ?? 0);
    if (bytes > BOUNDS.sound_bytes)
      throw new RequestError(`it has ${bytes} bytes; at most ${BOUNDS.sound_bytes} are read; send parts of it`);
    return (await this.transcriber.transcribe(source as SoundSource, { signal })).text;
  }

  async #description(kind: OpaqueKind, part: Part, signal: AbortSignal): Promise<string> {
    const { near } = this.routing.wiring;
    const { circuit } = this.routing.records.near;
    const { prompt, max_tokens } = describing(kind);
    const content = [part, { type: "text", text: prompt }];
    const params = {
      messages: [{ role: "user" as const, content: content as never }],
      temperature: 0,
      max_tokens,
      reasoning_effort: "none" as const,
    };
    circuit.begin();
    try {
      let text = "";
      for await (const { choices } of near.answer({ params, from: null, logprobs: null, signal }))
        text += choices[0]?.delta.content ?? "";
      if (text.trim() === "") throw new Unavailable("its model wrote no description");
      circuit.succeeded();
      return text;
    } catch (error) {
      if (error instanceof NearfarError && !(error instanceof RequestError)) circuit.failed();
      throw error;
    } finally {
      circuit.ended();
    }
  }

  #retain(key: string | null, text: string): void {
    if (key === null) return;
    this.#texts.delete(key);
    this.#texts.set(key, text);
    const [oldest] = this.#texts.keys();
    if (this.#texts.size > MOST && oldest !== undefined) this.#texts.delete(oldest);
  }
}

/**
 * The name of a part that contains its bytes; null for an address, whose picture may change, and for the page's objects
 * but files.
 */
async function keyOf(part: Part): Promise<string | null> {
  const { type, frames } = part;
  let named: BlobPart;
  if (type === "image" || type === "audio" || (type === "video" && frames === undefined)) {
    const own = part[type];
    if (!(own instanceof Blob)) return null;
    named = own;
  } else {
    const urls = [part.image_url, part.video_url].map((address) => (Object(address) as { readonly url?: unknown }).url);
    const addresses = [...urls, ...(Array.isArray(frames) ? (frames as unknown[]) : [])];
    if (!addresses.every((url) => url === undefined || (typeof url === "string" && /^data:/i.test(url)))) return null;
    named = JSON.stringify(part);
  }
  const bytes = await new Blob([String(type), named]).arrayBuffer();
  return String.fromCharCode(...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
}
