// Finds the largest of many numbers without sorting all of them.

/**
 * The indices of the ``count`` largest values, best first; equal values in their order. All indices if there are fewer
 * values.
 */
export function largest(values: Float32Array, count: number): Int32Array {
  const size = Math.min(count, values.length);
  // A heap whose root is the worst value in it, so that most values are rejected by one comparison.
  const heap = new Int32Array(size);
  const isWorse = (one: number, other: number): boolean => {
    const a = values[one] ?? 0;
    const b = values[other] ?? 0;
    return a < b || (a === b && one > other);
  };
  const sink = (from: number, length: number): void => {
    const moved = heap[from] ?? 0;
    let index = from;
    for (;;) {
      let child = 2 * index + 1;
      if (child >= length) break;
      if (child + 1 < length && isWorse(heap[child + 1] ?? 0, heap[child] ?? 0)) child++;
      if (!isWorse(heap[child] ?? 0, moved)) break;
      heap[index] = heap[child] ?? 0;
      index = child;
    }
    heap[index] = moved;
  };
  for (let index = 0; index < size; index++) heap[index] = index;
  for (let index = (size >> 1) - 1; index >= 0; index--) sink(index, size);
  for (let index = size; index < values.length && size > 0; index++) {
    if ((values[index] ?? 0) <= (values[heap[0] ?? 0] ?? 0)) continue;
    heap[0] = index;
    sink(0, size);
  }
  // Move the worst value to the end, repeatedly.
  for (let length = size - 1; length > 0; length--) {
    const worst = heap[0] ?? 0;
    heap[0] = heap[length] ?? 0;
    heap[length] = worst;
    sink(0, length);
  }
  return heap;
}
