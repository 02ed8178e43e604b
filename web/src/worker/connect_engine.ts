// The page's side: connectEngine returns an engine that runs in a worker or a service worker, with the methods of a
// local one.

import type { EngineApi, EngineWithSessions, SessionApi } from "../api/engine_api.js";
import { Stream } from "../api/stream.js";
import type { SoundSource, TranscribeOptions } from "../audio/index.js";
import type { AnswerEnd, GeneratedToken, TokenRequest } from "../engine/request.js";
import { refuseId } from "../api/params.js";
import { RequestError } from "../errors.js";
import type { ChatMessage, GenerateOptions, GenerationEvent } from "../generation.js";
import type { LoadOptions } from "../load_options.js";
import type { OnnxOptions } from "../onnx/options.js";
import { requireSecureContext } from "../runtime/device.js";
import type { TuningEntry } from "../runtime/manifest.js";
import type { SessionContent, SessionOptions } from "../session.js";
import { Conversation } from "../session.js";
import type { WorkerLike } from "./connection.js";
import { connectWorker } from "./connection.js";
import type { Remote } from "./remote.js";
import { withSentMedia } from "./sent_media.js";
import type { SentSound } from "./sent_sound.js";
import { sentSound } from "./sent_sound.js";

export type { WorkerLike } from "./connection.js";

/**
 * The LoadOptions that can be sent to a worker. A device and modules cannot be sent. ONNX Runtime is passed
 * as the address of its module.
 */
export interface ConnectOptions extends Omit<
  LoadOptions,
  "gpu" | "adapter" | "draft" | "encoders" | "grammar" | "images" | "onnx" | "transcriber" | "tuning"
> {
  readonly tuning?: boolean | undefined;
  readonly draft?: string | URL | false | undefined;
  readonly onnx?: (Omit<OnnxOptions, "runtime"> & { readonly runtime: string | URL }) | undefined;
}

/** A request for token ids that can be sent to a worker. A constraint and a logit processor cannot be sent. */
export type WorkerTokenRequest = Omit<TokenRequest, "constraint" | "logitProcessor" | "prefix"> & {
  readonly prefix?: number | undefined;
};

