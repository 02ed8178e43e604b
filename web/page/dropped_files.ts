/** Files that the user chooses or drops anywhere on the page, which is marked while they are dragged over it. */
export function takeFiles(input: HTMLInputElement, take: (files: File[]) => void): void {
  input.addEventListener("change", () => {
    take([...(input.files ?? [])]);
    input.value = "";
  });
  document.addEventListener("dragover", (event) => {
    if (event.dataTransfer?.types.includes("Files") !== true) return;
    event.preventDefault();
    document.body.dataset.dropping = "";
  });
  for (const type of ["dragleave", "drop", "dragend"])
    document.addEventListener(type, () => delete document.body.dataset.dropping);
  document.addEventListener("drop", (event) => {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    take(files);
  });
}
