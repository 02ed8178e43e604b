// Loads LoRA adapters into an engine, and unloads them.

import { check, readParams, signal } from "../api/params.js";
import type { AdapterSlots } from "../engine/adapters.js";
import { notLoaded } from "../engine/adapters.js";
import type { StepRunner } from "../engine/step_runner.js";
import { RequestError } from "../errors.js";
import type { AnyManifest } from "../runtime/any_manifest.js";
import type { AdapterFiles } from "./read.js";
import { readAdapter } from "./read.js";
import { Slots } from "./slots.js";

export type { AdapterFiles } from "./read.js";

/** ``name``: how requests name the adapter. */
export interface AdapterOptions {
  readonly name: string;
  readonly signal?: AbortSignal | undefined;
}

/** What has adapters: a token engine. */
export interface Adaptable {
  adapters: AdapterSlots | null;
  readonly runner: StepRunner;
}

/** See `Engine.loadAdapter`. */
export async function loadAdapter(
  engine: Adaptable,
  manifest: AnyManifest,
  source: string | URL | AdapterFiles,
  options: AdapterOptions,
): Promise<void> {
  const checks = {
    name: check("another name than the model's", (value) => typeof value === "string" && value !== manifest.model),
  };
  const { name = "", signal: until } = readParams(options, { ...checks, signal });
  if (name === "") throw new RequestError("name is missing; requests need it to use the adapter", { param: "name" });
  const { id, states } = await readAdapter(source, manifest, until);
  const slots = slotsOf(engine) ?? new Slots(engine.runner.limits.adapters ?? 0);
  slots.load(name, id, states, (...args) => engine.runner.writeState?.(...args));
  engine.adapters = slots;
}

/** See `Engine.unloadAdapter`. */
export async function unloadAdapter(engine: Adaptable, name: string): Promise<void> {
  const slots = slotsOf(engine);
  if (slots === null) throw notLoaded(name);
  await slots.unload(name);
}

function slotsOf({ adapters }: Adaptable): Slots | null {
  return adapters as Slots | null;
}
