// Shows a `BenchResult` as tables and plots.

import type { Agreement } from "./agreement.js";
import { median } from "./count_calls.js";
import { factList, make } from "./elements.js";
import { formatBytes } from "../src/format_bytes.js";
import { formatCount, formatMs, formatParameters, formatSpeed } from "./format.js";
import { memoryBar } from "./model_card.js";
import { plotDecode } from "./plot.js";
import type { BenchResult, LoadTimes } from "./run_bench.js";

const COUNTS = {
  dispatches: "Dispatches",
  passes: "Compute passes",
  submits: "Submits",
  write_buffers: "Buffer writes",
  buffers: "New buffers",
  bind_groups: "New bind groups",
  bytes_read_back: "Bytes read back",
} as const;

export function resultCards(result: BenchResult): readonly HTMLElement[] {
  const { device, load, prefill, prefill_chunk, decode, memory_bytes, bundle } = result;
  const { weights: weightBytes, keys_and_values: stateBytes, total: totalBytes } = memory_bytes;
  const left = [
    card(
      "Load",
      lanes(load.cold, load.warm),
      factList([
        ["Over the network", `${formatBytes(load.cold.bytes)} in ${formatMs(load.cold.download_ms)}`],
        ["Kernels compiled in", formatMs(load.cold.compile_ms)],
        ["Host time to write the weights", formatMs(load.cold.upload_ms)],
      ]),
    ),
    decode.length === 0
      ? card(
          "Writing answers",
          make("p", "quiet", "The model ended every answer at once, so there is nothing to time."),
        )
      : card(
          "Writing answers",
          decodePlot(result),
          table(
            ["After", "Median token", "Tokens/s"],
            decode.map((row, index) => [
              make("span", `key series-${index}`, `${formatCount(row.prompt_tokens)} tokens`),
              formatMs(median(row.milliseconds)),
              formatSpeed(row.tokens_per_second),
            ]),
          ),
        ),
    card(
      "This device",
      factList([
        ["Adapter", device.adapter],
        ["Activations", device.activation],
        ["Model", `${bundle.model}, ${formatParameters(bundle.parameters)} parameters, ${bundle.quantization}`],
        ["Reference", describeAgreement(result.agreement)],
        ["Self-test", result.self_test],
      ]),
    ),
  ];
  const right = [
    card(
      "Reading prompts",
      table(
        ["Prompt", "First token", "Tokens/s"],
        prefill.map((row) => [
          `${formatCount(row.prompt_tokens)} tokens`,
          formatMs(row.time_to_first_token_ms),
          formatSpeed(row.tokens_per_second),
        ]),
      ),
      factList([["Tokens in a step", formatCount(prefill_chunk)]]),
    ),
    card(
      "Calls of a token",
      result.per_token === null ? make("p", "quiet", "Not counted.") : countTable(result.per_token),
    ),
    card("Memory", memoryBar({ weightBytes, stateBytes, totalBytes })),
  ];
  const columns = [make("div", "column", ...left), make("div", "column", ...right)];
  return device.runs_on_cpu ? [notice(device.adapter), tiles(result), ...columns] : [tiles(result), ...columns];
}

export function describeAgreement(agreement: Agreement): string {
  switch (agreement.reference) {
    case "none":
      return "the bundle has no reference";
    case "self_test":
    case "expected":
      return `${agreement.agreed} of ${agreement.checked} tokens agree`;
    default:
      return agreement satisfies never;
  }
}

function notice(adapter: string): HTMLElement {
  return make(
    "p",
    "notice",
    `${adapter} computes on the CPU. The counts and the agreement are valid, but the times do not apply to a GPU.`,
  );
}

function tiles({ load, prefill, decode, agreement }: BenchResult): HTMLElement {
  const row = make("ul", "tiles");
  const tile = (value: string, unit: string, label: string): void => {
    row.append(
      make(
        "li",
        "",
        make("p", "value", make("span", "number", value), " ", make("span", "unit", unit)),
        make("p", "label", label),
      ),
    );
  };
  const fastest = decode[0];
  if (fastest !== undefined)
    tile(formatSpeed(fastest.tokens_per_second), "tokens/s", `writing, after ${fastest.prompt_tokens} tokens`);
  const shortest = prefill[0];
  if (shortest !== undefined)
    tile(...split(formatMs(shortest.time_to_first_token_ms)), `to the first token of ${shortest.prompt_tokens}`);
  tile(...split(formatMs(load.cold.total_ms)), `to load, ${formatMs(load.warm.total_ms)} again`);
  if (agreement.reference === "none") tile("none", "", "reference to compare with");
  else tile(`${agreement.agreed}/${agreement.checked}`, "", "tokens equal the reference");
  return row;
}

/** "179 ms" -> value and unit. */
function split(text: string): [string, string] {
  const [value = "", unit = ""] = text.split(" ");
  return [value, unit];
}

/** Both loads on one scale: the manifest, then download and kernels side by side, then the rest. */
function lanes(cold: LoadTimes, warm: LoadTimes): HTMLElement {
  const chart = make("div", "lanes");
  chart.setAttribute("role", "img");
  chart.setAttribute("aria-label", `First load ${formatMs(cold.total_ms)}, second load ${formatMs(warm.total_ms)}`);
  const scale = 100 / Math.max(cold.total_ms, warm.total_ms);
  for (const [label, times] of [
    ["First", cold],
    ["Again", warm],
  ] as const) {
    const lane = make("div", "lane");
    const part = (className: string, start: number, length: number): void => {
      const bar = make("span", className);
      bar.style.left = `${start * scale}%`;
      bar.style.width = `${Math.max(0.4, length * scale)}%`;
      lane.append(bar);
    };
    part("whole", 0, times.total_ms);
    part("download", times.manifest_ms, times.download_ms);
    part("compile", times.manifest_ms, times.compile_ms);
    chart.append(make("span", "", label), lane, make("span", "number", formatMs(times.total_ms)));
  }
  const legend = make(
    "ul",
    "keys",
    ...(["download", "compile", "whole"] as const).map((key) =>
      make("li", key, { download: "Download", compile: "Kernels", whole: "Total" }[key]),
    ),
  );
  return make("div", "", chart, legend);
}

function decodePlot({ decode }: BenchResult): HTMLElement {
  const holder = make("div", "holder");
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry?.contentRect.width ?? 0);
    if (width > 0) holder.replaceChildren(plotDecode(decode, width));
  }).observe(holder);
  return make("figure", "", make("figcaption", "quiet", "Milliseconds of each token"), holder);
}

function countTable(counts: NonNullable<BenchResult["per_token"]>): HTMLElement {
  const keys = Object.keys(COUNTS) as (keyof typeof COUNTS)[];
  return factList(keys.map((key) => [COUNTS[key], formatCount(counts[key])]));
}

function card(title: string, ...content: HTMLElement[]): HTMLElement {
  return make("section", "card", make("h2", "", title), ...content);
}

function table(head: readonly string[], rows: readonly (readonly (string | Node)[])[]): HTMLTableElement {
  const heading = make("tr", "", ...head.map((text) => Object.assign(make("th", "", text), { scope: "col" })));
  const body = rows.map((cells) => make("tr", "", ...cells.map((cell) => make("td", "", cell))));
  return make("table", "", make("thead", "", heading), make("tbody", "", ...body));
}
