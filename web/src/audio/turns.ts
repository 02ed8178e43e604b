// The turns of transcripts on one device: their windows share its memory, so they are computed one after the other.

import { DeviceError } from "../errors.js";
import type { TranscriberParts } from "./transcriber.js";

export class Turns {
  #last: Promise<unknown> = Promise.resolve();

  constructor(private readonly parts: Pick<TranscriberParts, "runner" | "replaceRunner" | "gate">) {}

  /** The result of a window after those that were asked for earlier. If the device fails, another one computes it again. */
  async take<T>(signal: AbortSignal, window: () => Promise<T>): Promise<T> {
    const before = this.#last;
    let finish = (): void => undefined;
    this.#last = new Promise<void>((resolve) => (finish = resolve));
    await before;
    try {
      try {
        return await window();
      } catch (error) {
        if (!(error instanceof DeviceError)) throw error;
        signal.throwIfAborted();
        await this.parts.replaceRunner();
        return await window();
      }
    } finally {
      finish();
    }
  }

  /** Runs a step when the engine may use the device. */
  async compute<T>(
    signal: AbortSignal,
    step: (runner: ReturnType<TranscriberParts["runner"]>) => Promise<T>,
  ): Promise<T> {
    signal.throwIfAborted();
    await this.parts.gate.opened();
    signal.throwIfAborted();
    return this.parts.gate.through(() => step(this.parts.runner()));
  }
}
