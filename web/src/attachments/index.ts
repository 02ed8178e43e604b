// Attachments of messages as texts in their places: files of text, and transcripts of recordings. This is a separate file,
// attachments.js, which an engine imports with the first message that has one, and a router with the first file.

import type { ChatCompletionContentPart, ChatCompletionMessageParam, SoundTranscript } from "../api/types.js";
import type { SoundSource, Transcribe, Transcript } from "../audio/index.js";
import { NearfarError, RequestError, messageOf } from "../errors.js";
import type { Media } from "../shared/decision/media.js";
import { BOUNDS, fileMarks, openFile, requireFew, transcriptText, unheard } from "../shared/attachments.js";

const NO_TRANSCRIBER = "leave it out, or load the engine with the option transcriber, an engine of a Whisper";

/** The most transcripts that are retained, so that a conversation's next turn does not make them again. */
const MOST_HEARD = 64;

export interface Ears {
  /** What the model itself reads. */
  readonly senses?: { readonly sees: boolean; readonly hears: boolean } | undefined;
  /** Writes down what is said in recordings of a chat; not defined if nothing does. */
  readonly transcribe?: Transcribe | undefined;
  /** What it has heard, by the hashes of the sounds. */
  readonly heard?: Map<string, Pick<Transcript, "text" | "language" | "duration">> | undefined;
}

interface Reading extends Ears {
  readonly signal: AbortSignal | undefined;
  readonly transcripts: SoundTranscript[];
}

export interface AttachmentTexts {
  readonly messages: readonly ChatCompletionMessageParam[];
  /** Adds the transcripts to the first chunk of an answer. */
  readonly report: <T extends object>(chunks: AsyncIterable<T>) => AsyncIterable<T>;
}

/**
 * Recordings that the model itself hears become parts of the type "audio". Throws RequestError, which names the part, the
 * errors of the transcriber, or the signal's reason.
 */
export async function attachmentsAsText(
  messages: readonly ChatCompletionMessageParam[],
  ears: Ears,
  signal: AbortSignal | undefined,
): Promise<AttachmentTexts> {
  requireFew("files", countOf(messages, isFile));
  requireFew("sounds", countOf(messages, isSound));
  const read: ChatCompletionMessageParam[] = [];
  const transcripts: SoundTranscript[] = [];
  // One after the other: the transcriber computes one at a time anyway.
  for (const [index, message] of messages.entries())
    read.push(await withTexts(message, `messages[${index}]`, { ...ears, signal, transcripts }));
  return {
    messages: read,
    report: (chunks) => (transcripts.length > 0 ? withTranscripts(chunks, transcripts) : chunks),
  };
}

export interface FileTexts {
  readonly messages: readonly ChatCompletionMessageParam[];
  /** The files that became texts. */
  readonly media: readonly Media[];
}

/**
 * The messages with texts in the places of their files of text, for a router, which searches and compares texts. Any other
 * file stays, for a side that reads it, or refuses it by name. Throws RequestError for too many files.
 */
export function filesAsText(given: readonly ChatCompletionMessageParam[]): FileTexts {
  requireFew("files", countOf(given, isFile));
  const media: Media[] = [];
  const messages = given.map((message, index) => {
    const { content } = message;
    if (!Array.isArray(content)) return message;
    const parts = (content as readonly ChatCompletionContentPart[]).map((part, at) => {
      if (!isFile(part)) return part;
      try {
        const text = filePart(part, `messages[${index}].content[${at}]`);
        media.push({ kind: "text", message: index, part: at });
        return text;
      } catch (error) {
        if (!(error instanceof RequestError)) throw error;
        return part;
      }
    });
    return { ...message, content: parts };
  });
  return { messages, media };
}

async function* withTranscripts<T extends object>(
  chunks: AsyncIterable<T>,
  transcripts: SoundTranscript[],
): AsyncGenerator<T, void, undefined> {
  let added: object = { transcripts };
  for await (const chunk of chunks) {
    yield { ...chunk, ...added };
    added = {};
  }
}

const typeOf = (part: unknown): unknown => (Object(part) as { readonly type?: unknown }).type;
const isFile = (part: unknown): boolean => typeOf(part) === "file";
const isSound = (part: unknown): boolean => ["input_audio", "audio"].includes(String(typeOf(part)));

function countOf(messages: readonly ChatCompletionMessageParam[], isKind: (part: unknown) => boolean): number {
  return messages.reduce((sum, { content }) => sum + (Array.isArray(content) ? content.filter(isKind).length : 0), 0);
}

