// A microphone: permission to hear it, and what it records as one channel at 16 kHz, while it records.

import { DeviceError, messageOf } from "../errors.js";
import { Resampler, SAMPLE_RATE } from "./resample.js";

/** The processor of microphone_worklet.ts, which posts blocks of samples. */
export const WORKLET_NAME = "nearfar-microphone";

/** What `getUserMedia` throws, and what is reported: ``details.reason`` of a DeviceError. */
const REFUSALS: Readonly<Record<string, readonly [reason: string, words: string]>> = {
  NotAllowedError: ["microphone_denied", "this page may not use the microphone; allow it in the browser's settings"],
  NotFoundError: ["no_microphone", "this device has no microphone; connect one"],
  NotReadableError: ["microphone_busy", "the microphone cannot be read; close other programs that use it"],
};

/**
 * Ask for the microphone, with the browser's cancellation of echo and noise. Stop its tracks at the end. Throws
 * DeviceError, whose ``details.reason`` is microphone_denied, no_microphone or microphone_busy.
 */
export async function openMicrophone(constraints: MediaTrackConstraints = {}): Promise<MediaStream> {
  const { mediaDevices } = globalThis.navigator as { readonly mediaDevices?: MediaDevices };
  if (mediaDevices === undefined)
    throw new DeviceError("no microphone can be used here; serve the page over https or from localhost", {
      reason: "no_microphone",
    });
  const wanted = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };
  try {
    return await mediaDevices.getUserMedia({ audio: { ...wanted, ...constraints } });
  } catch (error) {
    const [reason, words] = REFUSALS[error instanceof Error ? error.name : ""] ?? [
      "no_microphone",
      `the microphone cannot be opened (${messageOf(error)})`,
    ];
    throw new DeviceError(words, { reason }, { cause: error });
  }
}

/**
 * The sound of a stream as blocks (N,) at 16 kHz, at the rate of the device until then. Ends when all tracks have ended
 * or were stopped. Throws DeviceError, or the signal's reason.
 */
export async function* listen(
  stream: MediaStream,
  { signal }: { readonly signal?: AbortSignal | undefined } = {},
): AsyncGenerator<Float32Array<ArrayBuffer>, void, undefined> {
  signal?.throwIfAborted();
  const tracks = stream.getAudioTracks();
  if (tracks.length === 0)
    throw new DeviceError("the stream has no sound; open it with { audio: true }", { reason: "no_microphone" });
  if (!("AudioContext" in globalThis) || !("AudioWorkletNode" in globalThis))
    throw new DeviceError(
      "this browser has no AudioContext with worklets, which records sound; serve the page over https or from localhost, or " +
        "use another browser",
      { reason: "no_worklet" },
    );
  const context = new AudioContext();
  const blocks: Float32Array[] = [];
  let wake = (): void => undefined;
  const stop = (): void => {
    wake();
  };
  signal?.addEventListener("abort", stop);
  try {
    const node = await worklet(context);
    node.port.onmessage = ({ data }: MessageEvent<Float32Array>) => {
      blocks.push(data);
      wake();
    };
    sourceOf(context, stream).connect(node);
    // Browsers run a context that begins without a click as soon as its page records.
    void context.resume();
    const resampler = new Resampler(context.sampleRate, SAMPLE_RATE);
    const isOver = (): boolean => tracks.every(({ readyState }) => readyState === "ended");
    while (!isOver()) {
      if (blocks.length === 0) await new Promise<void>((resolve) => (wake = resolve));
      signal?.throwIfAborted();
      for (const block of blocks.splice(0)) {
        const found = context.sampleRate === SAMPLE_RATE ? new Float32Array(block) : resampler.push(block);
        if (found.length > 0) yield found;
      }
    }
    if (context.sampleRate !== SAMPLE_RATE) yield resampler.end();
  } finally {
    signal?.removeEventListener("abort", stop);
    await context.close();
  }
}

/** Some browsers connect no microphone whose rate is not that of the speakers. */
function sourceOf(context: AudioContext, stream: MediaStream): MediaStreamAudioSourceNode {
  try {
    return context.createMediaStreamSource(stream);
  } catch (error) {
    throw new DeviceError(
      `this browser does not record this microphone at ${context.sampleRate} Hz (${messageOf(error)}); choose another ` +
        "microphone or other speakers in the settings of the device",
      { reason: "microphone_busy" },
      { cause: error },
    );
  }
}

async function worklet(context: AudioContext): Promise<AudioWorkletNode> {
  const address = new URL("./microphone_worklet.js", import.meta.url);
  try {
    await context.audioWorklet.addModule(address);
  } catch (error) {
    throw new DeviceError(
      `${address.href} cannot be loaded (${messageOf(error)}); serve it beside the package's other files`,
      { reason: "no_worklet" },
      { cause: error },
    );
  }
  return new AudioWorkletNode(context, WORKLET_NAME, { numberOfOutputs: 0 });
}
