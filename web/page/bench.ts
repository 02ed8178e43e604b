// The bench page: measures the bundle that ?bundle= names (./bundle/ by default) on this device.

import { httpSource } from "../src/index.js";
import { resultCards } from "./bench_view.js";
import type { BundleFacts } from "./bundle_facts.js";
import { bundleOfAddress, fetchFacts } from "./bundle_facts.js";
import type { CallCounts } from "./count_calls.js";
import { element, make } from "./elements.js";
import { errorKind, explain } from "./explain.js";
import { measureDecode } from "./measure.js";
import { openModel } from "./model.js";
import { modelLine } from "./model_card.js";
import type { ProbeRound, RoundSizes } from "./probe_round.js";
import type { BenchResult, Depth, Step } from "./run_bench.js";
import { STEPS, countTokens, runBench } from "./run_bench.js";

declare global {
  interface Window {
    /** For benchmarks that run the page, and for the console. */
    nearfarBench?: {
      readonly run: (depth: Depth) => Promise<BenchResult>;
      readonly countsPerToken: () => Promise<CallCounts | null>;
      readonly probeRound: (sizes: RoundSizes) => Promise<ProbeRound>;
    };
  }
}

class Bench {
  readonly #run = element("run", HTMLButtonElement);
  readonly #stop = element("stop", HTMLButtonElement);
  #running = new AbortController();

  constructor(
    private readonly bundle: string,
    private readonly facts: BundleFacts,
  ) {
    element("model", HTMLElement).replaceChildren(...modelLine(facts));
    element("form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      const { value } = document.querySelector<HTMLInputElement>("input[name=depth]:checked") ?? { value: "quick" };
      // The page shows the error.
      this.run(value as Depth).catch(() => undefined);
    });
    this.#stop.addEventListener("click", () => {
      this.#running.abort();
    });
    this.#run.disabled = false;
    document.body.dataset.state = "ready";
  }

  /** Measure, and show the result or the error. */
  async run(depth: Depth): Promise<BenchResult> {
    this.#running = new AbortController();
    this.begin();
    try {
      const result = await runBench(this.bundle, this.facts, depth, this.#running.signal, (step) => {
        this.enter(step);
      });
      this.enter(null);
      this.show(result);
      document.body.dataset.state = "done";
      return result;
    } catch (error) {
      if (this.#running.signal.aborted) this.stopped();
      else fail(error);
      throw error;
    } finally {
      this.#run.hidden = false;
      this.#stop.hidden = true;
      element("depth", HTMLFieldSetElement).disabled = false;
    }
  }

  /** The median calls of a token. */
  async countsPerToken(): Promise<CallCounts | null> {
    const { signal } = new AbortController();
    const model = await openModel(this.bundle);
    try {
      await measureDecode(model, this.facts, [8], 3, signal);
      return await countTokens(model, this.facts, signal);
    } finally {
      model.close();
    }
  }

  private begin(): void {
    document.body.dataset.state = "running";
    element("failure", HTMLElement).hidden = true;
    element("result", HTMLElement).hidden = true;
    this.#run.hidden = true;
    this.#stop.hidden = false;
    element("depth", HTMLFieldSetElement).disabled = true;
    const steps = Object.entries(STEPS).map(([step, label]) => {
      const item = make("li", "", label);
      item.dataset.step = step;
      return item;
    });
    element("steps", HTMLElement).replaceChildren(...steps);
    element("steps", HTMLElement).hidden = false;
  }

  /** Show the step that starts; null after the last step. */
  private enter(step: Step | null): void {
    for (const item of document.querySelectorAll<HTMLElement>("#steps li")) {
      if (item.dataset.state === "running") item.dataset.state = "done";
      if (item.dataset.step === step) item.dataset.state = "running";
    }
    announce(step === null ? "Done" : STEPS[step]);
  }

  private show(result: BenchResult): void {
    const json = JSON.stringify(result, null, 2);
    const raw = make("pre", "", json);
    raw.id = "json";
    raw.tabIndex = 0;
    const name = `nearfar-${result.bundle.model}-${result.date.slice(0, 10)}.json`.replaceAll(/[^\w.-]+/g, "-");
    const shown = element("result", HTMLElement);
    shown.replaceChildren(
      ...resultCards(result),
      shareButtons(json, name, announce),
      make("details", "raw", make("summary", "", "The result as JSON"), raw),
    );
    shown.hidden = false;
    element("steps", HTMLElement).hidden = true;
    this.#run.textContent = "Run again";
  }

  private stopped(): void {
    document.body.dataset.state = "ready";
    element("steps", HTMLElement).hidden = true;
    announce("Stopped");
  }
}

function fail(error: unknown): void {
  console.error(error);
  document.body.dataset.state = "error";
  element("failure-kind", HTMLElement).textContent = errorKind(error);
  explain(error, element("failure-message", HTMLElement));
  element("failure", HTMLElement).hidden = false;
  element("steps", HTMLElement).hidden = true;
}

function announce(text: string): void {
  element("status", HTMLElement).textContent = text;
}

async function main(): Promise<void> {
  element("chat-link", HTMLAnchorElement).search = location.search;
  const bundle = bundleOfAddress();
  try {
    const bench = new Bench(bundle, await fetchFacts(bundle));
    window.nearfarBench = {
      run: (depth) => bench.run(depth),
      countsPerToken: () => bench.countsPerToken(),
      probeRound: async (sizes) => (await import("./probe_round.js")).probeRound(httpSource(bundle), sizes),
    };
  } catch (error) {
    fail(error);
  }
}

void main();

// Buttons that export the result: to the clipboard, to a file, or through the device's share sheet.

/** ``announce`` reports to screen readers. */
function shareButtons(json: string, fileName: string, announce: (text: string) => void): HTMLElement {
  const row = make("div", "share");
  const button = (label: string, className: string, onClick: () => Promise<string>): void => {
    const node = make("button", className, label);
    node.type = "button";
    node.addEventListener("click", () => {
      onClick().then(
        (done) => {
          announce(done);
          node.textContent = done;
          setTimeout(() => (node.textContent = label), 1500);
        },
        (error: unknown) => {
          // Closing the share sheet is not an error.
          if (!(error instanceof DOMException && error.name === "AbortError"))
            announce(`${label}: the browser does not allow it`);
        },
      );
    });
    row.append(node);
  };
  const file = new File([json], fileName, { type: "application/json" });
  button("Copy JSON", "solid", async () => {
    await navigator.clipboard.writeText(json);
    return "Copied";
  });
  button("Download", "plain", () => {
    const link = make("a");
    link.href = URL.createObjectURL(file);
    link.download = fileName;
    link.click();
    URL.revokeObjectURL(link.href);
    return Promise.resolve("Saved");
  });
  // Some browsers have no share sheet, and others do not share every type of file.
  if ("canShare" in navigator && navigator.canShare({ files: [file] })) {
    button("Share", "plain", async () => {
      await navigator.share({ files: [file], title: "nearfar measurement" });
      return "Shared";
    });
  }
  return row;
}
