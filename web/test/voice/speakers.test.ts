// What speakers refuse and report; test_voice_page.py plays them in Chromium.

import { expect, test } from "vitest";

import { DeviceError, RequestError, Unavailable } from "../../src/errors.js";
import { browserSpeaker, farSpeaker, kokoroSpeaker } from "../../src/voice/speakers.js";

const { signal } = new AbortController();

test("a server that does not speak is reported with its address, and an address that is none is refused", async () => {
  const answers = [
    (): Promise<Response> => Promise.resolve(new Response("no such voice", { status: 400 })),
    (): Promise<Response> => Promise.reject(new TypeError("refused")),
  ];
  const asked: [string, RequestInit | undefined][] = [];
  const speaker = farSpeaker("http://far:8000/v1/", {
    model: "tts-1",
    voice: "alloy",
    apiKey: "secret",
    fetch: (address, init) => {
      asked.push([address as string, init]);
      return (answers.shift() ?? (() => Promise.reject(new Error("no more"))))();
    },
  });
  for (const message of ["answers 400: no such voice", "(refused)"]) {
    const error: unknown = await speaker.prepare("Hello.", { signal }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(Unavailable);
    expect((error as Error).message).toContain(message);
  }
  const [[address, init] = []] = asked;
  expect(address).toBe("http://far:8000/v1/audio/speech");
  expect(init?.headers as Record<string, string> | undefined).toMatchObject({ Authorization: "Bearer secret" });
  expect(JSON.parse(init?.body as string)).toEqual({
    model: "tts-1",
    input: "Hello.",
    voice: "alloy",
    response_format: "wav",
  });
  expect(() => farSpeaker("nowhere", { model: "m", voice: "v" })).toThrow(RequestError);
});

test("a request that is aborted throws the signal's reason", async () => {
  const controller = new AbortController();
  const speaker = farSpeaker("http://far:8000", {
    model: "m",
    voice: "v",
    fetch: () => Promise.reject(new TypeError("aborted")),
  });
  controller.abort(new Error("enough"));
  await expect(speaker.prepare("Hello.", { signal: controller.signal })).rejects.toThrow("enough");
});

test("a Kokoro that cannot be loaded is reported, and loaded again with the next sentence", async () => {
  let loads = 0;
  const asked: unknown[] = [];
  const speaker = kokoroSpeaker({
    voice: "bf_emma",
    load: () => {
      loads++;
      if (loads === 1) return Promise.reject(new TypeError("Failed to resolve module specifier"));
      return Promise.resolve({
        KokoroTTS: {
          from_pretrained: (model: string, options: object) => {
            asked.push([model, options]);
            return Promise.resolve({
              generate: (text: string, choice: object) => {
                asked.push([text, choice]);
                return Promise.reject(new Error("heard"));
              },
            });
          },
        },
      });
    },
  });
  const error: unknown = await speaker.prepare("Hello.", { signal }).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(DeviceError);
  expect((error as Error).message).toContain("install kokoro-js");
  for (const text of ["Hello.", "Again."]) await expect(speaker.prepare(text, { signal })).rejects.toThrow("heard");
  expect(loads).toBe(2);
  expect(asked).toEqual([
    ["onnx-community/Kokoro-82M-v1.0-ONNX", { dtype: "q8", device: "wasm", progress_callback: null }],
    ["Hello.", { voice: "bf_emma", speed: 1 }],
    ["Again.", { voice: "bf_emma", speed: 1 }],
  ]);
});

test("a browser without voices of its own says so", () => {
  expect(() => browserSpeaker()).toThrow(DeviceError);
});
