// The engine for tests of the adapters. It returns fixed answers, calls tools in Hermes' format, and records the
// grammars of the requests.

import type { EngineApi } from "../../src/api/engine_api.js";
import type { Model } from "../../src/api/model.js";
import type { GrammarSource } from "../../src/shared/grammar/source.js";
import { encoderOf } from "../../src/encoders/index.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { ToolCallStream } from "../../src/text/tool_call_stream.js";
import { fakeEncoder } from "../encoders/fake_encoder.js";
import { templateEntry } from "../text/template_trees.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";
import { formatOf } from "../text/tool_formats.js";
import { FakeSource, fakeEngine, modelOf, promptText } from "./fake_model.js";

export interface AdapterEngine {
  readonly engine: EngineApi;
  readonly source: FakeSource;
  readonly grammars: readonly GrammarSource[];
  /** The prompt of a request as text. */
  readonly prompt: (index: number) => string;
}

/** A call as the model writes it. */
export function hermesCall(name: string, input: object): string {
  return `<tool_call>\n${JSON.stringify({ name, arguments: input })}\n</tool_call>`;
}

export function adapterEngine(...answers: readonly string[]): AdapterEngine {
  return adapterEngineOver(new FakeSource(answers));
}

const SEEING = templateEntry(
  "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{% if p.type != 'text' %}((?)){% else %}{{ p.text }}" +
    "{% endif %}{% endfor %}{% endfor %}[assistant]",
);

export interface SeeingEngine extends AdapterEngine {
  readonly sources: unknown[];
  readonly kinds: string[];
}

/**
 * An engine whose model sees: its prompts have the index of each picture or video, and ``sources`` what the messages
 * gave.
 */
export function seeingEngine(...answers: readonly string[]): SeeingEngine {
  const [sources, kinds]: [unknown[], string[]] = [[], []];
  const readPictures: Model["readPictures"] = (pictures) => {
    sources.push(...pictures.map(({ source }) => source));
    kinds.push(...pictures.map(({ kind }) => kind));
    let index = 0;
    const write = (marked: string): string => marked.replaceAll("((?))", () => `((${index++}))`);
    return Promise.resolve({ write, place: () => Promise.resolve([]) });
  };
  const text = new Tokenizer(byteLevelTokenizer(), { ...NO_TOKENS, ...SEEING });
  return { ...adapterEngineOver(new FakeSource(answers), { readPictures, text }), sources, kinds };
}

/** An engine with a transcriber: ``heard`` has the bytes of each recording. */
export function hearingEngine(
  ...answers: readonly string[]
): AdapterEngine & { readonly heard: (readonly number[])[] } {
  const heard: (readonly number[])[] = [];
  const transcribe = (async (sound: Blob | Uint8Array<ArrayBuffer>) => {
    heard.push([...new Uint8Array(await new Blob([sound]).arrayBuffer())]);
    return { task: "transcribe", language: "en", duration: 1, text: `take ${heard.length}`, segments: [] };
  }) as never;
  return { ...adapterEngineOver(new FakeSource(answers), { transcribe }), heard };
}

/** What prompts have in the places of recordings, and of files. */
export const take = (number: number): string => `[Transcript of a recording]\ntake ${number}\n[End of transcript]\n`;
export const fileText = (name: string, text: string): string => `[File: ${name}]\n${text}\n[End of file: ${name}]\n`;

export function adapterEngineOver(source: FakeSource, rest: Partial<Model> = {}): AdapterEngine {
  const grammars: GrammarSource[] = [];
  const constraint = { mask: () => null, accept: () => undefined, finished: false, dispose: () => undefined };
  const model: Model = modelOf(source, {
    tools: { parser: () => new ToolCallStream(formatOf("hermes")), grammar: () => null },
    grammar: {
      constraint: (spec) => {
        if (spec) grammars.push(spec);
        return Promise.resolve(constraint as never);
      },
    },
    ...rest,
  });
  const { model: vectors } = fakeEncoder({}, ({ ids }) => [ids.length, 0, 0, 1]);
  return {
    engine: fakeEngine(model, 1000, encoderOf(vectors)),
    source,
    grammars,
    prompt: (index) => promptText(model, source.requests[index]),
  };
}