async function withTexts(
  message: ChatCompletionMessageParam,
  where: string,
  reading: Reading,
): Promise<ChatCompletionMessageParam> {
  if (!Array.isArray(message.content)) return message;
  const content: ChatCompletionContentPart[] = [];
  for (const [index, part] of (message.content as readonly ChatCompletionContentPart[]).entries()) {
    const at = `${where}.content[${index}]`;
    if (isFile(part)) content.push(filePart(part, at));
    else if (isSound(part) && reading.senses?.hears === true)
      content.push({ type: "audio", audio: sourceOf(part, at) });
    else if (isSound(part)) content.push({ type: "text", text: await soundText(part, at, reading) });
    else content.push(part);
  }
  return { ...message, content };
}

type File = NonNullable<ChatCompletionContentPart["file"]>;

function filePart({ file }: ChatCompletionContentPart, where: string): ChatCompletionContentPart {
  return { type: "text", text: fileText(Object(file) as File, `${where}.file`) };
}

function fileText({ filename, file_data: data }: File, where: string): string {
  if (typeof (filename ?? "") !== "string" || typeof (data ?? "") !== "string")
    throw refused(where, "has no texts for filename and file_data");
  const { name, start } = openFile(filename ?? null, data?.slice(0, 1024) ?? null, where);
  const bytes = bytesOf(data?.slice(start) ?? "", where);
  let text: string | null = null;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    // It has another encoding, or is none.
  }
  const head = String.fromCharCode(...bytes.subarray(0, 16));
  const isText = text?.includes("\0") === false;
  const [before, after] = fileMarks(name, { bytes: bytes.length, start: head, isText }, where);
  return before + String(text) + after;
}

async function soundText(part: ChatCompletionContentPart, where: string, reading: Reading): Promise<string> {
  const { transcribe, heard, signal, transcripts } = reading;
  if (transcribe === undefined) throw unheard(where, NO_TRANSCRIBER);
  const source = sourceOf(part, where);
  try {
    const key = heard && (await keyOf(source));
    const { text, language, duration } =
      heard?.get(key ?? "") ?? (await transcribe(source, { maxSeconds: BOUNDS.sound_seconds, signal }));
    if (heard && key) {
      heard.delete(key);
      heard.set(key, { text, language, duration });
      const [oldest = ""] = heard.keys();
      if (heard.size > MOST_HEARD) heard.delete(oldest);
    }
    transcripts.push({ param: where, text, language, seconds: duration });
    return transcriptText(text);
  } catch (error) {
    signal?.throwIfAborted();
    if (!(error instanceof NearfarError) || error.code !== "request_error") throw error;
    throw new RequestError(`${where}: ${messageOf(error)}`, { ...error.details, param: where }, { cause: error });
  }
}

/** The hash of a file or of the samples of one channel; null for others. */
async function keyOf(source: Exclude<SoundSource, string | URL>): Promise<string | null> {
  const { samples, sampleRate = "" } = source as { readonly samples?: unknown; readonly sampleRate?: number };
  const data = source instanceof Blob ? await source.arrayBuffer() : samples instanceof Float32Array ? samples : source;
  if (!(data instanceof ArrayBuffer) && !ArrayBuffer.isView(data)) return null;
  const digest = await crypto.subtle.digest("SHA-256", data as BufferSource);
  return `${String.fromCharCode(...new Uint8Array(digest))}${sampleRate}`;
}

function sourceOf(
  part: ChatCompletionContentPart,
  where: string,
): NonNullable<ChatCompletionContentPart["audio"]> | Uint8Array {
  const source = part.type === "audio" ? part.audio : soundOf(part, `${where}.input_audio`);
  if (source === undefined) throw refused(where, "has no sound; send input_audio");
  return source;
}

function soundOf({ input_audio: sound }: ChatCompletionContentPart, where: string): Uint8Array {
  const { data, format } = Object(sound) as { readonly data?: unknown; readonly format?: unknown };
  if (typeof data !== "string" || !["wav", "mp3"].includes(String(format)))
    throw refused(where, 'needs data in base64 and a format: "wav" or "mp3"');
  const bytes = bytesOf(data, where);
  if (bytes.length > BOUNDS.sound_bytes)
    throw refused(where, `has ${bytes.length} bytes; at most ${BOUNDS.sound_bytes} are read; send a part of it`);
  return bytes;
}

/** Of complete base64, as the server reads it. */
function bytesOf(base64: string, where: string): Uint8Array<ArrayBuffer> {
  if (base64.length % 4 > 0 || /[^A-Za-z0-9+/=]/.test(base64))
    throw refused(where, "has data that is not base64; send all of it");
  try {
    return Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0));
  } catch (error) {
    throw refused(where, `has data that is not base64: ${messageOf(error)}; send all of it`);
  }
}

function refused(where: string, problem: string): RequestError {
  return new RequestError(`${where} ${problem}`, { param: where });
}
