// Sound becomes one channel at 16 kHz, or is refused by name.

import { expect, test, vi } from "vitest";

import { readSound } from "../../src/audio/read_sound.js";
import type { SoundSource } from "../../src/audio/read_sound.js";
import { Resampler, joined, resample } from "../../src/audio/resample.js";
import { DeviceError, RequestError } from "../../src/errors.js";
import { integers, wavOf } from "./sound.js";

const SAMPLES = Float32Array.from({ length: 1600 }, (_, index) => Math.sin(index / 7) * 0.8);
const GOOD = wavOf(integers(SAMPLES, 16));

const largestError = (found: Float32Array, expected: Float32Array): number => {
  expect(found.length).toBe(expected.length);
  return found.reduce((largest, value, index) => Math.max(largest, Math.abs(value - Number(expected[index]))), 0);
};

const tone = (hertz: number, rate: number, seconds: number): Float32Array<ArrayBuffer> =>
  Float32Array.from({ length: rate * seconds }, (_, index) => Math.sin((2 * Math.PI * hertz * index) / rate));

test.each([8, 16, 24, 32])("integers of %d bits are numbers from minus one to one", async (bits) => {
  const found = await readSound(wavOf(integers(SAMPLES, bits), { bits }));
  expect(largestError(found, SAMPLES)).toBeLessThan(1.6 / 2 ** (Math.min(bits, 24) - 1));
});

test("floats are read as they are, from bytes, a file and samples", async () => {
  const [single, double] = [new Uint8Array(SAMPLES.buffer), new Uint8Array(Float64Array.from(SAMPLES).buffer)];
  const wav = wavOf(single, { kind: 3, bits: 32 });
  const sources: readonly SoundSource[] = [
    wav,
    wavOf(double, { kind: 3, bits: 64 }),
    wav.buffer,
    new Blob([wav]),
    { samples: SAMPLES, sampleRate: 16_000 },
  ];
  for (const source of sources) expect(await readSound(source)).toEqual(SAMPLES);
});

test("an extensible format names its kind behind the others", async () => {
  const more = Uint8Array.from([22, 0, 16, 0, 0, 0, 0, 0, 1, 0, ...new Array<number>(14).fill(0)]);
  expect(largestError(await readSound(wavOf(integers(SAMPLES, 16), { kind: 0xfffe, more })), SAMPLES)).toBeLessThan(
    1e-4,
  );
});

test("channels are averaged", async () => {
  const channels = [1, 0, 0, 0.5, 0, 0, 0, 0.5].map((factor) => SAMPLES.map((sample) => sample * factor));
  const expected = SAMPLES.map((sample) => sample / 4);
  expect(largestError(await readSound({ samples: channels, sampleRate: 16_000 }), expected)).toBeLessThan(1e-6);
  const joined = Float32Array.from({ length: 8 * SAMPLES.length }, (_, index) =>
    Number(channels[index % 8]?.[Math.floor(index / 8)]),
  );
  const wav = wavOf(new Uint8Array(joined.buffer), { kind: 3, bits: 32, channels: 8 });
  expect(largestError(await readSound(wav), expected)).toBeLessThan(1e-6);
  const decoded = {
    numberOfChannels: 8,
    sampleRate: 16_000,
    getChannelData: (index: number) => channels[index],
  } as unknown as AudioBuffer;
  expect(largestError(await readSound(decoded), expected)).toBeLessThan(1e-6);
});

test.each([8000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000, 47_999])(
  "a tone at %d Hz remains the same tone",
  async (rate) => {
    const found = await readSound({ samples: tone(440, rate, 2), sampleRate: rate });
    const expected = tone(440, 16_000, 2);
    // Beyond the ends, there is silence.
    expect(largestError(found.subarray(200, -200), expected.subarray(200, -200))).toBeLessThan(1e-3);
  },
);

test.each([44_100, 48_000])("what 16 kHz cannot hold is left out: %d Hz", async (rate) => {
  const high = await readSound({ samples: tone(9000, rate, 1), sampleRate: rate });
  expect(Math.max(...high.subarray(200, -200).map(Math.abs))).toBeLessThan(1e-3);
  const kept = await readSound({ samples: tone(6500, rate, 1), sampleRate: rate });
  expect(largestError(kept.subarray(200, -200), tone(6500, 16_000, 1).subarray(200, -200))).toBeLessThan(2e-3);
});

