// Keeps the end of a growing answer in view, until the reader scrolls up.

/** The reader is at the end if no more than this is below. */
const END_PIXELS = 120;

export class FollowingScroll {
  #follows = true;
  #top = 0;

  constructor(private readonly root = document.documentElement) {
    root.ownerDocument.addEventListener("scroll", () => {
      const { scrollTop } = root;
      // A page that grows is not a reader who scrolls.
      this.#follows = this.below < END_PIXELS || (this.#follows && scrollTop >= this.#top);
      this.#top = scrollTop;
    });
  }

  /** An answer begins. If its question fills the page, show the place of the answer, not the question's start. */
  begin(answer: Element): void {
    this.#follows = true;
    if (answer.getBoundingClientRect().bottom > 0.75 * this.root.clientHeight) this.follow();
    this.#top = this.root.scrollTop;
  }

  /** Scroll to the end, unless the reader has scrolled up. */
  follow(): void {
    if (!this.#follows) return;
    this.root.scrollTop = this.root.scrollHeight;
    this.#top = this.root.scrollTop;
  }

  private get below(): number {
    return this.root.scrollHeight - this.root.scrollTop - this.root.clientHeight;
  }
}
