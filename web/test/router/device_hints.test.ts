import { expect, test } from "vitest";

import { platformDevice } from "../../src/router/device_hints.js";

test("the battery and the network are reported if the browser reports them", async () => {
  const battery = { level: 0.4, charging: false };
  expect(await platformDevice({ onLine: false, getBattery: () => Promise.resolve(battery) }).read()).toEqual({
    online: false,
    battery: 0.4,
    charging: false,
    thermal: null,
  });
  expect(await platformDevice({ getBattery: () => Promise.reject(new Error("not allowed")) }).read()).toEqual({
    online: true,
    battery: null,
    charging: null,
    thermal: null,
  });
});
