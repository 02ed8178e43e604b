import OpenAI from "openai";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import type { EncoderCandidate } from "../../../src/encoders/choice/candidate.js";
import { clientCandidate, pipelineCandidate } from "../../../src/encoders/choice/candidate.js";
import type { ChooseOptions } from "../../../src/encoders/choice/choose_encoder.js";
import { chooseEncoder } from "../../../src/encoders/choice/choose_encoder.js";
import { RequestError, Unavailable } from "../../../src/errors.js";
import type { Notes } from "../../../src/runtime/notes.js";

/** A clock that only candidates move. */
let now = 0;
const SAMPLES = {
  question: ["what is a boat?"],
  passages: Array.from({ length: 20 }, (_, index) => `passage ${index}`),
};

interface Fake extends EncoderCandidate {
  calls: number;
  error: Error | null;
  vector: (text: string) => readonly number[];
}

/** A candidate that takes ``base`` milliseconds for each call and ``each`` for each text. */
function fake(name: string, base: number, each: number, device?: string): Fake {
  const candidate: Fake = {
    name,
    device,
    calls: 0,
    error: null,
    vector: (text) => [text.length / 100, 1, 0],
    embed: (texts) => {
      candidate.calls++;
      now += base + each * texts.length;
      return candidate.error === null ? Promise.resolve(texts.map(candidate.vector)) : Promise.reject(candidate.error);
    },
  };
  return candidate;
}

function fakeNotes(): Notes & { readonly stored: Map<string, unknown> } {
  const stored = new Map<string, unknown>();
  return {
    stored,
    read: (key) => Promise.resolve(stored.get(key)),
    write: (key, value) => Promise.resolve(void stored.set(key, value)),
  };
}

beforeEach(() => {
  now = 0;
  vi.spyOn(performance, "now").mockImplementation(() => now);
});
afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

