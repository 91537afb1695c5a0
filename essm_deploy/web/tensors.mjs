// Tensors as {data: typed array, dims: [...]}, their form on the wire, and seeded random ones.

import { Failure } from "./errors.mjs";

const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  bool: Uint8Array,
};
export const LENGTHS = "lengths";

/** Product of sizes. */
export const volume = (dims) => dims.reduce((product, size) => product * size, 1);

/** Zeros of a dtype as numpy calls it. InputError for one that has no typed array here. */
export function zeros(dtype, dims) {
  const kind = ARRAYS[dtype];
  if (kind === undefined) throw new Failure("InputError", `${dtype} tensors cannot be passed in JavaScript`);
  return { data: new kind(volume(dims)), dims: [...dims] };
}

/** A tensor from {dtype, shape, data: base64 of little-endian bytes}. InputError if they do not belong together. */
export function decodeTensor(name, { dtype, shape, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const tensor = zeros(dtype, shape);
  if (bytes.length !== tensor.data.byteLength) {
    throw new Failure("InputError", `'${name}' has ${bytes.length} bytes, ${dtype} [${shape}] takes ${tensor.data.byteLength}`);
  }
  new Uint8Array(tensor.data.buffer).set(bytes);
  return tensor;
}

/** The inverse of `decodeTensor`. */
export function encodeTensor(dtype, { data, dims }) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  const letters = [];
  for (let start = 0; start < bytes.length; start += 8192) {
    letters.push(String.fromCharCode(...bytes.subarray(start, start + 8192)));
  }
  return { dtype, shape: dims, data: btoa(letters.join("")) };
}

/**
 * Inputs as an app would pass them, `count` of them: standard normal numbers, or whole numbers in the declared range.
 *
 * `length` replaces the time axis (null keeps the engine's own); `lengths` is left to the engine. The numbers follow
 * from the seed, and are not numpy's. InputError where the engine fixes another batch, or no length.
 */
export function randomInputs(declared, { batch, length, seed, count }) {
  const random = generator(seed);
  const infos = declared.filter((info) => info.name !== LENGTHS);
  const one = () => Object.fromEntries(infos.map((info) => [info.name, randomTensor(info, batch, length, random)]));
  return Array.from({ length: count }, one);
}

function randomTensor(info, batch, length, random) {
  const tensor = zeros(info.dtype, randomDims(info, batch, length));
  if (info.dtype.startsWith("float")) return { ...tensor, data: tensor.data.map(() => normal(random)) };
  const top = info.maximum ?? 1;
  const whole = () => Math.floor(random() * (top + 1));
  return { ...tensor, data: tensor.data.map(info.dtype === "int64" ? () => BigInt(whole()) : whole) };
}

function randomDims(info, batch, length) {
  if (typeof info.shape[0] === "number" && info.shape[0] !== batch) {
    const message = `'${info.name}' is compiled for a batch of ${info.shape[0]}, a batch of ${batch} was asked for`;
    throw new Failure("InputError", message);
  }
  const dims = [batch, ...info.shape.slice(1)];
  if (dims.length > 1 && length !== null) dims[1] = length;
  if (dims.every((size) => typeof size === "number")) return dims;
  throw new Failure("InputError", `'${info.name}' has the free sizes [${dims}]: say the length to measure`);
}

/** mulberry32: uniform numbers in [0, 1), the same ones for the same seed everywhere. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Box and Muller's transform. */
const normal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

/** Entries `start` to `stop` along an axis; {data, dims}. */
export function slice({ data, dims }, axis, start, stop) {
  if (start === 0 && stop === dims[axis]) return { data, dims };
  const [outer, row] = [volume(dims.slice(0, axis)), volume(dims.slice(axis + 1))];
  const wanted = (stop - start) * row;
  const part = new data.constructor(outer * wanted);
  for (let index = 0; index < outer; index++) {
    const from = (index * dims[axis] + start) * row;
    part.set(data.subarray(from, from + wanted), index * wanted);
  }
  return { data: part, dims: dims.with(axis, stop - start) };
}

/** Tensors of equal dims but for one axis, one after the other along it. */
export function concatenate(tensors, axis) {
  const { data, dims } = tensors[0];
  const total = tensors.reduce((sum, tensor) => sum + tensor.dims[axis], 0);
  const whole = new data.constructor(volume(dims.with(axis, total)));
  const outer = volume(dims.slice(0, axis));
  let at = 0;
  for (let index = 0; index < outer; index++) {
    for (const tensor of tensors) {
      const size = tensor.data.length / outer;
      whole.set(tensor.data.subarray(index * size, (index + 1) * size), at);
      at += size;
    }
  }
  return { data: whole, dims: dims.with(axis, total) };
}
