// decide over two sides: which side decides, and what leaves the device. tests/server_fallback/router has the same for
// Python.

import { describe, expect, test, vi } from "vitest";

import type { EngineApi } from "../../src/api/engine_api.js";
import { DeviceError } from "../../src/errors.js";
import type { HybridOptions } from "../../src/router/hybrid.js";
import { Hybrid } from "../../src/router/hybrid.js";
import type { DecideOptions } from "../../src/decide/index.js";
import { readDecisions } from "../../src/shared/questions/answers.js";
import type { Questions } from "../../src/shared/questions/questions.js";
import { FAR, FakeClock, FakeFar, MemoryLedger, near } from "./fakes.js";

const QUESTIONS: Questions = {
  spam: { type: "yes_no", question: "Is it spam?" },
  topic: { type: "choice", question: "Which topic?", choices: ["art", "sport"] },
};
const OVER = { escalation: { then: "continue" } };
const SURE = [-0.1, -3];
const UNSURE = [-0.7, -0.8];
const ONLINE = { online: true, battery: null, charging: null, thermal: null };
const CARD = {
  id: "served",
  model: "big",
  context: 256,
  tokenizer_sha256: "abc",
  vocab_size: 512,
  tools: false,
  verify: false,
};

function answerOf(
  questions: Questions,
  model: string,
  rows: Record<string, readonly number[]>,
  options: DecideOptions,
) {
  const { abstain_below, calibration } = options;
  const logprobs = Object.keys(questions).map((name) => rows[name] ?? []);
  const decisions = readDecisions(questions, logprobs, { model, abstain_below, calibration });
  const usage = { prompt_tokens: 10, total_tokens: 10 };
  return { id: "1", object: "decisions", created: 1, model, calibration_model: model, decisions, usage };
}

async function setUp(
  policy: object,
  far: "answers" | "refused" = "answers",
  rest: Partial<HybridOptions> = {},
  images = false,
) {
  const fake = new FakeFar();
  fake.about = { api_version: 1, models: [CARD] };
  const bodies: ({ questions: Questions } & DecideOptions)[] = [];
  const fetch: typeof fake.fetch = async (url, init) => {
    if (!url.endsWith("/v1/decide")) return fake.fetch(url, init);
    const body = JSON.parse(init.body as string) as (typeof bodies)[number];
    bodies.push(body);
    await Promise.resolve();
    if (far === "refused") throw new TypeError("fetch failed");
    return new Response(JSON.stringify(answerOf(body.questions, "big", { spam: SURE, topic: [-4, -0.05] }, body)));
  };
  const { engine } = near({ text: "" });
  const decide = vi.fn((_: unknown, questions: Questions, options: DecideOptions) =>
    Promise.resolve(answerOf(questions, "small", { spam: SURE, topic: UNSURE }, options)),
  );
  const info = { ...engine.info, model: "small", images };
  const nf = await Hybrid.create({
    near: { ...engine, info, decide } as unknown as EngineApi,
    far: { baseURL: FAR },
    policy: { version: 1, mode: "prefer-near", retries: 0, ...policy },
    fetch,
    device: { read: () => Promise.resolve(ONLINE) },
    ledger: new MemoryLedger(),
    clock: new FakeClock(),
    ...rest,
  });
  return { nf, bodies, decide };
}

