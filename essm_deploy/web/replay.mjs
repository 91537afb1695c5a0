// Running an engine once on given arrays, rows first (see runtime/replay.py, whose rules these are).

import { Failure } from "./errors.mjs";
import { concatenate, LENGTHS, slice } from "./tensors.mjs";

/** All outputs of an opened engine for rows of inputs {name: {data, dims}}. InputError for inputs that it cannot take. */
export async function replay(runner, inputs) {
  const rows = countRows(inputs);
  const call = runner.engine.kind === "stream" ? stream : (_, piece) => runner.run(piece);
  const step = compiledBatch(runner) ?? (runner.engine.kind === "stream" ? 1 : rows);
  if (rows % step) throw new Failure("InputError", `${rows} rows are no whole number of batches of ${step}`);
  const pieces = [];
  for (let row = 0; row < rows; row += step) {
    pieces.push(await call(runner, mapped(inputs, (tensor) => slice(tensor, 0, row, row + step))));
  }
  return mapped(pieces[0], (_, name) => concatenate(pieces.map((piece) => piece[name]), 0));
}

async function stream(runner, inputs) {
  const { [LENGTHS]: lengths, ...rest } = inputs;
  const [data] = Object.values(rest);
  if (!data || Object.keys(rest).length !== 1) throw new Failure("InputError", "a stream engine takes one input, and lengths");
  const steps = countSteps(lengths, data.dims[1]);
  runner.reset();
  const pushed = [];
  for (let at = 0; at < steps; at += runner.chunk) {
    pushed.push(await runner.push(slice(data, 1, at, Math.min(steps, at + runner.chunk))));
  }
  return { logits: pushed[0].dims.length === 3 ? concatenate(pushed, 1) : pushed.at(-1) };
}

function countRows(inputs) {
  const counts = new Set(Object.values(inputs).map(({ dims }) => dims[0] ?? 0));
  if (counts.size === 1 && !counts.has(0)) return [...counts][0];
  throw new Failure("InputError", "the inputs have no rows, or not equally many: the first axis of every array counts them");
}

function countSteps(lengths, most) {
  if (!lengths) return most;
  const found = new Set([...lengths.data].map(Number));
  const [steps] = found;
  if (found.size === 1 && steps >= 1 && steps <= most) return steps;
  const expected = `expected one number from 1 to ${most} for the rows of a call`;
  throw new Failure("InputError", `'lengths' holds ${[...found]}, ${expected}`);
}

function compiledBatch(runner) {
  const size = runner.inputs.find((info) => info.shape.length > 0)?.shape[0];
  return typeof size === "number" ? size : null;
}

function mapped(record, change) {
  return Object.fromEntries(Object.entries(record).map(([name, value]) => [name, change(value, name)]));
}