/** An engine in a worker. Its methods do the same as those of `Engine`. */
export interface WorkerEngine extends EngineWithSessions {
  generateTokens(request: WorkerTokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined>;
  exportTuning(): Promise<TuningEntry | null>;
  /** It frees the memory for all pages that share the engine. */
  unload(): Promise<boolean>;
}

const PING_MS = 5_000;

/**
 * Load the bundle in a worker whose script calls serveEngine. Addresses are relative to the page. Throws what
 * Engine.load throws, and WorkerError if the worker's script does not start. If the worker dies, calls that are under
 * way throw WorkerError, immediately if the browser has Web Locks.
 */
export async function connectEngine(
  worker: WorkerLike,
  bundle: string | URL | readonly (string | URL)[],
  options: ConnectOptions = {},
): Promise<WorkerEngine> {
  options.signal?.throwIfAborted();
  requireSecureContext();
  const { remote, hello, started, disconnect } = await connectWorker(worker, {
    script: "calls serveEngine",
    gone: "start it again and connect again",
    restarted: "connect again",
    pingMs: PING_MS,
  });
  const absolute = (address: string | URL): string =>
    new URL(address, typeof document === "undefined" ? undefined : document.baseURI).href;
  const addresses = (typeof bundle === "string" || bundle instanceof URL ? [bundle] : bundle).map(absolute);
  const { onnx, draft } = options;
  const sent = {
    ...options,
    ...(draft && { draft: draft === "heads" || draft === "ngram" ? draft : absolute(draft) }),
    ...(onnx !== undefined && { onnx: { ...onnx, runtime: absolute(onnx.runtime) } }),
  };
  try {
    await hello(options.signal);
    const info = (await remote.call(["load"], [addresses, sent])) as EngineApi["info"];
    started();
    return {
      ...remoteEngine(
        remote,
        info,
        () => {
          disconnect("The engine was destroyed");
        },
        sentSound,
      ),
      createSession: (session) => new RemoteSession(remote, session),
      generateTokens: (request, options: object = {}) => generateTokens(remote, request, options),
      exportTuning: () => remote.call(["exportTuning"], []) as Promise<TuningEntry | null>,
      // Addresses are relative to the page.
      loadAdapter: async (adapter, options) => {
        const sent = typeof adapter === "string" || adapter instanceof URL ? absolute(adapter) : adapter;
        await remote.call(["loadAdapter"], [sent, options]);
      },
      unloadAdapter: async (name) => {
        await remote.call(["unloadAdapter"], [name]);
      },
      listAdapters: () => remote.call(["listAdapters"], []) as Promise<readonly string[]>,
      unload: () => remote.call(["unload"], []) as Promise<boolean>,
    };
  } catch (error) {
    disconnect("The engine was not loaded");
    throw error;
  }
}

/**
 * The engine that the other side serves as ``engine``. ``readable`` makes sound readable for that side; without it, sound
 * is sent as it is. (An app's own JavaScript engine cannot import audio.js.)
 */
export function remoteEngine(
  remote: Remote,
  info: EngineApi["info"],
  destroy: () => void,
  readable: SentSound = (sound) => Promise.resolve(sound),
): EngineApi {
  const method =
    (...path: readonly string[]) =>
    async (...args: readonly unknown[]) => {
      for (const arg of args) requireSendable(arg, "logitProcessor");
      return remote.call(["engine", ...path], (await withSentMedia(args, readable)) as typeof args);
    };
  return {
    info,
    chat: {
      completions: { create: method("chat", "completions", "create") as EngineApi["chat"]["completions"]["create"] },
    },
    completions: { create: method("completions", "create") as EngineApi["completions"]["create"] },
    embeddings: { create: method("embeddings", "create") as EngineApi["embeddings"]["create"] },
    rerank: method("rerank") as EngineApi["rerank"],
    score: method("score") as EngineApi["score"],
    classify: method("classify") as EngineApi["classify"],
    decide: method("decide") as EngineApi["decide"],
    transcribe: (async (audio: SoundSource, options?: TranscribeOptions) => {
      const sound = await readable(audio, { signal: options?.signal, maxSeconds: options?.maxSeconds });
      const answer = await remote.call(["engine", "transcribe"], [sound, options]);
      // A stream of segments as a generator, as without a worker.
      return answer instanceof Stream ? answer[Symbol.asyncIterator]() : answer;
    }) as EngineApi["transcribe"],
    countTokens: method("countTokens") as EngineApi["countTokens"],
    async *generate(...args) {
      yield* (await method("generate")(...args)) as ReturnType<EngineApi["generate"]>;
    },
    pause: method("pause") as EngineApi["pause"],
    resume: method("resume") as EngineApi["resume"],
    destroy,
  };
}

async function* generateTokens(
  remote: Remote,
  request: WorkerTokenRequest,
  options: object,
): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
  for (const option of ["constraint", "logitProcessor"]) requireSendable(request, option);
  refuseId(options);
  return yield* (await remote.call(["generateTokens"], [request])) as ReturnType<WorkerEngine["generateTokens"]>;
}

function requireSendable(value: unknown, option: string): void {
  if ((Object(value) as Readonly<Record<string, unknown>>)[option] !== undefined)
    throw new RequestError(`${option} cannot be used with an engine in a worker`, { param: option });
}

/**
 * A session of an engine in a worker, with the methods of a session on the page. Both sides hold the messages, so that
 * `messages` is available without waiting.
 */
class RemoteSession extends Conversation implements SessionApi {
  readonly #id = crypto.randomUUID();
  readonly #remote: Remote;
  /** Rejected if the worker cannot create the session; every later call then throws the same error. */
  readonly #created: Promise<unknown>;

  /** ``original``: the session that this one is a clone of. */
  constructor(remote: Remote, options: SessionOptions = {}, original?: RemoteSession) {
    super(options.messages);
    this.#remote = remote;
    this.#created =
      original === undefined
        ? withSentMedia(options, sentSound).then((sent) => remote.call(["sessions", "create"], [this.#id, sent]))
        : remote.call(["sessions", "clone"], [original.#id, this.#id]);
    this.#created.catch(() => undefined);
  }

  clone(): SessionApi {
    this.requireIdle();
    return new RemoteSession(this.#remote, { messages: this.messages }, this);
  }

  async save(name: string): Promise<void> {
    this.requireIdle();
    await this.#call("save", name);
  }

  async restore(name: string): Promise<void> {
    this.requireIdle();
    this.replaceMessages((await this.#call("restore", name)) as readonly ChatMessage[]);
  }

  close(): void {
    this.markClosed();
    this.#call("close").catch(() => undefined);
  }

  protected async answer(
    _messages: readonly ChatMessage[],
    content: SessionContent,
    options: GenerateOptions,
  ): Promise<AsyncIterable<GenerationEvent>> {
    return (await this.#call(
      "generate",
      await withSentMedia(content, sentSound),
      options,
    )) as AsyncIterable<GenerationEvent>;
  }

  async #call(method: string, ...args: readonly unknown[]): Promise<unknown> {
    await this.#created;
    return this.#remote.call(["sessions", method], [this.#id, ...args]);
  }
}
