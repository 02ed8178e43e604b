// What a browser without an interface of pictures, videos or sound gets: a DeviceError that names what is missing. Node has
// none of them, so each test adds those that the browser has.

import { readFileSync } from "node:fs";

import { afterEach, expect, test, vi } from "vitest";

import { listen } from "../src/audio/microphone.js";
import { readSound } from "../src/audio/read_sound.js";
import { DeviceError } from "../src/errors.js";
import { decodeImage } from "../src/images/decode.js";
import { openVideo } from "../src/videos/decode.js";
import { farSpeaker } from "../src/voice/speakers.js";

afterEach(() => {
  vi.unstubAllGlobals();
});

const signal = new AbortController().signal;

async function problemOf(run: () => Promise<unknown>): Promise<string> {
  const error = await run().then(
    () => null,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(DeviceError);
  return (error as DeviceError).message;
}

const { webm } = JSON.parse(
  readFileSync(new URL("../../tests/conformance/video_files.json", import.meta.url), "utf8"),
) as { readonly webm: { readonly data: string } };
const video = new Blob([Uint8Array.from(atob(webm.data), (byte) => byte.charCodeAt(0))]);

test.each(["VideoDecoder", "createImageBitmap", "OffscreenCanvas"])("a video without %s", async (missing) => {
  for (const name of ["VideoDecoder", "createImageBitmap", "OffscreenCanvas"])
    if (name !== missing) vi.stubGlobal(name, () => undefined);
  expect(await problemOf(() => openVideo(video, signal))).toContain(`has no ${missing}; send their frames`);
});

const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";

test("a picture without createImageBitmap, and without OffscreenCanvas", async () => {
  const picture = new Blob([Uint8Array.from(atob(PNG), (byte) => byte.charCodeAt(0))], { type: "image/png" });
  expect(await problemOf(() => decodeImage(picture))).toContain("nothing decodes pictures here");
  vi.stubGlobal("createImageBitmap", () => Promise.resolve({ width: 1, height: 1, close: () => undefined }));
  expect(await problemOf(() => decodeImage(picture))).toContain("has no OffscreenCanvas");
});

test("a file of sound that is no WAV without OfflineAudioContext", async () => {
  expect(await problemOf(() => readSound(new Blob(["ID3"])))).toContain("nothing decodes sound here but WAV files");
});

const stream = { getAudioTracks: () => [{ readyState: "live" }] } as unknown as MediaStream;

class Context {
  readonly sampleRate = 44_100;
  readonly audioWorklet = { addModule: () => Promise.resolve() };
  closed = 0;

  createMediaStreamSource(): never {
    throw new DOMException("different sample-rates", "NotSupportedError");
  }

  close(): Promise<void> {
    this.closed++;
    return Promise.resolve();
  }
}

test("a microphone without AudioContext, without worklets, and at a rate that the browser does not connect", async () => {
  const hear = () => problemOf(() => listen(stream).next());
  expect(await hear()).toContain("no AudioContext with worklets");
  const context = new Context();
  vi.stubGlobal("AudioContext", function () {
    return context;
  });
  expect(await hear()).toContain("no AudioContext with worklets");
  vi.stubGlobal("AudioWorkletNode", function () {
    return { port: {} };
  });
  expect(await hear()).toContain("does not record this microphone at 44100 Hz (different sample-rates)");
  expect(context.closed).toBe(1);
});

test("speech of a server without AudioContext", async () => {
  const fetch = () => Promise.resolve(new Response(new Uint8Array(4)));
  const far = farSpeaker("http://far.test", { model: "a", voice: "b", fetch });
  expect(await problemOf(() => far.prepare("hi", { signal }))).toContain("has no AudioContext");
});
