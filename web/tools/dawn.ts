// Dawn, Chrome's WebGPU, in Node. The functions return the equivalent of navigator.gpu in a browser.

import { create } from "webgpu";

// With this extension SwiftShader zeroes a kernel's workgroup memory with one store per element, so a kernel with large
// tiles compiles for minutes. Without it, Dawn adds a loop to the kernel, which zeroes the memory too.
const WITHOUT_ZEROING = "disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension";

// Dawn crashes if its instance is garbage-collected before its devices, so the instances are retained here.
const instances: GPU[] = [];

const SLEEP_MS = 0.2;
const never = new Int32Array(new SharedArrayBuffer(4));
const immediately = globalThis.setImmediate;

/**
 * While a promise is pending, Dawn asks again and again, in an immediate callback, whether it has resolved. Let this
 * thread sleep before each such callback, as a page's thread does: otherwise it would take a core from a driver that
 * computes on the CPU, and its processor time would be that of waiting.
 */
function sleepWhileWaiting(): void {
  const sleepsFirst = (call: (...given: unknown[]) => void, ...given: unknown[]): NodeJS.Immediate =>
    immediately(() => {
      Atomics.wait(never, 0, 0, SLEEP_MS);
      call(...given);
    });
  Object.defineProperty(globalThis, "setImmediate", { value: sleepsFirst, configurable: true, writable: true });
}

/** ``options`` such as "backend=null". */
export function dawn(...options: string[]): GPU {
  sleepWhileWaiting();
  return retained([WITHOUT_ZEROING, ...options]);
}

/** With all features, as a browser runs on a GPU: for measurements. */
export function dawnForGpu(): GPU {
  return retained([]);
}

function retained(options: string[]): GPU {
  const gpu = create(options);
  instances.push(gpu);
  return gpu;
}