describe("chooseEncoder", () => {
  it("picks the fastest for each size, and reports what it measured", async () => {
    const near = fake("near", 1, 4);
    const far = fake("far", 30, 0.5);
    const chosen = await chooseEncoder([near, far], { samples: SAMPLES });
    expect(chosen.measured).toEqual([
      { sample: "question", texts: 1, characters: 15, milliseconds: { near: 5, far: 30.5 }, fastest: "near" },
      { sample: "passages", texts: 20, characters: 9.5, milliseconds: { near: 81, far: 40 }, fastest: "far" },
    ]);
    expect(chosen.order(["who?"])).toEqual(["near", "far"]);
    expect(chosen.order(new Array<string>(12).fill("passage 7"))).toEqual(["far", "near"]);
    const answer = await chosen.embeddings.create({ input: "who?" });
    expect([answer.candidate, answer.data.map(({ index }) => index)]).toEqual(["near", [0]]);
    expect(answer.data[0]?.embedding).toEqual([Math.fround(0.04), 1, 0]);
  });

  it.each([
    ["another model", (): number[] => [0, 0.3, 1], /cosine of its vector with that of 'near' is 0\.28\d+, .* 0\.99/],
    ["another size", (): number[] => [0, 1], /2 dimensions, and those of 'near' 3/],
    [
      "another length",
      (text: string): number[] => [text.length / 50, 2, 0],
      /have length 2\.\d+, .* 'near' 1\.\d+; scale/,
    ],
    ["no numbers", (): number[] => [NaN, 1, 0], /'wasm' returned no vector of numbers/],
  ])("refuses a candidate of %s by name", async (_, vector, reason) => {
    const wasm = fake("wasm", 0, 0);
    wasm.vector = vector;
    const notes = fakeNotes();
    const chosen = await chooseEncoder([fake("near", 1, 1), wasm], { samples: SAMPLES, notes });
    expect(chosen.refused).toEqual([{ name: "wasm", reason: expect.stringMatching(reason) as string }]);
    expect(chosen.order(["who?"])).toEqual(["near"]);
    expect(wasm.calls).toBe(1);
  });

  it("measures a hopeless candidate once, and one that fails for large batches is refused", async () => {
    const slow = fake("slow", 500, 0);
    const weak = fake("weak", 1, 0);
    const embed = weak.embed.bind(weak);
    weak.embed = (texts, signal) =>
      texts.length > 1 ? Promise.reject(new Error("out of memory")) : embed(texts, signal);
    const chosen = await chooseEncoder([fake("near", 2, 0), slow, weak], { samples: SAMPLES });
    // One call compares, and one of each sample measures.
    expect(slow.calls).toBe(3);
    expect(chosen.measured.map(({ milliseconds }) => milliseconds.slow)).toEqual([500, 500]);
    expect(chosen.refused).toEqual([{ name: "weak", reason: "out of memory" }]);
    expect(chosen.order(["who?"])).toEqual(["near", "slow"]);
  });

  it("tries the next candidate if one fails, but not for a wrong request", async () => {
    const [near, far] = [fake("near", 1, 1), fake("far", 9, 9)];
    const { embeddings } = await chooseEncoder([near, far], { samples: SAMPLES });
    near.error = new RequestError("the text is too long");
    await expect(embeddings.create({ input: ["who?"] })).rejects.toThrow("too long");
    near.error = new Error("the device was lost");
    expect((await embeddings.create({ input: ["who?"] })).candidate).toBe("far");
    near.error = null;
    expect((await embeddings.create({ input: ["who?"] })).candidate).toBe("far");
    far.error = new Error("no network");
    expect((await embeddings.create({ input: ["who?"] })).candidate).toBe("near");
    near.error = new Error("gone");
    await expect(embeddings.create({ input: ["who?"] })).rejects.toThrow(/gone|network/);
    await expect(embeddings.create({ input: "a", dimensions: 4 })).rejects.toThrow("dimensions");
    const reason = new Error("enough");
    await expect(embeddings.create({ input: "a" }, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });

  it("remembers a complete measurement for the model and its devices, and compares again", async () => {
    const manifest = { files: [{ file: "weights", sha256: "1" }] };
    vi.stubGlobal("fetch", () => Promise.resolve(new Response(JSON.stringify(manifest))));
    const notes = fakeNotes();
    const options: ChooseOptions = { samples: SAMPLES, bundle: "https://example.org/encoder", notes };
    const near = fake("near", 1, 4, "a GPU");
    const far = fake("far", 30, 0.5);
    far.error = new Error("no network");
    await chooseEncoder([near, far], options);
    expect(notes.stored.size).toBe(0);
    far.error = null;
    const first = await chooseEncoder([near, far], options);
    const calls = far.calls;
    const second = await chooseEncoder([near, far], options);
    expect([first.remembered, second.remembered, far.calls - calls]).toEqual([false, true, 1]);
    expect(second.measured).toEqual(first.measured);
    far.vector = () => [1, 0, 0];
    const third = await chooseEncoder([near, far], options);
    expect([third.remembered, third.refused[0]?.name, third.order(SAMPLES.passages)]).toEqual([true, "far", ["near"]]);
    far.vector = near.vector;
    expect((await chooseEncoder([fake("near", 1, 4, "another GPU"), far], options)).remembered).toBe(false);
    manifest.files[0] = { file: "weights", sha256: "2" };
    expect((await chooseEncoder([near, far], options)).remembered).toBe(false);
  });

  it("refuses wrong arguments, and names all if nobody answers", async () => {
    const near = fake("near", 1, 1);
    await expect(chooseEncoder([], { samples: SAMPLES })).rejects.toThrow("no candidates");
    await expect(chooseEncoder([near, near], { samples: SAMPLES })).rejects.toThrow("have the name 'near'");
    await expect(chooseEncoder([near], { samples: {} })).rejects.toThrow("samples must have texts");
    await expect(chooseEncoder([near], { samples: { empty: [""] } })).rejects.toThrow("samples.empty must have texts");
    near.error = new Error("no device");
    const nobody = await chooseEncoder([near], { samples: SAMPLES }).catch((error: unknown) => error);
    expect(nobody).toBeInstanceOf(Unavailable);
    expect(String(nobody)).toContain("'near': no device");
    const signal = AbortSignal.abort(new Error("enough"));
    await expect(chooseEncoder([fake("far", 1, 1)], { samples: SAMPLES, signal })).rejects.toThrow("enough");
  });
});

describe("candidates", () => {
  it("OpenAI's client is one, whose vectors are in the order of the texts", async () => {
    const bodies: unknown[] = [];
    const bytes = (value: number): string => Buffer.from(Float32Array.of(value).buffer).toString("base64");
    const fetch = (_: unknown, init: RequestInit = {}): Promise<Response> => {
      bodies.push(JSON.parse(init.body as string));
      const data = [1, 0].map((index) => ({ object: "embedding", index, embedding: bytes(index + 1) }));
      return Promise.resolve(Response.json({ object: "list", data, model: "m", usage: {} }));
    };
    const client = new OpenAI({ apiKey: "k", baseURL: "https://example.org/v1", fetch });
    const candidate = clientCandidate("far", client, { model: "m" });
    const { signal } = new AbortController();
    expect((await candidate.embed(["a", "b"], signal)).map((vector) => [...Array.from(vector)])).toEqual([[1], [2]]);
    expect(bodies).toEqual([{ model: "m", input: ["a", "b"], encoding_format: "base64" }]);
  });

  it("an engine is one, whose device is known", () => {
    const engine = { info: { adapter: "a GPU" }, embeddings: { create: () => Promise.resolve({ data: [] }) } };
    expect(clientCandidate("near", engine)).toMatchObject({ name: "near", device: "a GPU" });
  });

  it("a pipeline reads texts of similar lengths together, and shortens none silently", async () => {
    const batches: string[][] = [];
    const extract = Object.assign(
      (texts: string[]) => {
        batches.push(texts);
        return Promise.resolve({ tolist: () => texts.map((text) => [text.length]) });
      },
      { tokenizer: { encode: (text: string) => text.split(" "), model_max_length: 4 } },
    );
    const candidate = pipelineCandidate("wasm", extract, { batchSize: 2 });
    const { signal } = new AbortController();
    expect(await candidate.embed(["ccc", "a", "bb"], signal)).toEqual([[3], [1], [2]]);
    expect(batches).toEqual([["a", "bb"], ["ccc"]]);
    await expect(candidate.embed(["a", "1 2 3 4 5"], signal)).rejects.toThrow(
      "a text has 5 tokens, and 'wasm' reads 4",
    );
    expect(batches).toHaveLength(2);
  });
});
