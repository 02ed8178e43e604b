// tests/conformance/agent.json, which Python's agents evaluate too, and its schemas beside ajv.

import { readFileSync } from "node:fs";

import Ajv from "ajv";
import { expect, test } from "vitest";

import { RequestError } from "../../src/errors.js";
import { afterCall, afterStep, judgeCall, nextStep, offered, openLoop } from "../../src/shared/agent/loop.js";
import { contentText } from "../../src/shared/agent/results.js";
import { schemaFault } from "../../src/shared/agent/schema_fault.js";
import { allowOf, defaultAllow, listTools, requireApproval } from "../../src/shared/agent/tools.js";

const { cases, schemas } = JSON.parse(
  readFileSync(new URL("../../../tests/conformance/agent.json", import.meta.url), "utf8"),
) as {
  readonly cases: readonly {
    readonly name: string;
    readonly function: string;
    readonly arguments: readonly never[];
    readonly result: unknown;
  }[];
  readonly schemas: readonly {
    readonly schema: object | boolean;
    readonly values: readonly unknown[];
    readonly faults: readonly (string | null)[];
  }[];
};
const FUNCTIONS: Readonly<Record<string, (...values: never[]) => unknown>> = {
  agentTools: listTools,
  agentAllow: allowOf,
  agentDefaultAllow: defaultAllow,
  agentApproval: requireApproval,
  agentOpen: openLoop,
  agentOffered: offered,
  agentNextStep: nextStep,
  agentAfterStep: afterStep,
  agentJudge: judgeCall,
  agentAfterCall: afterCall,
  agentContentText: contentText,
};

test.each(cases)("$name", ({ function: name, arguments: values, result }) => {
  const run = FUNCTIONS[name] ?? expect.unreachable(name);
  const found = (): unknown => {
    try {
      return run(...values) ?? null;
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      return { error: "request", message: error.message, details: error.details };
    }
  };
  expect(found()).toEqual(result);
});

test.each(schemas)("values of $schema", ({ schema, values, faults }) => {
  const ajv = new Ajv({ unknownFormats: "ignore", format: false });
  // This release of ajv knows no draft with prefixItems, tests multiples of decimals by their exact quotient, and finds
  // every object's own methods among its properties.
  const isKnown = !/"(prefixItems|multipleOf|toString)"/.test(JSON.stringify(schema));
  values.forEach((value, index) => {
    const fault = schemaFault(schema as never, value, "arguments.v");
    const expected = faults[index] ?? null;
    expect(fault === null ? null : `Error: ${fault}; call t again with other arguments`).toBe(expected);
    if (isKnown) expect(ajv.validate(schema, value), JSON.stringify(value)).toBe(expected === null);
  });
});

test("a text that a pattern of nested repetitions does not match is refused in time", () => {
  const schema = { type: "string", pattern: "^(a+)+(b|a{2,5})*$" };
  expect(schemaFault(schema, `${"a".repeat(2000)}!`, "x")).toContain("it must match the pattern");
  expect(schemaFault(schema, "a".repeat(2000), "x")).toBeNull();
});
