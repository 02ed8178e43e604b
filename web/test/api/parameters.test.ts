// Which parameters of OpenAI's and vLLM's APIs are accepted, and which are refused by their name. The table is also the
// server's (tests/server_fallback/api/test_parameters.py).

import { expect, test } from "vitest";

import rows from "../../../tests/conformance/parameters.json" with { type: "json" };
import { ChatCompletions } from "../../src/api/chat_completions.js";
import { Completions } from "../../src/api/completions.js";
import { Stream } from "../../src/api/stream.js";
import { RequestError } from "../../src/errors.js";
import { fakeModel } from "./fake_model.js";

test.each(rows)("$route $params", async ({ route, params, browser }) => {
  const { model, source } = fakeModel("abc");
  const answer =
    route === "chat"
      ? new ChatCompletions(model).create({ messages: [{ role: "user", content: "hi" }], ...params } as never)
      : new Completions(model).create({ prompt: "a", ...params } as never);
  if (browser === null) {
    const given: unknown = await answer;
    if (given instanceof Stream) for await (const chunk of given) expect(chunk).toBeDefined();
    return;
  }
  const error: unknown = await (answer as Promise<unknown>).catch((failure: unknown) => failure);
  expect(error).toBeInstanceOf(RequestError);
  expect((error as RequestError).param).toBe(browser);
  expect(source.requests).toEqual([]);
});
