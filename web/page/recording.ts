// What the microphone records until the user stops it, and how loud it is meanwhile.

import { SAMPLE_RATE, listen, openMicrophone } from "../src/audio/index.js";
import { joined } from "../src/audio/resample.js";

export interface Recording {
  /** Ends the recording. Resolves to its samples at 16 kHz. */
  readonly stop: () => Promise<Float32Array<ArrayBuffer>>;
  readonly cancel: () => void;
}

/** ``onSound`` receives the seconds so far and the loudness, from 0 to 1. Throws DeviceError. */
export async function record(onSound: (seconds: number, level: number) => void): Promise<Recording> {
  const stream = await openMicrophone();
  const end = (): void => {
    for (const track of stream.getTracks()) track.stop();
  };
  const read = async (): Promise<Float32Array<ArrayBuffer>> => {
    const blocks: Float32Array[] = [];
    let length = 0;
    try {
      for await (const block of listen(stream)) {
        blocks.push(block);
        length += block.length;
        onSound(length / SAMPLE_RATE, loudness(block));
      }
    } finally {
      end();
    }
    return joined(blocks);
  };
  const samples = read();
  samples.catch(() => undefined);
  return {
    stop: () => {
      end();
      return samples;
    },
    cancel: end,
  };
}

/** From -60 dB of full scale (0) to -10 dB (1). */
function loudness(samples: Float32Array): number {
  const energy = samples.reduce((sum, sample) => sum + sample * sample, 0) / Math.max(1, samples.length);
  return Math.min(1, Math.max(0, (10 * Math.log10(energy + 1e-12) + 60) / 50));
}
