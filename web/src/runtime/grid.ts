// Converts a kernel's grid to the arguments of dispatchWorkgroups.

/** The default limit of workgroups along one axis (W3C, WebGPU, 3.6.2). */
export const MAX_WORKGROUPS = 65_535;

export type Workgroups = readonly [x: number, y: number, z: number];

/**
 * The arguments for x times y workgroups. If x exceeds the limit, z is used too, and kernels count z * gridDim.x + x.
 * Null if there is nothing to do.
 */
export function workgroups(x: number, y: number): Workgroups | null {
  if (x === 0 || y === 0) return null;
  if (x <= MAX_WORKGROUPS) return [x, y, 1];
  return [MAX_WORKGROUPS, y, Math.ceil(x / MAX_WORKGROUPS)];
}
