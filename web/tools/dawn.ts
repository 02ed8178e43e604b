// Dawn, Chrome's WebGPU, in Node. The function returns the equivalent of navigator.gpu in a browser.

import { create } from "webgpu";

// Dawn crashes if its instance is garbage-collected before its devices, so the instances are retained here.
const instances: GPU[] = [];

/** ``options`` such as "backend=null". */
export function dawn(...options: string[]): GPU {
  const gpu = create(options);
  instances.push(gpu);
  return gpu;
}
