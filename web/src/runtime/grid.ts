// Workgroup counts. A kernel's grid flows in, what dispatchWorkgroups takes flows out.

/** No device takes more workgroups along one axis without being asked (W3C, WebGPU, 3.6.2). */
export const MAX_WORKGROUPS = 65_535;

export type Workgroups = readonly [x: number, y: number, z: number];

/** Lay x times y workgroups out; an x beyond the limit spills into z, where kernels count z * gridDim.x + x. Null where there is nothing to do. */
export function workgroups(x: number, y: number): Workgroups | null {
  if (x === 0 || y === 0) return null;
  if (x <= MAX_WORKGROUPS) return [x, y, 1];
  return [MAX_WORKGROUPS, y, Math.ceil(x / MAX_WORKGROUPS)];
}
