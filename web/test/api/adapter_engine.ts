// The engine for tests of the adapters. It returns fixed answers, calls tools in Hermes' format, and records the
// grammars of the requests.

import type { EngineApi } from "../../src/api/engine_api.js";
import type { Model } from "../../src/api/model.js";
import type { GrammarSource } from "../../src/grammar/source.js";
import { ToolCallStream } from "../../src/text/tool_call_stream.js";
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

export function adapterEngineOver(source: FakeSource): AdapterEngine {
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
    embeddings: {
      source: { embed: (texts) => Promise.resolve(texts.map((ids) => Float32Array.of(ids.length, 0, 0, 1))) },
      size: 4,
      normalize: false,
    },
  });
  return { engine: fakeEngine(model), source, grammars, prompt: (index) => promptText(model, source.requests[index]) };
}
