// Runs on the browser's audio thread: posts what a stream records, the mean of its channels, in blocks. It is a file of
// its own, which pages load by its address.

/** The samples of a block: 21 ms at 48 kHz. */
const BLOCK = 1024;

declare class AudioWorkletProcessor {
  readonly port: MessagePort;
}
declare function registerProcessor(name: string, processor: typeof AudioWorkletProcessor): void;

class MicrophoneProcessor extends AudioWorkletProcessor {
  #block = new Float32Array(BLOCK);
  #filled = 0;

  process([channels = []]: readonly (readonly Float32Array[])[]): boolean {
    // A stream that has ended has no channels; silence tells the page that time goes on.
    const frames = channels[0]?.length ?? 128;
    for (let frame = 0; frame < frames; frame++) {
      let sum = 0;
      for (const channel of channels) sum += Number(channel[frame]);
      this.#block[this.#filled++] = channels.length === 0 ? 0 : sum / channels.length;
      if (this.#filled < BLOCK) continue;
      this.port.postMessage(this.#block, [this.#block.buffer]);
      this.#block = new Float32Array(BLOCK);
      this.#filled = 0;
    }
    return true;
  }
}

registerProcessor("nearfar-microphone", MicrophoneProcessor);
