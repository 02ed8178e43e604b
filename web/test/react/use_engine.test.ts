import { StrictMode, createElement, version } from "react";
import type { FC } from "react";
import { renderToString } from "react-dom/server";
import { expect, test, vi } from "vitest";

import { BundleError } from "../../src/errors.js";
import type { LoadProgress } from "../../src/load_options.js";
import type { EngineState, LoadEngine } from "../../src/react/index.js";
import { useEngine } from "../../src/react/index.js";
import type { Hybrid } from "../../src/router/hybrid.js";
import { setUp as setUpHybrid } from "../router/hybrid_set_up.js";
import { doing, root, settle } from "./dom.js";

const PROGRESS: LoadProgress = {
  phase: "download",
  loadedBytes: 1,
  storedBytes: 0,
  totalBytes: 2,
  compiledKernels: 0,
  totalKernels: 1,
};

interface FakeEngine {
  destroyed: number;
  destroy(): void;
}

/** Loads that the test ends, and a component that records its rendered states. */
function setUp() {
  const loads: {
    readonly report: () => void;
    readonly end: (result?: Error) => FakeEngine;
    readonly signal: AbortSignal;
  }[] = [];
  const load: LoadEngine<FakeEngine> = ({ signal, onProgress }) =>
    new Promise((resolve, reject) => {
      const engine: FakeEngine = { destroyed: 0, destroy: () => engine.destroyed++ };
      loads.push({
        signal,
        report: () => {
          onProgress(PROGRESS);
        },
        end: (error) => {
          if (error === undefined) resolve(engine);
          else reject(error);
          return engine;
        },
      });
      signal.addEventListener("abort", () => {
        reject(signal.reason as Error);
      });
    });
  const states: EngineState<FakeEngine>[] = [];
  const Component: FC<{ readonly source?: LoadEngine<FakeEngine> | null; readonly name?: string }> = ({
    source = (options) => load(options),
    name,
  }) => {
    states.push(useEngine(source, { key: name }));
    return null;
  };
  const last = () => {
    const state = states.at(-1);
    if (state === undefined) throw new Error("nothing was rendered");
    return state;
  };
  return { loads, states, last, Component };
}

test("these tests run on React 19, or with REACT_FOLDER on 18", () => {
  expect(version).toMatch(process.env.REACT_FOLDER === undefined ? /^19\./ : /^18\./);
});

test("an engine is loaded with progress, once for all renders, and freed on unmount", async () => {
  const { loads, last, Component } = setUp();
  const { render, unmount } = root();
  await doing(() => {
    render(createElement(Component));
  });
  expect(last()).toMatchObject({ status: "loading", engine: null, progress: null, error: null });
  await doing(() => {
    loads[0]?.report();
  });
  expect(last()).toMatchObject({ status: "loading", progress: PROGRESS });
  const engine = loads[0]?.end();
  await settle();
  expect(last()).toMatchObject({ status: "ready", engine });
  // Another function at each render does not load again.
  await doing(() => {
    render(createElement(Component));
  });
  expect([loads.length, engine?.destroyed]).toEqual([1, 0]);
  await doing(() => {
    unmount();
  });
  await settle();
  expect(engine?.destroyed).toBe(1);
});

test("StrictMode loads once and keeps the engine", async () => {
  const { loads, last, Component } = setUp();
  const { render, unmount } = root();
  await doing(() => {
    render(createElement(StrictMode, null, createElement(Component)));
  });
  await settle();
  expect([loads.length, loads[0]?.signal.aborted]).toEqual([1, false]);
  const engine = loads[0]?.end();
  await settle();
  expect([last().status, engine?.destroyed]).toEqual(["ready", 0]);
  await doing(() => {
    unmount();
  });
  await settle();
  expect(engine?.destroyed).toBe(1);
});

test("an unmount during a load aborts it, and an engine that is loaded anyway is freed", async () => {
  const { loads, states, Component } = setUp();
  const { render, unmount } = root();
  await doing(() => {
    render(createElement(Component));
  });
  const engine = loads[0]?.end();
  await doing(() => {
    unmount();
  });
  await settle();
  expect(loads[0]?.signal.aborted).toBe(true);
  expect(engine?.destroyed).toBe(1);
  expect(states.every(({ status }) => status === "loading")).toBe(true);
});

test("another key frees the engine and loads another one; null frees it and loads none", async () => {
  const { loads, last, states, Component } = setUp();
  const { render } = root();
  await doing(() => {
    render(createElement(Component, { name: "a" }));
  });
  await settle();
  const first = loads[0]?.end();
  await settle();
  const rendered = states.length;
  await doing(() => {
    render(createElement(Component, { name: "b" }));
  });
  await settle();
  // The engine of "a" is never reported as the engine of "b".
  expect(states.slice(rendered).every(({ engine }) => engine === null)).toBe(true);
  expect([first?.destroyed, loads.length, last().status]).toEqual([1, 2, "loading"]);
  const second = loads[1]?.end();
  await settle();
  expect(last().engine).toBe(second);
  await doing(() => {
    render(createElement(Component, { source: null }));
  });
  await settle();
  expect([second?.destroyed, last().status, last().engine]).toEqual([1, "idle", null]);
});

test("a hybrid, which has close instead of destroy, is freed on unmount", async () => {
  const { nf } = await setUpHybrid();
  const close = vi.spyOn(nf, "close");
  const states: EngineState<Hybrid>[] = [];
  const Component: FC = () => {
    states.push(useEngine(() => Promise.resolve(nf)));
    return null;
  };
  const { render, unmount } = root();
  await doing(() => {
    render(createElement(Component));
  });
  expect([states.at(-1)?.engine === nf, close.mock.calls.length]).toEqual([true, 0]);
  await doing(() => {
    unmount();
  });
  expect(close).toHaveBeenCalledOnce();
});

test("an error is a state, and retry loads again", async () => {
  const { loads, last, Component } = setUp();
  const { render } = root();
  await doing(() => {
    render(createElement(Component));
  });
  const error = new BundleError("no such bundle");
  loads[0]?.end(error);
  await settle();
  expect(last()).toMatchObject({ status: "error", error, engine: null });
  await doing(() => {
    last().retry();
  });
  expect(last()).toMatchObject({ status: "loading", error: null });
  const engine = loads[1]?.end();
  await settle();
  expect(last()).toMatchObject({ status: "ready", engine });
});

test("on a server nothing is loaded", () => {
  const { loads, states, Component } = setUp();
  renderToString(createElement(Component));
  expect([states.map(({ status }) => status), loads.length]).toEqual([["loading"], 0]);
});

test("an address loads with Engine.load, and its errors are reported", async () => {
  const states: EngineState<unknown>[] = [];
  const Component: FC = () => {
    states.push(useEngine("http://localhost:9/none/", { maxSequences: 1, key: "x" }));
    return null;
  };
  await doing(() => {
    root().render(createElement(Component));
  });
  await expect
    .poll(async () => {
      await settle(1);
      return states.at(-1)?.status;
    })
    .toBe("error");
  expect(states.at(-1)?.error).toMatchObject({ code: "bundle_error" });
});