describe("Hybrid.decide", () => {
  test("far decides only what near leaves open", async () => {
    const { nf, bodies } = await setUp(OVER);
    const { decisions, sides, route, usage } = await nf.decide("A note.", QUESTIONS, { abstain_below: 0.9 });
    expect(sides).toEqual({ spam: "near", topic: "far" });
    expect([decisions.spam?.answer, decisions.topic?.answer]).toEqual([true, "sport"]);
    expect([route.side, route.reason, usage.prompt_tokens]).toEqual(["near", "prefer", 20]);
    expect(bodies).toEqual([
      {
        model: "served",
        context: "A note.",
        questions: { topic: QUESTIONS.topic },
        abstain_below: 0.9,
        calibration: null,
      },
    ]);
  });

  test.each([
    [{}, {}],
    [{ mode: "near-only" }, {}],
    [OVER, { pin: "near" }],
    [OVER, { labels: ["private"] }],
    [{ ...OVER, private: { patterns: ["a note"] } }, {}],
    [{ ...OVER, private: { patterns: ["note\\.\\n\\nis it"] } }, {}],
    // The name of a question is sent with it.
    [{ ...OVER, private: { patterns: ["no\\nspam"] } }, {}],
    [{ ...OVER, budget: { far_requests_per_day: 0 } }, {}],
  ] as const)("nothing leaves with %j and %j", async (policy, options) => {
    const { nf, bodies } = await setUp(policy);
    const { decisions, sides } = await nf.decide("A note.", QUESTIONS, { abstain_below: 0.9, ...options });
    expect([sides, decisions.topic?.answer]).toEqual([{ spam: "near", topic: "near" }, null]);
    expect(bodies).toEqual([]);
  });

  test("far's failure leaves near's decisions, and near's gives far all questions", async () => {
    const failing = await setUp(OVER, "refused");
    const { decisions, sides } = await failing.nf.decide("A note.", QUESTIONS, { abstain_below: 0.9 });
    expect([sides.topic, decisions.spam?.answer, decisions.topic?.answer]).toEqual(["near", true, null]);
    const lost = await setUp({});
    lost.decide.mockRejectedValue(new DeviceError("lost"));
    const messages = [{ role: "user" as const, content: "A note.", labels: [] }];
    const { route, sides: all } = await lost.nf.decide(messages, QUESTIONS);
    expect([route.side, route.reason, all]).toEqual(["far", "near_failed", { spam: "far", topic: "far" }]);
    expect(lost.bodies[0]).toMatchObject({ messages: [{ role: "user", content: "A note." }] });
  });

  test("a picture stays with near, unless it may leave and far sees", async () => {
    const picture = { role: "user" as const, content: [{ type: "image_url" as const, image_url: { url: "data:," } }] };
    const far = { baseURL: FAR, vision: true };
    for (const [rules, sees, asked] of [
      [{ private: { media: "near" } }, true, false],
      [{ private: { media: "far" } }, false, false],
      [{ private: { media: "far" } }, true, true],
    ] as const) {
      const { nf, bodies } = await setUp({ ...OVER, ...rules }, "answers", sees ? { far } : {}, true);
      const { sides } = await nf.decide([picture], QUESTIONS, { abstain_below: 0.9 });
      expect([sides, bodies.length > 0]).toEqual([{ spam: "near", topic: asked ? "far" : "near" }, asked]);
    }
    const { nf } = await setUp(OVER);
    await expect(nf.decide([picture], QUESTIONS)).rejects.toThrow("reads only text");
  });

  test("a calibration goes to its own model, and media to nobody", async () => {
    const questions = { spam: { temperature: 1, bias: { Yes: 0, No: 0 } } };
    for (const [model, kept] of [
      ["small", [true, false]],
      ["big", [false, true]],
      [null, [true, true]],
    ] as const) {
      const { nf, bodies, decide } = await setUp(OVER);
      await nf.decide("A", QUESTIONS, { abstain_below: 0.99, calibration: { version: 1, model, questions } });
      expect([decide.mock.calls[0]?.[2].calibration != null, bodies[0]?.calibration != null]).toEqual(kept);
    }
    const other = { version: 1 as const, model: "another", questions };
    for (const [mode, names] of [
      ["near-only", "small"],
      ["prefer-far", "big or small"],
    ] as const) {
      const { nf } = await setUp({ mode }, "answers", mode === "near-only" ? { far: null } : {});
      const deciding = nf.decide("A", QUESTIONS, { calibration: other });
      await expect(deciding).rejects.toThrow(`was fitted to another, and this model is ${names}`);
    }
    const { nf, bodies } = await setUp(OVER);
    const topic = { temperature: 1, bias: { art: 0, sport: 0 } };
    const private_ = { temperature: 1, bias: { Yes: 0, No: 0 } };
    const calibration = { version: 1 as const, questions: { topic, "Does Ann Smith owe money?": private_ } };
    await nf.decide("A", QUESTIONS, { abstain_below: 0.9, calibration });
    expect(bodies[0]?.calibration?.questions).toEqual({ topic });
    const sound = {
      role: "user",
      content: [{ type: "input_audio", input_audio: { data: "", format: "wav" } }],
    } as const;
    await expect(nf.decide([sound], QUESTIONS)).rejects.toThrow("texts and pictures only");
    const vllm = await setUp({ mode: "far-only" }, "answers", { far: { baseURL: FAR, dialect: "vllm", model: "big" } });
    await expect(vllm.nf.decide("A", QUESTIONS)).rejects.toThrow("no /v1/decide");
  });
});
