// Reads WebM files (RFC 8794 and RFC 9559): elements are an id, a size and their content. Masters are entered and others
// skipped, so files whose sizes are unknown, such as those of MediaRecorder, are read alike.

import { RequestError } from "../errors.js";
import type { Sample, Track } from "./track.js";
import { av1Name, avcName, damagedVideo, noPictures, vp9Name } from "./track.js";

const SEGMENT = 0x18538067;
const INFO = 0x1549a966;
const TRACKS = 0x1654ae6b;
const TRACK = 0xae;
const VIDEO = 0xe0;
const CLUSTER = 0x1f43b675;
const GROUP = 0xa0;
const MASTERS = new Set([SEGMENT, INFO, TRACKS, TRACK, VIDEO, CLUSTER, GROUP]);
const CLUSTER_TIME = 0xe7;
const SIMPLE_BLOCK = 0xa3;
const BLOCK = 0xa1;
const REFERENCE = 0xfb;
const TIME_SCALE = 0x2ad7b1;
const NAMES: Readonly<Record<number, string>> = {
  0xd7: "number",
  0x83: "kind",
  0x86: "codec",
  0x63a2: "settings",
  0x23e383: "duration",
};

interface Entry {
  number?: number;
  kind?: number;
  codec?: string;
  settings?: Uint8Array;
  duration?: number;
}

/** Throws RequestError. */
export function readWebm(bytes: Uint8Array): Track {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const tracks: Entry[] = [];
  const blocks: (Sample & { readonly track: number })[] = [];
  let [clusterTime, scale] = [0, 1_000_000];
  for (let at = 0; at < bytes.length;) {
    const [id, body] = vint(view, at, true);
    const [size, content] = vint(view, body, false);
    if (MASTERS.has(id)) {
      if (id === TRACK) tracks.push({});
      at = content;
      continue;
    }
    at = content + size;
    if (!(at <= bytes.length)) throw damagedVideo();
    const name = NAMES[id];
    const own = tracks.at(-1);
    if (id === TIME_SCALE) scale = uint(view, content, size);
    else if (id === CLUSTER_TIME) clusterTime = uint(view, content, size);
    else if (name !== undefined && own !== undefined && blocks.length === 0) {
      const data = bytes.subarray(content, at);
      const value =
        name === "codec" ? String.fromCharCode(...data) : name === "settings" ? data : uint(view, content, size);
      Object.assign(own, { [name]: value });
    } else if (id === SIMPLE_BLOCK || id === BLOCK) {
      const [track, next] = vint(view, content, false);
      const flags = view.getUint8(next + 2);
      if ((flags & 6) > 0) continue;
      const time = (clusterTime + view.getInt16(next)) * scale;
      blocks.push({ track, time, offset: next + 3, size: at - next - 3, isKey: id === BLOCK || (flags & 0x80) > 0 });
    } else if (id === REFERENCE) {
      const last = blocks.pop();
      if (last !== undefined) blocks.push({ ...last, isKey: false });
    }
  }
  const found = tracks.find(({ kind }) => kind === 1);
  if (found === undefined) throw noPictures();
  const samples = blocks.filter(({ track }) => track === found.number);
  const times = samples.map(({ time }) => time).sort((one, other) => one - other);
  const seconds = ((times.at(-1) ?? 0) - (times[0] ?? 0)) / 1e9;
  const fps = found.duration === undefined ? (times.length - 1) / seconds : 1e9 / found.duration;
  return { ...codecOf(found), fps: times.length === 1 ? 1 : fps, start: -Infinity, turns: 0, samples };
}

function codecOf({ codec = "", settings = new Uint8Array() }: Entry): Pick<Track, "codec" | "description"> {
  switch (codec) {
    case "V_VP8":
      return { codec: "vp8", description: null };
    case "V_VP9":
      return { codec: vp9Name(settings[0] === 1 ? (settings[2] ?? 0) : 0, 51, 8), description: null };
    case "V_AV1":
      return { codec: av1Name(settings), description: settings };
    case "V_MPEG4/ISO/AVC":
      return { codec: avcName(settings), description: settings };
    default:
      throw new RequestError(
        `videos: the video has the codec ${codec.slice(0, 40)}, which is not read; convert it to VP9`,
      );
  }
}

/** A number of 1 to 8 bytes, and the offset after it; infinite for an unknown size. */
function vint(view: DataView, at: number, isId: boolean): readonly [value: number, next: number] {
  if (at >= view.byteLength) throw damagedVideo();
  const first = view.getUint8(at);
  const length = Math.clz32(first) - 23;
  if (length > 8 || at + length > view.byteLength) throw damagedVideo();
  let value = isId ? first : first & (0xff >> length);
  let isUnknown = !isId && value === 0xff >> length;
  for (let index = 1; index < length; index++) {
    const byte = view.getUint8(at + index);
    value = value * 256 + byte;
    isUnknown &&= byte === 0xff;
  }
  return [isUnknown ? Infinity : value, at + length];
}

function uint(view: DataView, at: number, size: number): number {
  let value = 0;
  for (let index = 0; index < size; index++) value = value * 256 + view.getUint8(at + index);
  return value;
}
