// WebGPU without a GPU: drivers that compute on the CPU, by what an adapter says of itself.

export function runsOnCpu(adapter: string): boolean {
  return /swiftshader|llvmpipe|lavapipe|basic render|software|\bcpu\b/i.test(adapter);
}
