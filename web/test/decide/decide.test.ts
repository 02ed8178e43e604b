// Typed questions: the prompts and answers that the engine scores, and what is read from the scores. Python's tests
// compare the same with transformers (tests/server_fallback/executors/test_decisions.py).

import { describe, expect, test } from "vitest";

import vectors from "../../../tests/conformance/decision_calibration.json" with { type: "json" };
import { encodeChat } from "../../src/api/chat_prompt.js";
import type { Model } from "../../src/api/model.js";
import type { DecideOptions, DecisionCalibration, Questions } from "../../src/decide/index.js";
import { decide, fitCalibration } from "../../src/decide/index.js";
import type { AnswerEnd, GeneratedToken, TokenRequest, TokenSource } from "../../src/engine/request.js";
import { RequestError } from "../../src/errors.js";
import { Tokenizer } from "../../src/text/tokenizer.js";
import { modelOf } from "../api/fake_model.js";
import { templateEntry } from "../text/template_trees.js";
import { NO_TOKENS, byteLevelTokenizer } from "../text/tokenizers.js";

const QUESTIONS: Questions = {
  topic: { type: "choice", question: "Which?", choices: ["art", "article", "7"] },
  urgent: { type: "yes_no", question: "Urgent?" },
  stars: { type: "score", question: "How good?", minimum: 1, maximum: 3 },
  tone: { type: "score", question: "Which tone?", scale: ["rude", "plain", "kind"] },
  about: { type: "labels", question: "Is it about {}?", labels: ["cats", "dogs"] },
};
// A semicolon ends a turn.
const TEMPLATE =
  "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
const END = 59;

/** How likely a token is after others: any function of them. */
function logprobAfter(before: readonly number[], id: number): number {
  const hash = before.reduce((sum, each, index) => (sum * 31 + each * (index + 7)) % 9973, id);
  return -0.1 - (hash % 40) / 40;
}

class ScoringSource implements TokenSource {
  readonly requests: TokenRequest[] = [];
  readonly waves: number[] = [];
  #running = 0;

