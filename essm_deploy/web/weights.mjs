// External data for a graph: of a weights file that serves many engines, only the ranges that this one reads.

import { externalRegions } from "./external.mjs";
import { Failure } from "./errors.mjs";

const GAP = 64 * 1024; // bytes that cost less to read than another request

/**
 * What `InferenceSession.create` takes as `externalData`: [{path, data}].
 *
 * `source.read(path, offset, length)` gives bytes of a file of the engine. The parts of `data` that the graph does not
 * read stay zero, and untouched: the system gives them no memory. BundleError if the graph reads a file that the engine
 * does not list.
 */
export async function externalData(source, engine, graph) {
  const found = new Map();
  for (const region of externalRegions(graph, engine.files[0])) {
    const path = locate(engine, region.location);
    found.set(path, { location: region.location, regions: [...(found.get(path)?.regions ?? []), region] });
  }
  return Promise.all(
    [...found].map(async ([path, { location, regions }]) => ({ path: location, data: await load(source, path, regions) })),
  );
}

function locate(engine, location) {
  const folder = engine.files[0].split("/").slice(0, -1);
  const path = [...folder, ...location.split("/").filter((part) => part !== ".")].join("/");
  if (!engine.files.includes(path)) {
    const graph = engine.files[0];
    throw new Failure("BundleError", `${graph} reads '${location}', which is not among the files of engine '${engine.id}'`);
  }
  return path;
}

async function load(source, path, regions) {
  if (regions.some((region) => region.length === null)) return source.read(path);
  const ranges = merged(regions);
  const data = new Uint8Array(ranges.at(-1).end);
  for (const { start, end } of ranges) data.set(await source.read(path, start, end - start), start);
  return data;
}

/** Regions as few ascending ranges {start, end}: neighbours with a small gap between them become one. */
export function merged(regions) {
  const ranges = [];
  for (const { offset, length } of [...regions].sort((one, other) => one.offset - other.offset)) {
    const last = ranges.at(-1);
    if (last && offset <= last.end + GAP) last.end = Math.max(last.end, offset + length);
    else ranges.push({ start: offset, end: offset + length });
  }
  return ranges;
}