test("a file that was cut is read as far as it goes", async () => {
  expect((await readSound(GOOD.subarray(0, -101))).length).toBe(SAMPLES.length - 51);
});

const changed = (at: number, ...bytes: readonly number[]): Uint8Array => {
  const copy = GOOD.slice();
  copy.set(bytes, at);
  return copy;
};

test.each<readonly [string, SoundSource, RegExp]>([
  ["nothing", new Uint8Array(), /is empty/],
  ["a head", GOOD.subarray(0, 12), /without samples/],
  ["no data", GOOD.subarray(0, 40), /without samples/],
  ["a file without samples", wavOf(new Uint8Array()), /has no samples/],
  ["no channels", changed(22, 0, 0), /0 channels/],
  ["no rate", changed(24, 0, 0, 0, 0), /0 Hz/],
  ["another encoding", changed(20, 2, 0), /encoding 2 with 16 bits, which is not supported; convert it to 16-bit PCM/],
  ["12 bits", changed(34, 12, 0), /encoding 1 with 12 bits/],
  ["a short format", changed(16, 4, 0, 0, 0), /its format has 4 bytes/],
  ["a low rate", { samples: SAMPLES, sampleRate: 100 }, /has 100 samples a second/],
  ["no whole rate", { samples: SAMPLES, sampleRate: 16_000.5 }, /has 16000.5 samples a second/],
  ["NaN", { samples: Float32Array.of(0, NaN), sampleRate: 16_000 }, /not finite/],
  ["infinity", { samples: [SAMPLES, SAMPLES.map(() => Infinity)], sampleRate: 16_000 }, /not finite/],
  ["noise of another kind", { samples: Float32Array.of(0, -1e30), sampleRate: 16_000 }, /beyond 2\^31/],
  ["unequal channels", { samples: [SAMPLES, SAMPLES.subarray(1)], sampleRate: 16_000 }, /have 1600, 1599 samples/],
  ["no channel", { samples: [], sampleRate: 16_000 }, /has no samples/],
  ["no samples", { samples: new Float32Array(), sampleRate: 16_000 }, /has no samples/],
  ["a number", 7 as unknown as SoundSource, /must be an AudioBuffer, a Blob/],
  ["null", null as unknown as SoundSource, /must be an AudioBuffer, a Blob/],
])("%s: refused by name", async (_, source, message) => {
  await expect(readSound(source)).rejects.toThrow(message);
  await expect(readSound(source)).rejects.toThrow(RequestError);
});

test("sound that is too long is refused before it is read", async () => {
  await expect(readSound(GOOD, { maxSeconds: 0.05 })).rejects.toThrow(/longer than 0.05 seconds; send parts of it/);
  expect((await readSound(GOOD, { maxSeconds: 0.1 })).length).toBe(SAMPLES.length);
});

test("without a browser's decoder, other formats are refused with what to do", async () => {
  const flac = new TextEncoder().encode("fLaC....");
  await expect(readSound(flac)).rejects.toThrow(DeviceError);
  await expect(readSound(new Blob([flac]))).rejects.toThrow(/decode it in the page/);
});

test("a signal ends it with its reason", async () => {
  await expect(readSound(GOOD, { signal: AbortSignal.abort("enough") })).rejects.toBe("enough");
});

test.each([8000, 44_100, 47_999, 48_000])("sound that is converted in pieces has the same samples: %d Hz", (rate) => {
  const sound = tone(440, rate, 1).map((sample, index) => sample + Math.sin(index ** 1.5));
  const whole = resample(sound, rate, 16_000);
  for (const pieces of [[1], [128, 1024, 7], [rate]]) {
    const resampler = new Resampler(rate, 16_000);
    const found: Float32Array[] = [];
    for (let at = 0, index = 0; at < sound.length; index++) {
      const size = Number(pieces[index % pieces.length]);
      found.push(resampler.push(sound.subarray(at, at + size)));
      at += size;
    }
    found.push(resampler.end());
    expect(joined(found)).toEqual(whole);
  }
});

test("the file at an address is read, and one that is not there refused by its address", async () => {
  vi.stubGlobal("fetch", (address: string) =>
    Promise.resolve(address === "there.wav" ? new Response(GOOD) : new Response(null, { status: 404 })),
  );
  expect(largestError(await readSound("there.wav"), SAMPLES)).toBeLessThan(1e-4);
  await expect(readSound("gone.wav")).rejects.toThrow(/audio: gone.wav cannot be fetched \(the server answers 404\)/);
  vi.unstubAllGlobals();
});
