// Reads MP4 and QuickTime files (ISO/IEC 14496-12): boxes are a size, a type and their content.

import { RequestError } from "../errors.js";
import { BOUNDS } from "../shared/attachments.js";
import type { Sample, Track } from "./track.js";
import { av1Name, avcName, damagedVideo, hevcName, noPictures, vp9Name } from "./track.js";

const MAX_SAMPLES = BOUNDS.video_fps * BOUNDS.video_seconds;

/** Throws RequestError. */
export function readMp4(bytes: Uint8Array): Track {
  try {
    const file = new Box(bytes, "file");
    const movie = file.child("moov");
    if (movie === null) throw damagedVideo();
    const track = movie.children("trak").find((each) => each.at("mdia", "hdlr")?.text(8) === "vide");
    if (track === undefined) throw noPictures();
    if (movie.child("mvex") !== null)
      throw new RequestError(
        "videos: the video is a fragmented MP4, which is not read; convert it to a plain MP4 or WebM",
      );
    return readTrack(track, movie.need("mvhd"), bytes.length);
  } catch (error) {
    // The file ends before what its boxes claim.
    if (error instanceof RangeError) throw damagedVideo(error);
    throw error;
  }
}

function readTrack(track: Box, movie: Box, fileBytes: number): Track {
  const [header, media] = [track.need("tkhd"), track.need("mdia", "mdhd")];
  const table = track.need("mdia", "minf", "stbl");
  const samples = samplesOf(table);
  if (samples.some(({ offset, size }) => offset + size > fileBytes)) throw damagedVideo();
  const isLong = media.u8(0) === 1;
  const [scale, duration] = isLong
    ? [media.u32(20), media.u32(24) * 2 ** 32 + media.u32(28)]
    : [media.u32(12), media.u32(16)];
  // The first two numbers of the matrix: the direction of a row.
  const matrix = header.u8(0) === 1 ? 52 : 40;
  const [a, b] = [header.i32(matrix), header.i32(matrix + 4)];
  const turns = b > 0 ? 1 : b < 0 ? 3 : a < 0 ? 2 : 0;
  const { start, end } = editOf(track.at("edts", "elst"), scale / movie.u32(movie.u8(0) === 1 ? 20 : 12));
  if (samples.some(({ time }) => time >= end)) throw cutVideo();
  return { ...codecOf(table.need("stsd")), fps: (samples.length * scale) / duration, start, turns, samples };
}

/** The times between which samples are shown; ``scale``: units of the track for one of the movie. */
function editOf(list: Box | null, scale: number): { readonly start: number; readonly end: number } {
  const isLong = list?.u8(0) === 1;
  const edits = Array.from({ length: list?.u32(4) ?? 0 }, (_, row) => {
    const at = 8 + row * (isLong ? 20 : 12);
    const number = (from: number): number => Number(list?.i32(from));
    const [duration, start] = isLong
      ? [number(at) * 2 ** 32 + (number(at + 4) >>> 0), number(at + 8) * 2 ** 32 + (number(at + 12) >>> 0)]
      : [number(at) >>> 0, number(at + 4)];
    return { duration, start, speed: number(at + (isLong ? 16 : 8)) };
  });
  // An edit without a start delays those that follow it.
  const [edit, ...others] = edits.filter(({ start }) => start !== -1);
  if (edit === undefined) return { start: -Infinity, end: Infinity };
  if (others.length > 0 || edit.speed !== 0x10000) throw cutVideo();
  return { start: edit.start, end: edit.duration === 0 ? Infinity : edit.start + edit.duration * scale };
}

const cutVideo = (): RequestError =>
  new RequestError("videos: the video is edited without being encoded again, which is not read; export it again");

