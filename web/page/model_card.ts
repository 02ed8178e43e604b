// The card of a model: its properties, and its state on this device.

import type { BundleFacts } from "./bundle_facts.js";
import { factList, make } from "./elements.js";
import { formatBytes } from "../src/format_bytes.js";
import { formatCount, formatDispatches, formatParameters } from "./format.js";
import type { EngineInfo, SelfTestInfo } from "./model.js";
import type { Near } from "./near_notice.js";

/** ``facts`` is null if the page could not read the manifest. */
export function modelCard(info: EngineInfo, facts: BundleFacts | null): readonly HTMLElement[] {
  return [
    ...nameAndFacts(info, facts),
    make("h3", "", "On this device"),
    factList([
      ["Adapter", info.adapter],
      ["Activations", info.activation],
      ["Per token", formatDispatches(info.dispatchesPerToken)],
      ["Kernels", info.kernels === null ? null : formatCount(info.kernels)],
      ["Self-test", describeSelfTest(info.selfTest)],
    ]),
    memoryBar(info),
  ];
}

/** The card of a model that is not on this device. */
export function bundleCard(facts: BundleFacts | null, near: Near["state"]): readonly HTMLElement[] {
  const why = near === "loading" ? "The model is still loading." : "The model did not load, so the server answers.";
  return [
    ...(facts === null ? [] : nameAndFacts(facts, facts)),
    make("h3", "", "On this device"),
    make("p", "help", why),
  ];
}

function nameAndFacts(
  {
    model,
    quantization,
    context,
    downloadBytes,
  }: Pick<BundleFacts, "model" | "quantization" | "context" | "downloadBytes">,
  facts: BundleFacts | null,
): readonly HTMLElement[] {
  return [
    make("h3", "name", model),
    factList([
      ["Parameters", facts === null ? null : formatParameters(facts.parameters)],
      ["Layers", facts === null ? null : formatCount(facts.layers)],
      ["Quantization", quantization],
      ["Context", `${formatCount(context)} tokens`],
      ["Download", formatBytes(downloadBytes)],
      ["License", facts?.license ?? null],
    ]),
  ];
}

/** A model in one line. A narrow page shows only its name. */
export function modelLine({
  model,
  quantization,
  downloadBytes,
}: Pick<BundleFacts, "model" | "quantization" | "downloadBytes">): readonly Node[] {
  return [make("span", "", model), make("span", "wide", ` · ${quantization} · ${formatBytes(downloadBytes)}`)];
}

export function describeSelfTest({ state, switchedOff, largestDeviation }: SelfTestInfo): string {
  const name = state.replaceAll("-", " ");
  const deviation = largestDeviation === null ? "" : `, off by at most ${(100 * largestDeviation).toPrecision(2)}%`;
  return switchedOff.length === 0 ? `${name}${deviation}` : `${name}${deviation}: ${switchedOff.join(", ")}`;
}

/** A bar with the parts of the model's memory. */
export function memoryBar({
  weightBytes,
  stateBytes,
  totalBytes,
}: Pick<EngineInfo, "weightBytes" | "stateBytes" | "totalBytes">): HTMLElement {
  const parts = [
    ["weights", "Weights", weightBytes],
    ["state", "Keys and values", stateBytes],
    ["rest", "Working memory", totalBytes - weightBytes - stateBytes],
  ] as const;
  const bar = make("div", "stack");
  bar.setAttribute("aria-hidden", "true");
  const legend = make("ul", "legend");
  for (const [key, label, bytes] of parts) {
    const part = make("span", key);
    part.style.flexGrow = String(bytes);
    bar.append(part);
    legend.append(make("li", key, make("span", "", label), make("span", "number", formatBytes(bytes))));
  }
  return make(
    "div",
    "memory",
    make("p", "row", make("span", "", "Total memory"), make("strong", "number", formatBytes(totalBytes))),
    bar,
    legend,
  );
}
