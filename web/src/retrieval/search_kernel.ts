// The WGSL of exact search. One workgroup scores GROUP_SLOTS vectors, sorts them, and writes its best ones, so that the
// host only merges a short list of each workgroup.

import type { VectorType } from "./vectors.js";

export const THREADS = 256;
/** The slots that a workgroup sorts, a power of two. Scores and slots take 8 KiB of the 16 KiB that every device has. */
export const GROUP_SLOTS = 1024;
/** The same word of this many vectors lies side by side, so that neighbouring threads read neighbouring words. */
export const BLOCK_SLOTS = 64;

const DOT: Readonly<Record<VectorType, string>> = {
  float16: "sum += dot(unpack2x16float(word), vec2f(query[2u * i], query[2u * i + 1u]));",
  int8: `sum += dot(
        unpack4x8snorm(word),
        vec4f(query[4u * i], query[4u * i + 1u], query[4u * i + 2u], query[4u * i + 3u]));`,
};

/**
 * Bindings: ``params``; ``rows`` in blocks of BLOCK_SLOTS vectors; ``scales``, negative for removed vectors; ``query``,
 * padded with zeros to whole words; ``found``, ``params.count`` pairs of a score's bits and a slot for each workgroup.
 */
export function searchKernel(type: VectorType): string {
  return `
struct Params { words: u32, slots: u32, first_slot: u32, count: u32, first_group: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(3) var<storage, read> query: array<f32>;
@group(0) @binding(4) var<storage, read_write> found: array<vec2u>;

const LEAST = -3.0e38;
var<workgroup> scores: array<f32, ${GROUP_SLOTS}>;
var<workgroup> slots: array<u32, ${GROUP_SLOTS}>;

fn is_before(a: u32, b: u32) -> bool {
  return scores[a] > scores[b] || (scores[a] == scores[b] && slots[a] < slots[b]);
}

@compute @workgroup_size(${THREADS})
fn search(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) group: vec3u) {
  for (var own = thread; own < ${GROUP_SLOTS}u; own += ${THREADS}u) {
    let slot = group.x * ${GROUP_SLOTS}u + own;
    var score = LEAST;
    if (slot < params.slots && scales[slot] >= 0.0) {
      let start = (slot / ${BLOCK_SLOTS}u) * params.words * ${BLOCK_SLOTS}u + slot % ${BLOCK_SLOTS}u;
      var sum = 0.0;
      for (var i = 0u; i < params.words; i++) {
        let word = rows[start + i * ${BLOCK_SLOTS}u];
        ${DOT[type]}
      }
      score = sum * scales[slot];
    }
    scores[own] = score;
    slots[own] = params.first_slot + slot;
  }
  workgroupBarrier();
  // Bitonic sort (Batcher 1968), the best first.
  for (var size = 2u; size <= ${GROUP_SLOTS}u; size *= 2u) {
    for (var stride = size / 2u; stride > 0u; stride /= 2u) {
      for (var pair = thread; pair < ${GROUP_SLOTS / 2}u; pair += ${THREADS}u) {
        let low = 2u * pair - (pair & (stride - 1u));
        let high = low + stride;
        if (is_before(low, high) != ((low & size) == 0u)) {
          let score = scores[low];
          scores[low] = scores[high];
          scores[high] = score;
          let slot = slots[low];
          slots[low] = slots[high];
          slots[high] = slot;
        }
      }
      workgroupBarrier();
    }
  }
  let start = (params.first_group + group.x) * params.count;
  for (var rank = thread; rank < params.count; rank += ${THREADS}u) {
    found[start + rank] = vec2u(bitcast<u32>(scores[rank]), slots[rank]);
  }
}
`;
}