  async *generateTokens(request: TokenRequest): AsyncGenerator<GeneratedToken, AnswerEnd, undefined> {
    const { promptIds, promptLogprobs = 0, signal } = request;
    this.requests.push(request);
    this.#running++;
    await new Promise((resolve) => setTimeout(resolve));
    signal?.throwIfAborted();
    this.waves.push(this.#running);
    const first = promptIds.length - promptLogprobs;
    request.onPromptLogprobs?.(
      promptIds.slice(first).map((tokenId, index) => ({
        tokenId,
        logprob: logprobAfter(promptIds.slice(0, first + index), tokenId),
        alternatives: [],
      })),
    );
    yield { tokenId: END, logprob: null, alternatives: [] };
    await new Promise((resolve) => setTimeout(resolve));
    this.#running--;
    return { finishReason: "length", promptTokens: promptIds.length, cachedTokens: 0, completionTokens: 1 };
  }
}

function setUp(template = TEMPLATE, rest: Partial<Model> = {}) {
  const source = new ScoringSource();
  const text = new Tokenizer(byteLevelTokenizer(), { ...NO_TOKENS, ...templateEntry(template), tools: null });
  const model = modelOf(source, { text, endTokenIds: [END], ...rest });
  const asks = (context: Parameters<typeof decide>[2], questions = QUESTIONS, options: DecideOptions = {}) =>
    decide(model, encodeChat, context, questions, options);
  const promptsOf = (): string[] => source.requests.map(({ promptIds }) => text.decode(promptIds));
  return { source, text, asks, promptsOf };
}

const softmax = (scores: readonly number[]): readonly number[] => {
  const sum = scores.reduce((total, score) => total + Math.exp(score), 0);
  return scores.map((score) => Math.exp(score) / sum);
};

describe("decide", () => {
  test("sums the log-probabilities of each answer's tokens and of the end of its turn", async () => {
    const { source, text, asks } = setUp();
    const { decisions, model, object, usage } = await asks("A note.");
    expect([model, object, usage.prompt_tokens > 0]).toEqual(["fake", "decisions", true]);
    const exact = (question: string, answers: readonly string[]): readonly number[] =>
      answers.map((answer) => {
        const prompt = text.encode(`[user]A note.\n\n${question};[assistant]`, false);
        const ids = [...prompt, ...text.encode(`${answer};`, false)];
        return ids.reduce(
          (sum, id, index) => (index < prompt.length ? sum : sum + logprobAfter(ids.slice(0, index), id)),
          0,
        );
      });
    const topic = exact("Which?\nAnswer with one of these only:\n- art\n- article\n- 7", ["art", "article", "7"]);
    const urgent = exact("Urgent?\nAnswer Yes or No only.", ["Yes", "No"]);
    const stars = exact("How good?\nAnswer with an integer from 1 to 3 only.", ["1", "2", "3"]);
    const cats = exact("Is it about cats?\nAnswer Yes or No only.", ["Yes", "No"]);
    const close = (values: readonly number[]) => values.map((value) => expect.closeTo(value, 9) as number);
    expect(decisions.topic?.logprobs).toEqual([close(topic)]);
    const shares = softmax(topic);
    expect(["art", "article", "7"].map((name) => decisions.topic?.probabilities[name])).toEqual(close(shares));
    expect(decisions.topic?.mass).toBeCloseTo(topic.reduce((sum, each) => sum + Math.exp(each), 0));
    expect(decisions.topic?.confidence).toBeCloseTo(Math.max(...shares));
    expect(decisions.urgent?.answer).toBe((urgent[0] ?? 0) > (urgent[1] ?? 0));
    const mean = softmax(stars).reduce((sum, each, index) => sum + each * (index + 1), 0);
    expect(decisions.stars?.expectation).toBeCloseTo(mean);
    expect(decisions.stars?.answer).toBe(1 + stars.indexOf(Math.max(...stars)));
    expect(decisions.about?.probabilities.cats).toBeCloseTo(softmax(cats)[0] ?? NaN);
    expect(source.requests).toHaveLength(3 + 2 + 3 + 3 + 2 * 2);
  });

  test("computes the context first, then each question, then all other answers at once", async () => {
    const { source, asks } = setUp();
    await asks("A note.");
    expect(source.waves[0]).toBe(1);
    expect(Math.max(...source.waves.slice(1, 6))).toBe(5);
    expect(Math.max(...source.waves)).toBe(9);
    expect(source.requests.every(({ maxTokens }) => maxTokens === 1)).toBe(true);
  });

  test("puts the question into the user's last message, or after another's", async () => {
    const questions: Questions = { urgent: { type: "yes_no", question: "Urgent?" } };
    const { asks, promptsOf } = setUp();
    await asks([{ role: "user", content: [{ type: "text", text: "A note." }] }], questions);
    await asks("A note.", questions);
    await asks([{ role: "assistant", content: "Done." }], questions);
    const [first, , third] = promptsOf().filter((_, index) => index % 2 === 0);
    expect(promptsOf().filter((_, index) => index % 2 === 0)[1]).toBe(first);
    expect(first).toBe("[user]A note.\n\nUrgent?\nAnswer Yes or No only.;[assistant]Yes;");
    expect(third).toBe("[assistant]Done.;[user]Urgent?\nAnswer Yes or No only.;[assistant]Yes;");
  });

  test("ends answers with the model's end token if its template writes earlier answers in another way", async () => {
    const { asks, promptsOf } = setUp("{% for m in messages %}[{{ m.role }}]{% endfor %}:");
    await asks("A", { q: { type: "yes_no", question: "?" } });
    expect(promptsOf()).toEqual(["[user]:Yes;", "[user]:No;"]);
  });

  test("gives no answer below a bound, and reads calibrations that fit", async () => {
    const { asks } = setUp();
    const { decisions } = await asks("A note.", QUESTIONS, { abstain_below: 1 });
    expect(Object.values(decisions).map(({ answer }) => answer)).toEqual([null, null, null, null, null]);
    expect(decisions.about?.unsure).toEqual(["cats", "dogs"]);
    const answers = { urgent: true, about: ["cats"], topic: "7" };
    const calibration = fitCalibration(QUESTIONS, [{ decisions, answers }], { model: "fake" });
    expect(Object.keys(calibration.questions)).toEqual(["topic", "urgent", "about/cats", "about/dogs"]);
    const { decisions: fitted } = await asks("A note.", QUESTIONS, { calibration });
    for (const [name, answer] of [
      ["urgent", "Yes"],
      ["topic", "7"],
      ["about", "cats"],
    ] as const)
      expect(fitted[name]?.probabilities[answer]).toBeGreaterThan(decisions[name]?.probabilities[answer] ?? 1);
    expect(fitted.about?.probabilities.dogs).toBeLessThan(decisions.about?.probabilities.dogs ?? 0);
    await expect(asks("A", QUESTIONS, { calibration: { ...calibration, model: "other" } })).rejects.toThrow(
      "was fitted to other, and this model is fake; fit it",
    );
  });

  test("reads the file that nearfar decide --fit writes", async () => {
    const { questions, file } = vectors as unknown as { questions: Questions; file: DecisionCalibration };
    const { asks } = setUp();
    const { decisions: plain } = await asks("A note.", questions);
    const calibration = JSON.parse(JSON.stringify(file)) as DecisionCalibration;
    const { decisions } = await asks("A note.", questions, { calibration });
    const rows: readonly (readonly [key: string, names: readonly string[], logprobs: readonly number[] | undefined])[] =
      [
        ["topic", ["art", "article", "7"], plain.topic?.logprobs[0]],
        ["urgent", ["Yes", "No"], plain.urgent?.logprobs[0]],
        ["about/cats", ["Yes", "No"], plain.about?.logprobs[0]],
        ["about/dogs", ["Yes", "No"], plain.about?.logprobs[1]],
      ];
    for (const [key, names, logprobs = []] of rows) {
      const { temperature = 1, bias = {} } = file.questions[key] ?? {};
      const shares = softmax(names.map((name, index) => (logprobs[index] ?? NaN) / temperature + (bias[name] ?? NaN)));
      const [question = "", label] = key.split("/");
      const { probabilities = {} } = decisions[question] ?? {};
      if (label === undefined)
        for (const [index, name] of names.entries()) expect(probabilities[name]).toBeCloseTo(shares[index] ?? NaN, 9);
      else expect(probabilities[label]).toBeCloseTo(shares[0] ?? NaN, 9);
      expect(shares[0]).not.toBeCloseTo(softmax(logprobs)[0] ?? NaN, 2);
    }
    await expect(asks("A", questions, { calibration: { ...calibration, model: "other" } })).rejects.toThrow(
      "fitted to other",
    );
  });

  test.each([
    [{ q: { type: "choice", question: "?", choices: ["a", "a"] } }, "questions.q.choices[1]", "duplicate_choice"],
    [{ q: { type: "choice", question: "?", choices: ["a"] } }, "questions.q.choices", "too_few_choices"],
    [{ q: { type: "yes_no", question: "?", choices: ["a"] } }, "questions.q.choices", "bad_question"],
    [{ q: { type: "maybe", question: "?" } }, "questions.q.type", "bad_question"],
    [{ q: { type: "score", question: "?" } }, "questions.q", "bad_question"],
    [{ q: null }, "questions.q", "bad_question"],
    [[], "questions", "bad_question"],
  ] as const)("refuses %j by name", async (questions, param, code) => {
    const { asks, source } = setUp();
    const error: unknown = await asks("A", questions as unknown as Questions).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(RequestError);
    expect((error as RequestError).details).toMatchObject({ param, code });
    expect(source.requests).toHaveLength(0);
  });

  test("ends with its signal, and needs log-probabilities of prompts", async () => {
    const { asks } = setUp();
    const controller = new AbortController();
    const asked = asks("A", QUESTIONS, { signal: controller.signal });
    controller.abort(new Error("enough"));
    await expect(asked).rejects.toThrow("enough");
    const silent: TokenSource = {
      // oxlint-disable-next-line typescript/require-await
      async *generateTokens() {
        yield* [];
        return { finishReason: "length", promptTokens: 1, cachedTokens: 0, completionTokens: 1 };
      },
    };
    await expect(setUp(TEMPLATE, { tokens: silent }).asks("A")).rejects.toThrow("no log-probabilities of prompts");
  });
});

describe("a decision head", () => {
  const kind = (name: "choice" | "yes_no" | "score", first: number, labels: readonly string[]) =>
    ({ kind: name, first, labels, temperature: 2 }) as const;
  const decision = {
    kinds: [kind("yes_no", 0, ["no", "yes"]), kind("score", 2, ["a", "b", "c"]), kind("choice", 5, ["A", "B", "C"])],
    yes_first: false,
    softcap: null,
  };
  const template =
    "{{ state if state is string else state|tojson }}|{{ question.type }}|{{ question.instructions }}" +
    "{% for option in question.options %}|{{ question.labels[loop.index0] }}={{ option }}" +
    "{% if question.descriptions[loop.index0] %}:{{ question.descriptions[loop.index0] }}{% endif %}{% endfor %}";

  const decides = async (context: Parameters<typeof decide>[2], questions = QUESTIONS, own = decision) => {
    const { text, source } = setUp(template);
    const model = modelOf(source, { text, context: 100 });
    const prompts: string[] = [];
    const encode = (texts: readonly { readonly ids: readonly number[] }[]): Promise<readonly Float32Array[]> => {
      prompts.push(...texts.map(({ ids }) => text.decode(ids)));
      return Promise.resolve(texts.map((_, at) => Float32Array.from({ length: 8 }, (__, row) => row * (at + 1))));
    };
    const { decisions } = await decide(model, encodeChat, context, questions, {}, { decision: own, encode });
    return { decisions, prompts };
  };

  test("reads one prompt for each question, and its own scores of the answers", async () => {
    const { decisions, prompts } = await decides("A note.");
    expect(prompts).toEqual([
      "A note.|choice|Which?|A=art|B=article|C=7",
      "A note.|noul|Urgent?|no=false|yes=true",
      "A note.|score|How good?|a=0:1|b=1:2|c=2:3",
      "A note.|score|Which tone?|a=0:rude|b=1:plain|c=2:kind",
      "A note.|noul|Is it about cats?|no=false|yes=true",
      "A note.|noul|Is it about dogs?|no=false|yes=true",
    ]);
    const close = (values: readonly number[]) => values.map((value) => expect.closeTo(value, 6) as number);
    expect(Object.values(decisions.topic?.probabilities ?? {})).toEqual(expect.arrayContaining(close(softmax([2.5, 3, 3.5]))));
    expect(decisions.urgent?.probabilities).toEqual({
      Yes: expect.closeTo(softmax([0, 1])[1] ?? 0, 6) as number,
      No: expect.closeTo(softmax([0, 1])[0] ?? 0, 6) as number,
    });
    expect(decisions.stars?.answer).toBe(3);
    expect(decisions.tone?.answer).toBe("kind");
    expect(decisions.about?.answer).toEqual(["cats", "dogs"]);
    const swapped = await decides("A note.", QUESTIONS, { ...decision, yes_first: true });
    expect(swapped.prompts[1]).toBe("A note.|noul|Urgent?|no=true|yes=false");
    expect(swapped.decisions.urgent?.answer).toBe(false);
  });

  test("reads the texts of messages, and refuses what it has no place for", async () => {
    const questions: Questions = { urgent: { type: "yes_no", question: "Urgent?" } };
    const parts = [{ type: "text" as const, text: "b" }, { type: "text" as const, text: "c" }];
    const { prompts } = await decides([{ role: "user", content: "a" }, { role: "user", content: parts }], questions);
    expect(prompts[0]).toMatch(/^\[\{"role": "user", "content": "a"\}, \{"role": "user", "content": "bc"\}\]\|noul/u);
    const picture = [{ type: "image_url" as const, image_url: { url: "data:," } }];
    await expect(decides([{ role: "user", content: picture }], questions)).rejects.toThrow("texts only");
    const choices = ["a", "b", "c", "d"];
    await expect(decides("", { topic: { type: "choice", question: "Which?", choices } })).rejects.toMatchObject({
      message: expect.stringContaining("of the type choice with at most 3") as string,
      details: { code: "too_many_choices", param: "questions.topic" },
    });
    await expect(decides("a".repeat(120), questions)).rejects.toThrow("this model supports 100");
  });
});
