// Recognises WebGPU drivers that compute on the CPU by the name of the adapter.

export function runsOnCpu(adapter: string): boolean {
  return /swiftshader|llvmpipe|lavapipe|basic render|software|\bcpu\b/i.test(adapter);
}
