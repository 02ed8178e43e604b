// Whatever the sides do, there is one answer or one error. Every text belongs to the side that wrote it, and no private
// text leaves the device.

import fc from "fast-check";
import { expect, test } from "vitest";

import { DeviceError, NearfarError } from "../../src/errors.js";
import { Hybrid } from "../../src/router/hybrid.js";
import type { FarScript, NearScript } from "./fakes.js";
import { FAR, FakeClock, FakeFar, MemoryLedger, near } from "./fakes.js";

const MESSAGES = [{ role: "user" as const, content: "a secret?" }];
// Near writes in lower case, far in capitals.
const nearScript: fc.Arbitrary<NearScript> = fc.record({
  text: fc.stringMatching(/^[a-z]{0,6}$/),
  logprobs: fc.array(fc.constantFrom(-0.1, -9), { minLength: 1, maxLength: 6 }),
  then: fc.constantFrom("end" as const, "hang" as const, new DeviceError("lost")),
});
const farScript: fc.Arbitrary<FarScript> = fc.oneof(
  fc.constantFrom<FarScript[]>(
    "refused",
    "silent",
    { status: 503 },
    { status: 400 },
    { status: 429, headers: { "Retry-After": "1" } },
  ),
  fc.record({
    texts: fc.array(fc.stringMatching(/^[A-Z]{1,3}$/), { maxLength: 4 }),
    then: fc.constantFrom("end" as const, "break" as const, "hang" as const),
  }),
);
const policy = fc.record({
  version: fc.constant(1),
  mode: fc.constantFrom("prefer-near", "auto"),
  escalation: fc.record({
    then: fc.constantFrom("never", "continue", "restart"),
    window_tokens: fc.constant(2),
    min_mean_logprob: fc.constant(-3),
  }),
  fallback: fc.record({ near_continues: fc.boolean(), far_takes_over: fc.boolean() }),
  timeouts: fc.record({
    between_tokens_ms: fc.constant(500),
    near_first_token_ms: fc.constant(500),
    far_first_token_ms: fc.constant(500),
    hedge_after_ms: fc.constantFrom(null, 50),
  }),
  retries: fc.nat(2),
});

const isStuck = (script: FarScript | undefined): boolean =>
  script === "silent" || (typeof script === "object" && "then" in script && script.then === "hang");

test("any order of failures gives one answer or one error", async () => {
  await fc.assert(
    fc.asyncProperty(
      policy,
      fc.array(nearScript, { minLength: 1, maxLength: 3 }),
      fc.array(farScript, { minLength: 1, maxLength: 4 }),
      fc.boolean(),
      async (rules, nears, fars, isPrivate) => {
        const far = new FakeFar(fars);
        const clock = new FakeClock();
        const { engine, source } = near(...nears);
        const device = { read: () => Promise.resolve({ online: true, battery: null, charging: null, thermal: null }) };
        const nf = await Hybrid.create({
          near: engine,
          far: { baseURL: FAR },
          policy: rules,
          fetch: far.fetch,
          ledger: new MemoryLedger(),
          clock,
          device,
        });
        let text = "";
        let ends = 0;
        const reading = async (): Promise<unknown> => {
          try {
            for await (const { choices, route } of await nf.chat.completions.create({
              messages: MESSAGES,
              stream: true,
              labels: isPrivate ? ["private"] : [],
            })) {
              if (route?.switched_at === 0 && choices[0]?.finish_reason === null) text = "";
              text += choices[0]?.delta.content ?? "";
              if (choices[0]?.finish_reason !== null) ends++;
              if (choices[0]?.finish_reason !== null) expect(route?.switched_at ?? 0).toBeLessThanOrEqual(text.length);
            }
            return null;
          } catch (error) {
            return error;
          }
        };
        const result = reading();
        await clock.pass(60_000);
        const error = await result;
        expect(error === null ? ends : error instanceof NearfarError && ends === 0).toBe(error === null ? 1 : true);
        // Each side's pieces are in its own letters, in the order of its script.
        expect(text).toMatch(/^[a-z]*[A-Z]*[a-z]*$/);
        // Nothing is left running.
        expect(source.running).toBe(0);
        const stuck = far.chats.filter((_, index) => isStuck(fars[Math.min(index, fars.length - 1)]));
        expect(stuck.every(({ aborted }) => aborted)).toBe(true);
        if (isPrivate) expect([far.chats, far.sent.includes("secret")]).toEqual([[], false]);
      },
    ),
    { numRuns: 150 },
  );
});
