// Which bytes of which other files an ONNX graph reads, found without a protobuf library (see runtime/onnx_files.py).
//
// Only field numbers and lengths are needed: onnx.proto3, and the wire format of protobuf.

import { Failure } from "./errors.mjs";

// Message kinds, and for each the length-delimited fields that can lead to a TensorProto's external_data.
const CHILDREN = {
  model: { 7: "graph", 20: "training", 25: "function" },
  training: { 1: "graph", 2: "graph" },
  function: { 7: "node", 11: "attribute" },
  graph: { 1: "node", 5: "tensor", 15: "sparse" },
  node: { 5: "attribute" },
  attribute: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse" },
  sparse: { 1: "tensor", 2: "tensor" },
  tensor: { 13: "entry" },
};
const MAX_DEPTH = 32;

/** Every external tensor of the graph in `bytes`: [{location, offset, length}], length null where the graph gives none. */
export function externalRegions(bytes, where) {
  try {
    return [...regions(bytes, 0, bytes.length, "model", 0)];
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Failure("BundleError", `${where} is not an ONNX graph: its bytes are not well-formed protobuf`);
  }
}

function* regions(bytes, start, end, kind, depth) {
  if (depth > MAX_DEPTH) throw new RangeError("nested too deeply");
  const entries = {};
  for (const { field, begin, stop } of fields(bytes, start, end)) {
    const child = CHILDREN[kind][field];
    if (child === "entry") readEntry(bytes, begin, stop, entries);
    else if (child !== undefined) yield* regions(bytes, begin, stop, child, depth + 1);
  }
  if (entries.location !== undefined) yield region(entries);
}

function readEntry(bytes, begin, stop, entries) {
  const pair = {};
  for (const part of fields(bytes, begin, stop)) pair[part.field] = text(bytes.subarray(part.begin, part.stop));
  entries[pair[1]] = pair[2] ?? "";
}

function region({ location, offset = "0", length }) {
  if (!/^\d{1,15}$/.test(offset) || !(length === undefined || /^\d{1,15}$/.test(length))) throw new RangeError("no number");
  return { location, offset: Number(offset), length: length === undefined ? null : Number(length) };
}

/** Field number, start and end of every length-delimited field; the others are stepped over. */
function* fields(bytes, position, end) {
  while (position < end) {
    const tag = varint(bytes, position, end);
    const wire = tag.value % 8;
    position = tag.next;
    if (wire === 2) {
      const size = varint(bytes, position, end);
      const stop = size.next + size.value;
      if (stop > end) throw new RangeError("a field ends behind its message");
      yield { field: Math.floor(tag.value / 8), begin: size.next, stop };
      position = stop;
    } else position = skip(bytes, position, end, wire);
  }
  if (position > end) throw new RangeError("a message is cut");
}

function skip(bytes, position, end, wire) {
  if (wire === 0) return varint(bytes, position, end).next;
  if (wire === 1) return position + 8;
  if (wire === 5) return position + 4;
  throw new RangeError(`wire type ${wire}`);
}

/** A varint of up to ten bytes; values above 2^53 lose their low bits, which no length may have. */
function varint(bytes, position, end) {
  let value = 0;
  for (let scale = 1, index = 0; index < 10; index++, scale *= 128) {
    if (position >= end) throw new RangeError("a number is cut");
    const byte = bytes[position++];
    value += (byte & 0x7f) * scale;
    if (byte < 0x80) return { value, next: position };
  }
  throw new RangeError("a number is longer than ten bytes");
}

function text(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new RangeError("no UTF-8");
  }
}
