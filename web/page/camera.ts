// The camera button, if there is a camera: shows what it sees, and takes a picture.

import { element } from "./elements.js";

/** Why the browser opens no camera. */
const REFUSALS: Readonly<Record<string, string>> = {
  NotAllowedError: "This page may not use the camera. Allow it in the browser's settings.",
  NotFoundError: "The camera is no longer there. Connect it again.",
  NotReadableError: "The camera cannot be read. Close other programs that use it.",
};

export class Camera {
  readonly #button = element("camera", HTMLButtonElement);
  readonly #dialog = element("camera-dialog", HTMLDialogElement);
  readonly #video = element("camera-view", HTMLVideoElement);
  #stream: MediaStream | null = null;

  /** ``take`` receives each picture, and ``fail`` why there is none. */
  constructor(
    private readonly take: (picture: File) => void,
    private readonly fail: (error: Error) => void,
  ) {
    this.#button.addEventListener("click", () => void this.open());
    element("camera-take", HTMLButtonElement).addEventListener("click", () => void this.shoot());
    element("camera-cancel", HTMLButtonElement).addEventListener("click", () => {
      this.#dialog.close();
    });
    this.#dialog.addEventListener("close", () => {
      this.stop();
    });
  }

  /** Show the button if the model sees and this device has a camera. */
  async offer(sees: boolean): Promise<void> {
    const { mediaDevices } = navigator as { readonly mediaDevices?: MediaDevices };
    const devices = (await mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
    this.#button.hidden = !sees || !devices.some(({ kind }) => kind === "videoinput");
  }

  private async open(): Promise<void> {
    try {
      // Phones have a camera at the back, too.
      this.#stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      const { name, message } = error as Error;
      this.fail(new Error(REFUSALS[name] ?? `The camera cannot be opened (${message}).`));
      return;
    }
    this.#video.srcObject = this.#stream;
    this.#dialog.showModal();
    await this.#video.play();
  }

  private async shoot(): Promise<void> {
    const { videoWidth: width, videoHeight: height } = this.#video;
    if (width === 0) return;
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    canvas.getContext("2d")?.drawImage(this.#video, 0, 0);
    this.#dialog.close();
    const picture = await new Promise<Blob | null>((resolve) => {
      canvas.toBlob(resolve, "image/jpeg", 0.92);
    });
    if (picture === null) this.fail(new Error("The browser cannot encode the picture."));
    else this.take(new File([picture], "camera.jpg", { type: picture.type }));
  }

  private stop(): void {
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = null;
    this.#video.srcObject = null;
  }
}
