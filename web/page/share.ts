// Buttons that export the result: to the clipboard, to a file, or through the device's share sheet.

import { make } from "./elements.js";

/** ``announce`` reports to screen readers. */
export function shareButtons(json: string, fileName: string, announce: (text: string) => void): HTMLElement {
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
