// The values of WebGPU's flags in the specification. The globals of the same names exist only in browsers, but the
// runtime also runs in Node.

export const BUFFER_USAGE = {
  MAP_READ: 0x01,
  COPY_SRC: 0x04,
  COPY_DST: 0x08,
  UNIFORM: 0x40,
  STORAGE: 0x80,
  QUERY_RESOLVE: 0x200,
} as const;
export const MAP_MODE = { READ: 0x01 } as const;
export const SHADER_STAGE = { COMPUTE: 0x04 } as const;
