// Sequence engines: the whole input at once, padded to the length that was compiled (see runtime/sequence.py).

import { Failure } from "./errors.mjs";
import { LENGTHS, volume, zeros } from "./tensors.mjs";

/**
 * A whole-sequence engine that takes shorter inputs: they are padded on the right, and `lengths` says where they end.
 *
 * Every input except `lengths` is [batch, time, ...]. An output with a time axis is cut back to the input's length.
 */
export class SequenceEngine {
  constructor(ort, session, engine) {
    Object.assign(this, { ort, session, engine });
    this.sequences = engine.inputs.filter((info) => info.name !== LENGTHS);
    this.lengths = engine.inputs.find((info) => info.name === LENGTHS);
    this.length = this.sequences.map((info) => info.shape[1]).find((size) => typeof size === "number") ?? null;
  }

  /** What a call takes. */
  get inputs() {
    return this.engine.inputs;
  }

  /** All outputs by name, as {data, dims}, for inputs {data, dims}. InputError for what the engine cannot take. */
  async run(given) {
    const { [LENGTHS]: lengths, ...inputs } = given;
    checkNames(inputs, this.sequences);
    const [batch, length] = this.#size(inputs);
    const feeds = {};
    for (const info of this.sequences) feeds[info.name] = this.#tensor(info, this.#padded(inputs[info.name]));
    if (this.lengths) feeds[LENGTHS] = this.#tensor(this.lengths, lengths ?? this.#full(batch, length));
    const outputs = await this.session.run(feeds);
    return Object.fromEntries(this.engine.outputs.map(({ name }) => [name, this.#trimmed(outputs[name], length)]));
  }

  #size(inputs) {
    const sizes = Object.values(inputs).map(({ dims }) => dims.slice(0, 2));
    const [batch, length] = sizes[0];
    if (sizes.some((size) => size[0] !== batch || size[1] !== length) || !(batch >= 1 && length >= 1)) {
      throw new Failure("InputError", `the inputs are empty, or differ in batch or length: ${JSON.stringify(sizes)}`);
    }
    if (this.length !== null && length > this.length) {
      const most = `engine '${this.engine.id}' takes at most ${this.length}`;
      throw new Failure("InputError", `the input has ${length} steps, ${most}`);
    }
    return [batch, length];
  }

  #padded(tensor) {
    const [batch, length, ...rest] = tensor.dims;
    if (this.length === null || length === this.length) return tensor;
    const wide = { data: new tensor.data.constructor(batch * this.length * volume(rest)), dims: [batch, this.length, ...rest] };
    copyRows(tensor, wide, length * volume(rest));
    return wide;
  }

  #full(batch, length) {
    const tensor = zeros(this.lengths.dtype, [batch]);
    tensor.data.fill(this.lengths.dtype === "int64" ? BigInt(length) : length);
    return tensor;
  }

  #tensor(info, { data, dims }) {
    if (!matches(info.shape, dims)) {
      const takes = `the engine takes ${info.dtype} [${info.shape}]`;
      throw new Failure("InputError", `'${info.name}' has the shape [${dims}], ${takes}`);
    }
    return makeTensor(this.ort, info, data, dims);
  }

  #trimmed({ data, dims }, length) {
    if (dims.length < 3 || dims[1] !== this.length || length === this.length) return { data, dims };
    const narrow = { dims: [dims[0], length, ...dims.slice(2)] };
    narrow.data = new data.constructor(volume(narrow.dims));
    copyRows({ data, dims }, narrow, length * volume(dims.slice(2)));
    return narrow;
  }
}

/** Whether sizes are those declared, where a name stands for any size. */
export function matches(shape, dims) {
  return shape.length === dims.length && shape.every((size, axis) => typeof size === "string" || size === dims[axis]);
}

/** An ort.Tensor; InputError if the array is not of the declared dtype or not as long as its shape says. */
export function makeTensor(ort, info, data, dims) {
  try {
    return new ort.Tensor(info.dtype, data, dims);
  } catch (error) {
    throw new Failure("InputError", `'${info.name}' is no ${info.dtype} [${dims}]: ${error.message}`);
  }
}

/** InputError for an input that is missing or unknown. */
export function checkNames(given, declared) {
  const names = declared.map((info) => info.name);
  const unknown = Object.keys(given).find((name) => !names.includes(name));
  const missing = names.find((name) => !(name in given));
  const takes = `the engine takes ${names.join(", ")}`;
  if (unknown !== undefined) throw new Failure("InputError", `unknown input '${unknown}': ${takes}`);
  if (missing !== undefined) throw new Failure("InputError", `the input '${missing}' is missing: ${takes}`);
}

/** The first `count` numbers of every row (leading axis) of one tensor into those of the other. */
function copyRows(from, to, count) {
  const [fromRow, toRow] = [from, to].map(({ data, dims }) => data.length / dims[0]);
  for (let row = 0; row < from.dims[0]; row++) {
    to.data.set(from.data.subarray(row * fromRow, row * fromRow + count), row * toRow);
  }
}
