// Prints as JSON which adapter Dawn finds in Node: its name, its features, and whether it computes on the CPU. Prints
// null if there is none.
//
//     node dist/tools/adapter.js

import { runsOnCpu } from "../src/runtime/cpu_adapter.js";
import { dawn } from "./dawn.js";

async function main(): Promise<void> {
  const adapter = await dawn().requestAdapter({ powerPreference: "high-performance" });
  if (adapter === null) {
    console.log("null");
    return;
  }
  const { description, vendor, architecture, device, isFallbackAdapter } = adapter.info;
  const name = [description, vendor, architecture, device].filter((part) => part !== "").join(" ");
  const features = [...adapter.features].sort();
  console.log(JSON.stringify({ name, features, cpu: isFallbackAdapter || runsOnCpu(name) }));
}

main().then(
  // Dawn's threads would keep the process alive.
  () => process.exit(0),
  (error: unknown) => {
    console.error(error);
    process.exit(1);
  },
);
