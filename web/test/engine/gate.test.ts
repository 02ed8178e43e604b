import { expect, test } from "vitest";

import { Gate } from "../../src/engine/gate.js";

test("closing waits for the work that has passed, and not for later work", async () => {
  const gate = new Gate();
  const done: string[] = [];
  let finish: (error?: Error) => void = () => undefined;
  const work = gate.through(
    () =>
      new Promise<void>(
        (resolve, reject) =>
          (finish = (error) => {
            if (error === undefined) resolve();
            else reject(error);
          }),
      ),
  );
  const closed = gate.close().then(() => done.push("closed"));
  const opened = gate.opened().then(() => done.push("opened"));
  expect(gate.isClosed).toBe(true);
  finish(new Error("it failed"));
  await expect(work).rejects.toThrow("it failed");
  await closed;
  expect(done).toEqual(["closed"]);
  gate.open();
  await opened;
  await gate.opened();
  expect([gate.isClosed, done]).toEqual([false, ["closed", "opened"]]);
});

test("waiting work does not pass if the gate closes again immediately", async () => {
  const gate = new Gate();
  await gate.close();
  let isIn = false;
  const waiting = gate.opened().then(() => (isIn = true));
  gate.open();
  await gate.close();
  await Promise.resolve();
  expect(isIn).toBe(false);
  gate.open();
  await waiting;
});
