// A dialog with one question. Nothing happens behind it until the user has answered.

import { make } from "./elements.js";

export interface DialogQuestion {
  /** The dialog's id, with which those of its parts begin. */
  readonly id: string;
  readonly title: string;
  readonly content: readonly Node[];
  readonly refuse: string;
  readonly accept: string;
}

/** Whether the user accepts. The Escape key refuses. */
export function asks({ id, title, content, refuse, accept }: DialogQuestion): Promise<boolean> {
  const heading = make("h2", "", title);
  heading.id = `${id}-title`;
  const no = make("button", "plain", refuse);
  const yes = make("button", "solid", accept);
  no.id = `${id}-refuse`;
  yes.id = `${id}-accept`;
  const dialog = make("dialog", "asking", heading, ...content, make("div", "actions", no, yes));
  dialog.id = id;
  dialog.setAttribute("aria-labelledby", heading.id);
  document.body.append(dialog);
  dialog.showModal();
  no.focus();
  return new Promise((resolve) => {
    no.addEventListener("click", () => {
      dialog.close();
    });
    yes.addEventListener("click", () => {
      dialog.close("agreed");
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "agreed");
    });
  });
}
