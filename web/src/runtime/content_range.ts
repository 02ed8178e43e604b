// The Content-Range header of a partial answer: which bytes of the file it carries. RFC 9110, section 14.4.

/** From byte ``start`` to byte ``end``, both included; ``size`` of the whole file in bytes, null where the server does not know it. */
export interface ContentRange {
  readonly start: number;
  readonly end: number;
  readonly size: number | null;
}

/** null for what is not one range of bytes. */
export function parseContentRange(header: string): ContentRange | null {
  const found = /^\s*bytes\s+(\d+)-(\d+)\/(\d+|\*)\s*$/i.exec(header);
  if (found === null) return null;
  const [start, end] = [Number(found[1]), Number(found[2])];
  const size = found[3] === "*" ? null : Number(found[3]);
  return start <= end && (size === null || end < size) ? { start, end, size } : null;
}