function samplesOf(table: Box): readonly Sample[] {
  const sizes = table.need("stsz");
  const count = sizes.u32(8);
  // Samples of the same size have no bytes in this table, so a short file can claim billions.
  if (count > MAX_SAMPLES) throw new RequestError(`videos: the video has more than ${MAX_SAMPLES} frames; cut it`);
  const [same, times, keys] = [sizes.u32(4), table.need("stts"), table.child("stss")];
  const isKey = keys === null ? null : new Set(Array.from({ length: keys.u32(4) }, (_, row) => keys.u32(8 + row * 4)));
  const shifts = table.child("ctts");
  const timeOf = runs(times, (at) => times.u32(at));
  const shiftOf = shifts === null ? null : runs(shifts, (at) => shifts.i32(at));
  const chunks = table.child("stco") ?? table.need("co64");
  const offsetOf = (chunk: number): number =>
    chunks.type === "stco"
      ? chunks.u32(8 + chunk * 4)
      : chunks.u32(8 + chunk * 8) * 2 ** 32 + chunks.u32(12 + chunk * 8);
  const groups = table.need("stsc");
  const samples: Sample[] = [];
  let [time, group] = [0, 0];
  for (let chunk = 0; chunk < chunks.u32(4) && samples.length < count; chunk++) {
    if (group + 1 < groups.u32(4) && groups.u32(8 + (group + 1) * 12) === chunk + 1) group++;
    let offset = offsetOf(chunk);
    for (let index = 0; index < groups.u32(12 + group * 12) && samples.length < count; index++) {
      const number = samples.length;
      const size = same === 0 ? sizes.u32(12 + number * 4) : same;
      const shown = time + (shiftOf?.() ?? 0);
      samples.push({ time: shown, offset, size, isKey: isKey?.has(number + 1) ?? true });
      offset += size;
      time += timeOf();
    }
  }
  return samples;
}

/** The next value of a table of (count, value). */
function runs(table: Box, valueAt: (at: number) => number): () => number {
  let [row, left] = [-1, 0];
  return () => {
    while (left === 0 && row + 1 < table.u32(4)) left = table.u32(8 + ++row * 8);
    left--;
    return valueAt(12 + row * 8);
  };
}

function codecOf(descriptions: Box): Pick<Track, "codec" | "description"> {
  // The entry has 86 bytes before its boxes.
  const entry = new Box(descriptions.bytes.subarray(8), "stsd").all()[0];
  const settings = (name: string): Uint8Array | null =>
    entry === undefined ? null : (new Box(entry.bytes.subarray(78), entry.type).child(name)?.bytes ?? null);
  const [avc, hevc, av1, vp9] = ["avcC", "hvcC", "av1C", "vpcC"].map(settings);
  if (avc) return { codec: avcName(avc), description: avc };
  if (hevc) return { codec: hevcName(hevc), description: hevc };
  if (av1) return { codec: av1Name(av1), description: av1 };
  if (vp9) return { codec: vp9Name(vp9[4] ?? 0, vp9[5] ?? 0, (vp9[6] ?? 0) >> 4), description: null };
  throw new RequestError(
    `videos: the video has the codec ${entry?.type ?? "of nothing"}, which is not read; convert it to H.264 or VP9`,
  );
}

class Box {
  readonly #view: DataView;

  constructor(
    readonly bytes: Uint8Array,
    readonly type: string,
  ) {
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  u8 = (at: number): number => this.#view.getUint8(at);
  u32 = (at: number): number => this.#view.getUint32(at);
  i32 = (at: number): number => this.#view.getInt32(at);
  text = (at: number): string => String.fromCharCode(...Array.from({ length: 4 }, (_, index) => this.u8(at + index)));

  all(): readonly Box[] {
    const boxes: Box[] = [];
    for (let at = 0; at + 8 <= this.bytes.length;) {
      const short = this.u32(at);
      const head = short === 1 ? 16 : 8;
      const size = short === 1 ? this.u32(at + 8) * 2 ** 32 + this.u32(at + 12) : short || this.bytes.length - at;
      if (size < head || at + size > this.bytes.length) throw damagedVideo();
      boxes.push(new Box(this.bytes.subarray(at + head, at + size), this.text(at + 4)));
      at += size;
    }
    return boxes;
  }

  children = (type: string): readonly Box[] => this.all().filter((each) => each.type === type);
  child = (type: string): Box | null => this.children(type)[0] ?? null;

  at(...path: readonly string[]): Box | null {
    const [type, ...rest] = path;
    return type === undefined ? this : (this.child(type)?.at(...rest) ?? null);
  }

  need(...path: readonly string[]): Box {
    const found = this.at(...path);
    if (found === null) throw damagedVideo();
    return found;
  }
}
