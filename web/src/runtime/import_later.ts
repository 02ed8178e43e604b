// Imports the package's files that only some bundles need: encoders.js those of embedding models, rerankers and
// classifiers, experts.js mixtures whose experts do not fit on the device, drafts.js models whose tokens are guessed,
// images.js models that see pictures, videos.js files of videos, audio.js models that transcribe sound, attachments.js
// messages with files or recordings, decide.js typed questions, adapters.js LoRA adapters, tuning.js devices that were not
// measured, catalog.js models by name, prefixes.js prompts that start with a system message.

import type * as adapters from "../adapters/index.js";
import type * as attachments from "../attachments/index.js";
import type * as audio from "../audio/index.js";
import type { AudioModule, ReadOptions, SoundSource } from "../audio/index.js";
import type * as decide from "../decide/index.js";
import type * as catalog from "../catalog/index.js";
import type * as drafts from "../drafts/index.js";
import type { EncodersModule } from "../encoders/index.js";
import { DeviceError, messageOf } from "../errors.js";
import type { ExpertsModule } from "../experts/index.js";
import type * as prefixes from "../prefixes/index.js";
import type { ImagesModule } from "../images/index.js";
import type { TuningModule } from "../tuning/index.js";
import type * as videos from "../videos/index.js";

const CANNOT = "cannot import it";

/** Throws DeviceError if encoders.js cannot be imported. */
export async function importEncoders(): Promise<EncodersModule> {
  return (await imported("encoders", import("../encoders/index.js"))).encoders;
}

/** Throws DeviceError if experts.js cannot be imported. */
export async function importExperts(): Promise<ExpertsModule> {
  const advice = "cannot import it, and needs memory for all experts";
  return (await imported("experts", import("../experts/index.js"), advice)).experts;
}

/** Throws DeviceError if drafts.js cannot be imported. */
export async function importDrafts(): Promise<typeof drafts> {
  return imported("drafts", import("../drafts/index.js"), "cannot import it, and answers token by token");
}

/** Throws DeviceError if catalog.js cannot be imported. */
export async function importCatalog(): Promise<typeof catalog> {
  return imported("catalog", import("../catalog/index.js"), "cannot import it, and loads by address");
}

/** Throws DeviceError if tuning.js cannot be imported. */
export async function importTuning(): Promise<TuningModule> {
  return (await imported("tuning", import("../tuning/index.js"))).tuning;
}

/** Throws DeviceError if attachments.js cannot be imported. */
export async function importAttachments(): Promise<typeof attachments> {
  return imported("attachments", import("../attachments/index.js"), "cannot import it, and reads texts only");
}

/** Throws DeviceError if decide.js cannot be imported. */
export const importDecide = (): Promise<typeof decide> => imported("decide", import("../decide/index.js"), CANNOT);

/** Throws DeviceError if adapters.js cannot be imported. */
export const importAdapters = (): Promise<typeof adapters> =>
  imported("adapters", import("../adapters/index.js"), CANNOT);

/** Throws DeviceError if prefixes.js cannot be imported. */
export const importPrefixes = (): Promise<typeof prefixes> =>
  imported("prefixes", import("../prefixes/index.js"), CANNOT);

/** Throws DeviceError if images.js cannot be imported. */
export async function importImages(): Promise<ImagesModule> {
  return (await imported("images", import("../images/index.js"))).images;
}

/** Throws DeviceError if videos.js cannot be imported. */
export async function importVideos(): Promise<typeof videos> {
  return imported("videos", import("../videos/index.js"), "cannot import it, and reads the frames of videos only");
}

/** Throws DeviceError if audio.js cannot be imported. */
export async function importAudio(): Promise<AudioModule> {
  return (await audioFile()).audio;
}

/** `readSound` of audio.js, for a page whose engine runs in a worker. Throws DeviceError if it cannot be imported. */
export async function readSoundHere(source: SoundSource, options: ReadOptions): Promise<Float32Array<ArrayBuffer>> {
  return (await audioFile()).readSound(source, options);
}

/** audio.js itself. Throws DeviceError if it cannot be imported. */
export const audioFile = (): Promise<typeof audio> =>
  imported("audio", import("../audio/index.js"), "cannot import it, and transcribes nothing");

async function imported<T>(
  name: string,
  importing: Promise<T>,
  advice = `must import it itself and call serveEngine(self, { ${name} })`,
): Promise<T> {
  try {
    return await importing;
  } catch (error) {
    throw new DeviceError(
      `${name}.js cannot be loaded (${messageOf(error)}); serve it beside the package's other files; a service worker ` +
        advice,
      {},
      { cause: error },
    );
  }
}
