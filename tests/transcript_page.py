"""A page whose engine transcribes sound, for tests in a browser."""

from __future__ import annotations

HTML = '<!doctype html><body><script type="module" src="start.js"></script>'
START = """import { Engine } from "./nearfar.js";
const fileOf = async (text) => (await fetch(`data:application/octet-stream;base64,${text}`)).blob();
window.transcribe = async (text, options) => engine.transcribe(await fileOf(text), options);
window.streamed = async (text, options) => {
    const stream = await engine.transcribe(await fileOf(text), { ...options, stream: true });
    const segments = [];
    for (;;) {
        const { done, value } = await stream.next();
        if (done) return [segments, value];
        segments.push(value);
    }
};
window.refusal = (work) => work.then(() => null, (error) => [error.name, error.message]);
window.inWorker = async (text) => {
    const { connectEngine } = await import("./client.js");
    const worker = new Worker("./engine_worker.js", { type: "module" });
    const distant = await connectEngine(worker, "./bundle/");
    const stream = await distant.transcribe(await fileOf(text), { temperature: 0, stream: true });
    try {
        for (const segments = []; ; ) {
            const { done, value } = await stream.next();
            if (done) return [segments, value];
            segments.push(value);
        }
    } finally {
        distant.destroy();
        worker.terminate();
    }
};
Object.assign(window, { Engine });
document.body.dataset.state = "ready";
"""
WORKER = 'import { serveEngine } from "./worker.js"; serveEngine(self);'
# Of log-probabilities and ratios.
NEAR = 1e-3
