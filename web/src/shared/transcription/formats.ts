// Transcripts as files of subtitles: SubRip (SRT) and WebVTT (W3C 2019).

export interface Caption {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

/** Hours, minutes and seconds with milliseconds after a ``mark``; WebVTT may leave the hours out. */
function clock(seconds: number, mark: "," | "."): string {
  const total = Math.max(0, Math.round(seconds * 1000));
  const [hours, minutes] = [Math.floor(total / 3_600_000), Math.floor(total / 60_000) % 60];
  const rest = `${pad(Math.floor(total / 1000) % 60, 2)}${mark}${pad(total % 1000, 3)}`;
  const head = mark === "," || hours > 0 ? `${pad(hours, 2)}:` : "";
  return `${head}${pad(minutes, 2)}:${rest}`;
}

const pad = (value: number, size: number): string => String(value).padStart(size, "0");

/** A line of an empty text or an arrow would end a caption, or begin another. */
const onOneLine = (text: string): string =>
  text
    .trim()
    .replace(/\s*\n\s*/g, " ")
    .replaceAll("-->", "->");

export function asSrt(captions: readonly Caption[]): string {
  const blocks = captions.map(
    ({ start, end, text }, index) =>
      `${index + 1}\n${clock(start, ",")} --> ${clock(end, ",")}\n${onOneLine(text)}\n\n`,
  );
  return blocks.join("");
}

export function asVtt(captions: readonly Caption[]): string {
  const escaped = (text: string): string => onOneLine(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const blocks = captions.map(
    ({ start, end, text }) => `${clock(start, ".")} --> ${clock(end, ".")}\n${escaped(text)}\n\n`,
  );
  return `WEBVTT\n\n${blocks.join("")}`;
}
