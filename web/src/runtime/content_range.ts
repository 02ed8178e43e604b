// The Content-Range header of a partial response: the bytes of the file that it contains. RFC 9110, section 14.4.

/**
 * From byte ``start`` to byte ``end``, both included. ``size``: of the entire file in bytes; null if the server does
 * not know it.
 */
export interface ContentRange {
  readonly start: number;
  readonly end: number;
  readonly size: number | null;
}

/** Null if the header is not a single range of bytes. */
export function parseContentRange(header: string): ContentRange | null {
  const match = /^\s*bytes\s+(\d+)-(\d+)\/(\d+|\*)\s*$/i.exec(header);
  if (match === null) return null;
  const [start, end] = [Number(match[1]), Number(match[2])];
  const size = match[3] === "*" ? null : Number(match[3]);
  return start <= end && (size === null || end < size) ? { start, end, size } : null;
}
