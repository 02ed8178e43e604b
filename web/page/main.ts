// The chat page: loads the bundle that ?bundle= names (./bundle/ by default) and connects the server that ?far= names.
// The side that is ready first answers first.

import type { Engine } from "../src/index.js";
import { bundleOfAddress, fetchFacts } from "./bundle_facts.js";
import { Chat } from "./chat.js";
import { LoadView } from "./load_view.js";
import { openModel } from "./model.js";
import { offerModels } from "./model_picker.js";
import { NearNotice } from "./near_notice.js";
import { keepPage } from "./offline.js";
import { StoredModels } from "./stored_models.js";
import { ChatTranscriber } from "./transcriber.js";
import { folderOfAddress } from "./worker_engine.js";

declare global {
  interface Window {
    /** For tests and for the console. */
    nearfar?: { readonly engine: Engine };
  }
}

async function main(): Promise<void> {
  const bundle = bundleOfAddress();
  const loading = new LoadView();
  const notice = new NearNotice();
  const hears = folderOfAddress("transcriber");
  const transcriber = hears === null ? null : new ChatTranscriber(hears);
  const opening = openModel(bundle, {
    ...(transcriber !== null && { transcriber }),
    onProgress: (progress) => {
      loading.progress(progress);
      notice.progress(progress);
    },
  });
  // If the manifest cannot be read, the engine reports why.
  const facts = fetchFacts(bundle).catch(() => null);
  const chat = new Chat(opening, facts, notice, transcriber);
  void facts.then((known) => {
    if (known !== null) loading.expect(known);
  });
  void chat.connect();
  void offerModels(bundle);
  const stored = new StoredModels();
  try {
    const model = await opening;
    window.nearfar = { engine: model.engine };
    await chat.nearReady(model);
    await stored.show();
  } catch (error) {
    console.error(error);
    loading.askServer();
    await stored.show();
    if (!(await chat.nearFailed(error))) loading.fail(error, bundle, stored);
  }
}

keepPage();

void main();
