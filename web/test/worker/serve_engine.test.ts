import { expect, test, vi } from "vitest";

import { Engine } from "../../src/engine.js";
import { grammar } from "../../src/grammar/index.js";
import { connectEngine } from "../../src/worker/connect_engine.js";
import { fakeEngine, fakeModel } from "../api/fake_model.js";
import { fakeWorker } from "./fake_worker.js";

test("a worker's options apply to every engine that it loads, together with the page's options", async () => {
  const load = vi.spyOn(Engine, "load").mockResolvedValue(fakeEngine(fakeModel("hello").model) as unknown as Engine);
  const engine = await connectEngine(fakeWorker({ grammar }), "https://example.org/bundle/", { maxSequences: 2 });
  expect(load).toHaveBeenCalledWith(
    ["https://example.org/bundle/"],
    expect.objectContaining({ grammar, maxSequences: 2 }),
  );
  engine.destroy();
  load.mockRestore();
});
