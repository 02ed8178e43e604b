// The finder of masks: kinds of labels, spans of any classifier of tokens, and the limits of a search.

import { expect, test, vi } from "vitest";

import type { ClassifyResponse } from "../../src/api/replies.js";
import { DeviceError } from "../../src/errors.js";
import { Finder, finderFor } from "../../src/router/finder.js";
import type { Hybrid } from "../../src/router/hybrid.js";
import type { EntityFinder } from "../../src/router/masks.js";
import { MOST_SEARCHED, entitiesOf, textWindows } from "../../src/shared/masks/entities.js";
import { setUp } from "./hybrid_set_up.js";

const LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"];
const NAME = "Zoë Fairweather";
const MESSAGES = [{ role: "user", content: `😀 I am ${NAME} of Lyon.` }];

/** A classifier that finds one name and one place. */
const engine = {
  classify: ({ input }: { readonly input: unknown }): Promise<Pick<ClassifyResponse, "data">> => {
    const data = (input as readonly string[]).map((text, index) => {
      const spans = (
        [
          ["PER", NAME],
          ["LOC", "Lyon"],
        ] as const
      ).flatMap(([label, part]) => {
        const start = text.indexOf(part);
        return start < 0 ? [] : [{ label, start, end: start + part.length, score: 1 }];
      });
      return { index, num_classes: LABELS.length, tokens: [], spans };
    });
    return Promise.resolve({ data });
  },
};

const masking = (finder: EntityFinder, label = "PERSON") =>
  setUp({
    policy: { mode: "prefer-far", private: { masks: { entities: [{ label, kind: "PERSON" }] } } },
    far: [{ texts: ["Hi [PERSON_1]"] }],
    finder,
  });

test("the policy names kinds, whatever the model's labels are called", async () => {
  const finder = new Finder(engine, LABELS, { kinds: { LOC: null } });
  expect(finder.entities).toEqual([{ label: "PERSON", kind: "PERSON" }]);
  const { nf, far } = await masking(finder);
  const answer = await nf.chat.completions.create({ messages: MESSAGES } as never);
  expect(answer.choices[0]?.message.content).toBe(`Hi ${NAME}`);
  expect(far.bodies[0]?.messages).toEqual([{ role: "user", content: "😀 I am [PERSON_1] of Lyon." }]);
});

test("a model's own name of a kind is refused with the kind to write, and what the finder lacks with its kinds", async () => {
  const finder = new Finder(engine, LABELS);
  for (const [label, message] of [
    ["PER", '\'PER\' is the model\'s own name of a kind; write "label": "PERSON"'],
    ["EMAIL", "the finder finds no 'EMAIL'; write one of its kinds: PERSON, LOCATION"],
  ] as const)
    await expect(masking(finder, label)).rejects.toMatchObject({
      message: expect.stringContaining(message) as string,
      details: { code: "bad_policy", param: "private.masks.entities[0].label" },
    });
  const { info } = { info: {} };
  await expect(masking({ ...engine, info } as EntityFinder)).rejects.toMatchObject({ details: { param: "finder" } });
});

test("a label without a kind is refused by its name, unless the policy lists it", () => {
  const labels = [...LABELS, "B-COLOR"];
  expect(() => new Finder(engine, labels)).toThrow(/labels COLOR, which no known kind/);
  expect(() => new Finder(engine, LABELS, { kinds: { COLOR: null } })).toThrow(/kinds has COLOR/);
  const found = (label: string) => finderFor(engine, labels, [{ label, kind: "X" }]).entities.map((each) => each.label);
  expect(found("COLOR")).toEqual(["PERSON", "LOCATION", "COLOR"]);
  expect(() => found("PERSON")).toThrow(/labels COLOR/);
});

test.each([
  ["a lost device", new Finder({ classify: () => Promise.reject(new DeviceError("lost")) }, LABELS)],
  [
    "a model without spans",
    new Finder({ classify: () => Promise.resolve({ data: [{ index: 0, num_classes: 1, tokens: [] }] }) }, LABELS),
  ],
])("%s keeps the request near", async (_, finder) => {
  const { nf, far } = await masking(finder);
  const before = far.requests.length;
  const { route } = await nf.chat.completions.create({ messages: MESSAGES } as never);
  expect(route).toMatchObject({ side: "near", reason: "private" });
  expect(far.requests.length).toBe(before);
});

const leaving = (nf: Hybrid, ...texts: readonly string[]) => {
  const messages = texts.map((content) => ({ role: "user", content }));
  return nf.leaving({ messages } as never, new AbortController().signal);
};

test("texts that are longer than a search stay, without those that were searched before", async () => {
  const { nf } = await masking(new Finder(engine, LABELS));
  const most = `I am ${NAME}.`.padEnd(MOST_SEARCHED, " word");
  expect(await leaving(nf, `${most}s`)).toBeNull();
  for (const texts of [[most], [most, most.slice(1)]])
    expect((await leaving(nf, ...texts))?.params.messages[0]?.content).toMatch(/^I am \[PERSON_1\]\. word/);
});

test("one time limit holds for all texts of a request, which stay", async () => {
  const limit = new AbortController();
  const timed = vi.spyOn(AbortSignal, "timeout").mockReturnValue(limit.signal);
  let batches = 0;
  const slow: EntityFinder = {
    classify: (params) => {
      if (++batches === 1) return engine.classify(params);
      limit.abort(new DOMException("", "TimeoutError"));
      return new Promise(() => undefined);
    },
  };
  const { nf } = await masking(new Finder(slow, LABELS));
  expect(await leaving(nf, "word ".repeat(10_000))).toBeNull();
  expect([batches, timed.mock.calls]).toEqual([2, [[20_000]]]);
  timed.mockRestore();
});

test("a name at any place of a long text is whole in a window", () => {
  const pad = "é😀 padding ".repeat(120);
  for (let at = 0; at < 1300; at += 7) {
    const text = `${pad.slice(0, at)} ${NAME} ${pad}`;
    const found = textWindows(text).flatMap((window) => {
      const start = window.text.indexOf(NAME);
      return start < 0 ? [] : entitiesOf(window, [{ label: "PER", start, end: start + NAME.length }]);
    });
    expect(found.length).toBeGreaterThan(0);
    for (const { start, end } of found) expect(text.slice(start, end)).toBe(NAME);
  }
});
