import { readFile } from "node:fs/promises";

import { expect, test } from "vitest";

import { checkAppFrame, readFrame } from "../src/frame.js";

test("the frames of the README are valid", async () => {
  const readme = await readFile(new URL("../README.md", import.meta.url), "utf8");
  const lines = /```json\n(.*?)```/s.exec(readme)?.[1]?.trim().split("\n") ?? [];
  const types = lines.map((line) => {
    const frame = readFrame(line);
    if (frame === null) throw new Error(`no frame: ${line}`);
    const checked = checkAppFrame(frame);
    return checked.type === "hello" ? "hello" : checked.message.type;
  });
  expect(types).toEqual(["hello", "call", "call", "more", "leave", "abort"]);
});
