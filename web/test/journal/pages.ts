// Pages that come and go over one disk: each has an engine of its own, over the fake runner, with the tokenizer, the
// grammars and the API of a real one. A page that crashes writes nothing more, and the browser releases its locks.

import { ChatCompletions } from "../../src/api/chat_completions.js";
import { Completions } from "../../src/api/completions.js";
import { encodeChat } from "../../src/api/chat_prompt.js";
import type { EngineApi } from "../../src/api/engine_api.js";
import type { Model } from "../../src/api/model.js";
import type { AnswerEnd, GeneratedToken, TokenRequest } from "../../src/engine/request.js";
import { TokenEngine } from "../../src/engine/token_engine.js";
import { generationEvents, tokenRequest } from "../../src/generation.js";
import { Grammars } from "../../src/grammar/grammars.js";
import { grammar } from "../../src/grammar/index.js";
import { JournalStore } from "../../src/journal/journal_store.js";
import type { JournalOptions } from "../../src/journal/journals.js";
import { ToolCallStream } from "../../src/text/tool_call_stream.js";
import { toolGrammar } from "../../src/text/tools.js";
import { fakeEngine, modelOf } from "../api/fake_model.js";
import { onePool } from "../engine/engine_set_up.js";
import { FakeRunner } from "../engine/fake_runner.js";
import type { MemoryDisk } from "../store/memory_folder.js";
import { memoryLocks } from "../store/memory_folder.js";
import { byteLevelTokenizer } from "../text/tokenizers.js";
import { formatOf } from "../text/tool_formats.js";

export const VOCAB = 258;
const LIMITS = {
  tokens: 64,
  sequences: 4,
  groups: onePool(500),
  pageSize: 4,
  context: 320,
  vocabSize: VOCAB,
};
const GRAMMARS = new Grammars(byteLevelTokenizer(), { vocab_size: VOCAB, eos_token_ids: [256] }, grammar);

export type PageEngine = EngineApi & {
  generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined>;
};

/** As on a device, a step needs a turn of the event loop. */
class SlowRunner extends FakeRunner {
  override async submit(...args: Parameters<FakeRunner["submit"]>): ReturnType<FakeRunner["submit"]> {
    await new Promise((resolve) => setTimeout(resolve));
    return super.submit(...args);
  }
}

/** An engine for long answers, whose pages see each of their states. */
export const slowEngine = (): PageEngine => pageEngine(2000, "fake", SlowRunner).engine;

/** An engine, and the runner whose steps show what it computes. ``context``: of its model. */
export function pageEngine(
  context = LIMITS.context,
  name = "fake",
  Runner = FakeRunner,
): { engine: PageEngine; runner: FakeRunner } {
  const runner = new Runner({ ...LIMITS, context });
  const tokens = new TokenEngine(runner, { vocabSize: VOCAB, endTokenIds: [256] });
  const format = formatOf("hermes");
  const model: Model = modelOf(tokens, {
    name,
    context,
    grammar: GRAMMARS,
    tools: {
      parser: (tools) => new ToolCallStream(format, tools),
      grammar: (tools, choice) => toolGrammar(format, tools, choice as never),
    },
  });
  const engine: PageEngine = {
    ...fakeEngine(model, context),
    info: { model: name, quantization: "q4", tokenizerSha256: "abc", context } as EngineApi["info"],
    chat: { completions: new ChatCompletions(model) },
    completions: new Completions(model),
    async *generate(prompt, options = {}) {
      const messages = typeof prompt === "string" ? [{ role: "user" as const, content: prompt }] : prompt;
      const { ids } = await encodeChat(model, messages as never);
      yield* generationEvents(tokens.generateTokens(tokenRequest({ ids }, options)), model.text);
    },
    generateTokens: (request) => tokens.generateTokens(request),
  };
  return { engine, runner };
}

/** A page's storage. After `crash`, its writes never happen. */
export class PageStore extends JournalStore {
  isCrashed = false;

  /** Some crashes leave a file that the browser has created and not written. */
  crash(disk: MemoryDisk, torn = false): void {
    this.isCrashed = true;
    if (!torn) return;
    const parts = [...disk.files.keys()].filter((path) => /\/0\.\d+$/.test(path));
    const last = parts.at(-1);
    if (last !== undefined)
      disk.files.set(
        last.replace(/\d+$/, (part) => String(Number(part) + 1)),
        new Uint8Array(),
      );
  }

  override write(...args: Parameters<JournalStore["write"]>): ReturnType<JournalStore["write"]> {
    return this.isCrashed ? new Promise(() => undefined) : super.write(...args);
  }

  override begin(...args: Parameters<JournalStore["begin"]>): ReturnType<JournalStore["begin"]> {
    return this.isCrashed ? new Promise(() => undefined) : super.begin(...args);
  }
}

/** The storage of a new page: the locks of a page that has gone are free. */
export function pageStore(disk: MemoryDisk, locks: LockManager = memoryLocks()): PageStore {
  return new PageStore(disk.root, locks);
}

/** Options that write a part after each token. */
export function eachToken(store: JournalStore): JournalOptions {
  return { store, flushTokens: 1, onError: raise };
}

export function raise(error: unknown): never {
  throw error;
}
