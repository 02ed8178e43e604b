// The errors of decisions without a side: what they say, and whether the request may be sent again.

import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import type { Decision } from "../../src/shared/decision/decision.js";
import { refusal } from "../../src/shared/decision/decision.js";
import type { Policy } from "../../src/shared/decision/policy.js";
import type { Media } from "../../src/shared/decision/media.js";
import type { Situation } from "../../src/shared/decision/situation.js";
import { RequestError, Unavailable } from "../../src/errors.js";

interface Case {
  readonly name: string;
  readonly reason: Decision["reason"];
  readonly kind: "request" | "unavailable";
  readonly message: string;
  readonly pin?: Situation["pin"];
  readonly private?: boolean;
  readonly media?: readonly Media[];
  readonly may_leave?: boolean;
  readonly mode?: Policy["mode"];
  readonly available?: boolean;
  readonly near?: string;
}

const { cases } = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/router_refusals.json", import.meta.url), "utf8"),
) as { readonly cases: readonly Case[] };

test.each(cases)(
  "conformance: $name",
  ({ reason, kind, message, private: isPrivate = false, mode = "prefer-near", near, ...facts }) => {
    const { pin = null, available = true, media = [], may_leave: mayLeave = false } = facts;
    const situation = { pin, near: { available }, media } as unknown as Situation;
    const policy = { mode, private: { media: mayLeave ? "far" : "near" } } as const;
    const error = refusal({ reason, private: isPrivate }, situation, policy, near);
    expect([error instanceof RequestError, error instanceof Unavailable]).toEqual([
      kind === "request",
      kind === "unavailable",
    ]);
    expect([error.message, error.details.code]).toEqual([message, reason]);
  },
);
