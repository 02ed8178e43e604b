// Dawn, Chrome's WebGPU, in Node. Its options flow in, what a browser calls navigator.gpu flows out.

import { create } from "webgpu";

// Dawn crashes when its instance is collected before its devices, and nothing in JavaScript ties the two together.
const kept: GPU[] = [];

/** ``options`` such as "backend=null". */
export function dawn(...options: string[]): GPU {
  const gpu = create(options);
  kept.push(gpu);
  return gpu;
}
