// The kernels of the letters bundle, by hand.

const UNIFORM = "struct U { S: i32, last: u32 }";
export const EMBED = `${UNIFORM}
@group(0) @binding(0) var<storage, read> t: array<f32>;
@group(0) @binding(1) var<storage, read> ids: array<i32>;
@group(0) @binding(2) var<storage, read> sampled: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> u: U;
@compute @workgroup_size(8) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>) {
  if (i32(g.y) >= u.S) { return; }
  var id = ids[g.y];
  if (id < 0) { id = sampled[-1 - id]; }
  y[g.y * 8u + l.x] = t[u32(id) * 8u + l.x];
}`;
export const TAKE_ROWS = `${UNIFORM}
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> rows: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<uniform> u: U;
@compute @workgroup_size(8) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>) {
  if (i32(g.y) >= u.S) { return; }
  y[g.y * 8u + l.x] = x[u32(rows[g.y]) * 8u + l.x];
}`;
export const COPY = `${UNIFORM}
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> u: U;
@compute @workgroup_size(8) fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>) {
  if (i32(g.y) >= u.S) { return; }
  y[g.y * 8u + l.x] = x[g.y * 8u + l.x];
}`;
export const SAMPLE = `${UNIFORM}
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> slots: array<i32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> settings: array<f32>;
@group(0) @binding(4) var<storage, read_write> sampled: array<i32>;
@group(0) @binding(5) var<storage, read_write> y: array<i32>;
@group(0) @binding(6) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(7) var<uniform> u: U;
fn adjusted(row: u32, i: u32) -> f32 {
  let slot = slots[row * 2u];
  if ((slots[row * 2u + 1u] & 2) != 0) { return logits[row * 8u + i] + bias[u32(slot) * 8u + i]; }
  return logits[row * 8u + i];
}
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) g: vec3<u32>) {
  if (g.x > u.last) { return; }
  var best = 0u;
  var sum = 0.0;
  for (var i = 0u; i < 8u; i++) {
    if (adjusted(g.x, i) > adjusted(g.x, best)) { best = i; }
    sum += exp(logits[g.x * 8u + i]);
  }
  // At a flat temperature the draw alone chooses; others are ignored.
  if (settings[g.x * 8u] > 1e29) { best = u32(settings[g.x * 8u + 4u] * 8.0); }
  y[g.x] = i32(best);
  logprobs[g.x] = logits[g.x * 8u + best] - log(sum);
  if (slots[g.x * 2u] >= 0) { sampled[slots[g.x * 2u]] = i32(best); }
}`;
export const TOP = `${UNIFORM}
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> ids: array<i32>;
@group(0) @binding(2) var<storage, read_write> top: array<f32>;
@group(0) @binding(3) var<uniform> u: U;
@compute @workgroup_size(1) fn main(@builtin(workgroup_id) g: vec3<u32>) {
  if (g.x > u.last) { return; }
  for (var i = 0u; i < 8u; i++) {
    var rank = 0u;
    for (var j = 0u; j < 8u; j++) {
      let other = logits[g.x * 8u + j];
      if (other > logits[g.x * 8u + i] || (other == logits[g.x * 8u + i] && j < i)) { rank++; }
    }
    ids[g.x * 8u + rank] = i32(i);
    top[g.x * 8u + rank] = logits[g.x * 8u + i];
  }
}`;
