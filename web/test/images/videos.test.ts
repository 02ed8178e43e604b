// Preparing videos, against what transformers' processors make of them (tests/video_oracle.py), and reading files.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

import { expect, test } from "vitest";

import { framePatches } from "../../src/images/patches.js";
import type { Pixels } from "../../src/images/resize.js";
import type { ImageSpec } from "../../src/runtime/manifest.js";
import { videoLayout } from "../../src/shared/videos/layout.js";
import { numberWords } from "../../src/shared/videos/text.js";
import { cutVideo } from "../../src/videos/cut.js";
import { turned } from "../../src/videos/decode.js";
import { readMp4 } from "../../src/videos/mp4.js";
import type { Track } from "../../src/videos/track.js";
import { readWebm } from "../../src/videos/webm.js";

interface Case {
  readonly video: readonly [width: number, height: number, total: number, fps: number];
  readonly features: readonly number[];
  readonly text: string;
  readonly patches: string;
  readonly changes: string;
  readonly key: string;
}

interface Family {
  readonly spec: ImageSpec;
  readonly cases: readonly Case[];
  readonly layouts: readonly (readonly number[])[];
}

const read = (name: string): unknown => JSON.parse(readFileSync(`../tests/conformance/${name}.json`, "utf8"));
const FAMILIES = read("videos") as Record<string, Family>;

/** As tests/video_oracle.py makes it. */
function moving(width: number, height: number, index: number): Pixels {
  const data = new Uint8Array(width * height * 3);
  for (let y = 0, at = 0; y < height; y++)
    for (let column = 0; column < width; column++) {
      const x = (((column - index * 5) % width) + width) % width;
      data[at++] = x * 3 + y * 5 + ((x * y) >> 3);
      data[at++] = x ^ y;
      data[at++] = (x * x + y * y) >> 5;
    }
  return { width, height, data };
}

const CASES = Object.entries(FAMILIES).flatMap(([name, { spec, cases }]) =>
  cases.map((each) => [`${name}, ${each.video.join(" ")}`, spec, each] as const),
);

test.each(CASES)("frames and text are those of the model's own processor: %s", async (_, spec, expected) => {
  const [width, height, total, fps] = expected.video;
  const video = {
    ...{ width, height, total, fps },
    read: async (indices: readonly number[], take: (frame: Pixels) => void) => {
      for (const index of indices) take(moving(width, height, index));
      return Promise.resolve();
    },
  };
  const found = await cutVideo(spec, video, new AbortController().signal);
  expect(found.text.replaceAll(spec.prompt.placeholder, "*")).toBe(expected.text);
  expect(found.frames.map(() => found.features)).toEqual(expected.features);
  const hashes = { patches: createHash("sha256"), changes: createHash("sha256") };
  for (const tile of found.frames) {
    const { patches, changes = new Float32Array() } = framePatches(spec, tile);
    hashes.patches.update(patches);
    hashes.changes.update(changes);
  }
  expect(hashes.patches.digest("hex")).toBe(expected.patches);
  expect(hashes.changes.digest("hex")).toBe(expected.changes);
  expect(found.key).toBe(expected.key);
});

test.each(Object.entries(FAMILIES))(
  "any video has the frames that transformers chooses: %s",
  (_, { spec, layouts }) => {
    for (const [width = 0, height = 0, total = 0, fps = 0, count, indices, , features] of layouts) {
      let found = [0, 0, 0];
      try {
        const layout = videoLayout(spec, { width, height, total, fps });
        found = [layout.indices.length, layout.indices.reduce((sum, each) => sum + each, 0), layout.features];
      } catch {
        // It refuses the video.
      }
      expect(found).toEqual([count, indices, features]);
    }
  },
);

test("numbers are written in English words", () => {
  expect([0, 13, 20, 64, 100, 101, 342].map(numberWords)).toEqual([
    "zero",
    "thirteen",
    "twenty",
    "sixty-four",
    "one hundred",
    "one hundred and one",
    "three hundred and forty-two",
  ]);
});

interface VideoFile {
  readonly data: string;
  readonly codec: string;
  readonly keys: readonly number[];
  readonly sizes: readonly number[];
}

const FILES = read("video_files") as Record<string, VideoFile>;
const readers: Record<string, (bytes: Uint8Array) => Track> = { webm: readWebm, vp9: readWebm, h264: readMp4 };

test.each(Object.entries(FILES))("the samples of a file are those that FFmpeg finds: %s", (name, file) => {
  const bytes = Uint8Array.from(Buffer.from(file.data, "base64"));
  const track = readers[name]?.(bytes);
  expect(track?.codec.slice(0, 4)).toBe(file.codec);
  expect(track?.fps).toBeCloseTo(10, 5);
  expect(track?.samples.map(({ size }) => size)).toEqual(file.sizes);
  expect(track?.samples.flatMap(({ isKey }, index) => (isKey ? [index] : []))).toEqual(file.keys);
  for (let end = 0; end < bytes.length; end += 97)
    expect(() => readers[name]?.(bytes.slice(0, end)).samples.length ?? 0).not.toThrow(TypeError);
});

test("an edit list says which samples are shown, and one that leaves out the last ones is refused", () => {
  const bytes = Buffer.from(FILES.h264?.data ?? "", "base64");
  const at = bytes.indexOf("elst") + 12;
  const edited = (duration: number, start: number, speed = 0x10000): Track => {
    const copy = Buffer.from(bytes);
    for (const [index, value] of [duration, start, speed].entries()) copy.writeInt32BE(value, at + index * 4);
    return readMp4(Uint8Array.from(copy));
  };
  const [duration, start] = [bytes.readInt32BE(at), bytes.readInt32BE(at + 4)];
  expect(edited(duration, start).start).toBe(start);
  expect(edited(0, start + 99).start).toBe(start + 99);
  // A delay of all samples.
  expect(edited(duration, -1).start).toBe(-Infinity);
  expect(() => edited(duration - 200, start)).toThrow(/videos: the video is edited without being encoded again/);
  expect(() => edited(duration, start, 0x8000)).toThrow(/export it again/);
});

test("a short file that claims billions of frames is refused before they are listed", () => {
  const bytes = Buffer.from(FILES.h264?.data ?? "", "base64");
  const sizes = bytes.indexOf("stsz") + 8;
  for (const [index, value] of [1, 0xffffffff].entries()) bytes.writeUInt32BE(value, sizes + index * 4);
  expect(() => readMp4(Uint8Array.from(bytes))).toThrow("videos: the video has more than 144000 frames; cut it");
});

test("frames are turned upright", () => {
  const data = Uint8Array.from([1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6]);
  const reds = (turns: number): readonly number[] => {
    const found = turned({ width: 3, height: 2, data }, turns);
    return [found.width, ...Array.from(found.data).filter((_, index) => index % 3 === 0)];
  };
  expect(reds(1)).toEqual([2, 4, 1, 5, 2, 6, 3]);
  expect(reds(2)).toEqual([3, 6, 5, 4, 3, 2, 1]);
  expect(reds(3)).toEqual([2, 3, 6, 2, 5, 1, 4]);
});
