// The last L layer inputs of a stream, used round and round (see runtime/stream_ring.py).

import { volume } from "./tensors.mjs";

/** float32 [n, B, L, d], zero before there was anything. */
export class Ring {
  constructor([layers, batch, length, width]) {
    Object.assign(this, { rows: layers * batch, length, width, head: 0 });
    this.data = new Float32Array(this.rows * length * width);
  }

  /** The oldest entries, which leave next, into `out` {data, dims: [n, B, C, d]}, C <= L. */
  read(out) {
    this.#each(out, (slot, at, size) => out.data.set(this.data.subarray(slot, slot + size), at));
  }

  /** `entries` {data, dims: [n, B, C, d]} in the place of the oldest ones. */
  append(entries) {
    this.#each(entries, (slot, at, size) => this.data.set(entries.data.subarray(at, at + size), slot));
    this.head = (this.head + entries.dims[2]) % this.length;
  }

  /** Calls `copy(offset in the ring, offset in the tensor, numbers)` for each contiguous piece. */
  #each({ dims }, copy) {
    const count = dims[2];
    const first = Math.min(count, this.length - this.head);
    for (let row = 0; row < this.rows; row++) {
      const [ring, tensor] = [row * this.length * this.width, row * count * this.width];
      copy(ring + this.head * this.width, tensor, first * this.width);
      if (first < count) copy(ring, tensor + first * this.width, (count - first) * this.width);
    }
  }
}

/** The ring's shape for a stream engine: [n, B, L, d] from its state [n, B, R, d]; null where there is no ring. */
export function ringOf(engine, state) {
  if (!engine.stream.ring) return null;
  const [layers, batch, , width] = state;
  return volume(state) > 0 ? new Ring([layers, batch, engine.stream.length, width]) : null;
}
