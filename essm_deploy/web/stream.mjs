// Stream engines: a chunk of tokens or frames a call, a small state carried along (see runtime/stream_outputs.py).

import { Failure } from "./errors.mjs";
import { ringOf } from "./ring.mjs";
import { checkNames, makeTensor, matches } from "./sequence.mjs";
import { slice, zeros } from "./tensors.mjs";

const DATA = ["tokens", "features"];
const NEXT = "next_";

/**
 * One stream engine as a call: each pushes a chunk into a stream that goes on, as an app's does.
 *
 * The stream starts anew where its `overflow` ends it. An anchor is not run, so that a stream past L drifts as far as
 * float32 lets it: it is meant for measuring, and for streams that end by L.
 */
export class StreamEngine {
  constructor(ort, session, engine) {
    Object.assign(this, { ort, session, engine, chunk: engine.chunk });
    this.data = engine.inputs.find((info) => DATA.includes(info.name));
    const outputs = new Set(engine.outputs.map((info) => info.name));
    this.carried = engine.inputs.filter((info) => outputs.has(NEXT + info.name));
    this.around = engine.inputs.find((info) => info.name === "leaving");
    this.info = engine.stream;
    this.cut = this.info.restart ? Math.floor(this.info.length / 2) : null;
    this.reset();
  }

  /** What a call takes: the chunk, and nothing of the state. */
  get inputs() {
    return [this.data];
  }

  /** As before the first token. */
  reset() {
    this.position = 0;
    this.state = Object.fromEntries(this.carried.map((info) => [info.name, this.#empty(info)]));
    this.ring = this.around ? ringOf(this.engine, this.state.state.dims) : null;
    this.leaving = this.around ? this.#empty(this.around) : null;
  }

  /** Push one chunk; {logits}: after its last token, float32 [B, V] or [B, labels]. */
  async run(given) {
    checkNames(given, this.inputs);
    if (this.#endsWithin(this.chunk)) this.reset();
    const { data, dims } = await this.push(given[this.data.name]);
    return { logits: dims.length === 3 ? lastPosition(data, dims) : { data, dims } };
  }

  /** Push one chunk {data, dims: [B, C, ...]}; logits [B, C, V] at every position, or [B, labels]. InputError if it is none. */
  async push({ data, dims }) {
    if (!matches(this.data.shape, dims)) this.#refuse(`has the shape [${dims}]`);
    return this.#push(data, dims);
  }

  async #push(data, dims) {
    this.#beforeToken();
    const feeds = { [this.data.name]: makeTensor(this.ort, this.data, data, dims), ...this.state };
    if (this.around) {
      this.ring.read(this.leaving);
      feeds.leaving = this.leaving;
    }
    const outputs = await this.session.run(feeds);
    if (this.around) this.ring.append(outputs.entering);
    for (const { name } of this.carried) this.state[name] = outputs[NEXT + name];
    this.position += this.chunk;
    return outputs.logits;
  }

  #beforeToken() {
    if (this.#endsWithin(this.chunk)) this.#refuse(`does not fit: the stream ends at ${this.info.length} tokens`);
    if (this.cut === null) return;
    const straddles = (this.position % this.cut) + this.chunk > this.cut;
    if (straddles && this.position + this.chunk > this.info.length) this.#refuse(`straddles a restart at ${this.cut} tokens`);
    const first = this.info.restart === "swap" ? 1 : this.info.length;
    if (this.position >= first && this.position % this.cut === 0) this.#forget();
  }

  #endsWithin(tokens) {
    return this.info.overflow === "refuse" && this.position + tokens > this.info.length;
  }

  /** Forget what is older than L/2 (or, at the first L/2, only start the spare). */
  #forget() {
    const { state, spare } = this.state;
    if (this.info.restart === "zero") return zeroOldest(state, this.cut);
    if (this.position >= this.info.length) this.state.state = spare;
    this.state.spare = this.#empty(this.carried.find((info) => info.name === "spare"));
  }

  #empty(info) {
    const dims = info.shape.map((size) => (typeof size === "number" ? size : 1));
    return makeTensor(this.ort, info, zeros(info.dtype, dims).data, dims);
  }

  #refuse(what) {
    const takes = `takes ${this.data.dtype} [${this.data.shape}]`;
    throw new Failure("InputError", `the input ${what}: engine '${this.engine.id}' ${takes}`);
  }
}

/** [B, C, V] to [B, V]. */
function lastPosition(data, dims) {
  const last = slice({ data, dims }, 1, dims[1] - 1, dims[1]);
  return { data: last.data, dims: [dims[0], dims[2]] };
}

/** Zero all but the newest `kept` rows of a state [n, B, R, d]; rows are chronological. */
function zeroOldest({ data, dims: [layers, batch, rows, width] }, kept) {
  for (let row = 0; row < layers * batch; row++) {
    data.fill(0, row * rows * width, (row * rows + rows - kept) * width);
  }
}
