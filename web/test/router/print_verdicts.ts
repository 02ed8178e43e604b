// What the browser's router reads in requests, for tests/server_fallback/router/test_random_requests.py: one JSON object
// a line from standard input, one a line to standard output.

import { readFileSync } from "node:fs";

import { PrivateCheck } from "../../src/shared/decision/privacy.js";
import type { Situation } from "../../src/shared/decision/situation.js";
import type { HybridParams } from "../../src/router/request.js";
import { readRequest } from "../../src/router/request.js";

interface Given {
  readonly request: HybridParams;
  readonly patterns: readonly string[];
}

function verdict({ request, patterns }: Given): object {
  const { properties } = readRequest(request);
  const { messages, texts, media, tools } = properties;
  return {
    texts: texts.flat(),
    parts: messages.map(({ content, parts = [] }) => (parts.length > 0 ? parts : [content])),
    media: media.map(({ kind, message, part }) => [kind, message, part]),
    tools,
    private: patterns.filter((pattern) =>
      PrivateCheck.of({ labels: [], patterns: [pattern], ignore_case: true }).isPrivate(
        properties as unknown as Situation,
      ),
    ),
  };
}

const lines = readFileSync(0, "utf8").split("\n").filter(Boolean);
for (const line of lines) process.stdout.write(`${JSON.stringify(verdict(JSON.parse(line) as Given))}\n`);
