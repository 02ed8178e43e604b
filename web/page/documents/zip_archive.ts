// The parts of a zip archive (PKWARE, APPNOTE.TXT), by the browser's own decompression. A part whose length or checksum
// is not the stated one is an error, and nothing is unpacked past a limit.

const END = { signature: 0x06054b50, bytes: 22, mostComment: 65_535 };
const ENTRY = { signature: 0x02014b50, bytes: 46 };
const LOCAL = { signature: 0x04034b50, bytes: 30 };
const STORED = 0;
const DEFLATED = 8;
/** Of a gzip file (RFC 1952) without a name. */
const GZIP_HEADER = Uint8Array.of(0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff);

interface Entry {
  readonly method: number;
  readonly crc: number;
  readonly packedBytes: number;
  readonly bytes: number;
  /** Of its own header. */
  readonly offset: number;
}

export class ZipArchive {
  readonly #bytes: Uint8Array<ArrayBuffer>;
  readonly #view: DataView;
  /** By names in lower case: parts of Office files are named in any case (ECMA-376, part 2). */
  readonly #entries = new Map<string, Entry>();

  /** Throws Error for a damaged archive. */
  constructor(bytes: Uint8Array<ArrayBuffer>) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let end = bytes.length - END.bytes;
    while (this.#view.getUint32(end, true) !== END.signature)
      if (--end < bytes.length - END.bytes - END.mostComment) throw new Error("the archive has no directory");
    let at = this.#view.getUint32(end + 16, true);
    for (let left = this.#view.getUint16(end + 10, true); left > 0; left--) at = this.#readEntry(at);
  }

  has(name: string): boolean {
    return this.#entries.has(name.toLowerCase());
  }

  /** Null for a part of more than ``mostBytes``. Throws Error for a damaged or missing one. */
  async read(name: string, mostBytes: number): Promise<Uint8Array | null> {
    const entry = this.#entries.get(name.toLowerCase());
    if (entry === undefined) throw new Error(`the archive has no ${name}`);
    if (entry.bytes > mostBytes) return null;
    this.#expect(LOCAL.signature, entry.offset);
    const start = entry.offset + LOCAL.bytes + this.#lengths(entry.offset + 26);
    const packed = this.#bytes.subarray(start, start + entry.packedBytes);
    if (entry.method === STORED && packed.length === entry.bytes) return packed;
    if (entry.method !== DEFLATED || packed.length !== entry.packedBytes) throw new Error(`${name} is damaged`);
    return await gunzipped(packed, entry);
  }

  /** The offset of the next entry. */
  #readEntry(at: number): number {
    const view = this.#view;
    this.#expect(ENTRY.signature, at);
    const nameAt = at + ENTRY.bytes;
    const nameBytes = view.getUint16(at + 28, true);
    const name = new TextDecoder().decode(this.#bytes.subarray(nameAt, nameAt + nameBytes));
    this.#entries.set(name.toLowerCase(), {
      method: view.getUint16(at + 10, true),
      crc: view.getUint32(at + 16, true),
      packedBytes: view.getUint32(at + 20, true),
      bytes: view.getUint32(at + 24, true),
      offset: view.getUint32(at + 42, true),
    });
    return nameAt + this.#lengths(at + 28) + view.getUint16(at + 32, true);
  }

  /** Of the name and of the extra fields. */
  #lengths(at: number): number {
    return this.#view.getUint16(at, true) + this.#view.getUint16(at + 2, true);
  }

  #expect(signature: number, at: number): void {
    if (this.#view.getUint32(at, true) !== signature) throw new Error("the archive is damaged");
  }
}

/** Deflated bytes are the body of a gzip file, whose end holds their checksum and length, which the browser checks. */
async function gunzipped(packed: Uint8Array<ArrayBuffer>, { crc, bytes }: Entry): Promise<Uint8Array> {
  const trailer = new DataView(new ArrayBuffer(8));
  trailer.setUint32(0, crc, true);
  trailer.setUint32(4, bytes, true);
  const gzip = new Blob([GZIP_HEADER, packed, trailer.buffer]).stream();
  const reader = gzip.pipeThrough(new DecompressionStream("gzip")).getReader();
  const unpacked = new Uint8Array(bytes);
  let length = 0;
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
    if (length + chunk.value.length > bytes) {
      await reader.cancel();
      throw new Error("a part is longer than it states");
    }
    unpacked.set(chunk.value, length);
    length += chunk.value.length;
  }
  return unpacked;
}
