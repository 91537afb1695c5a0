// Opening an engine in ONNX Runtime Web. All options of a session are decided here.

import { Failure } from "./errors.mjs";
import { checkRequirements } from "./requirements.mjs";
import { externalData } from "./weights.mjs";

/** WebAssembly with SIMD and threads, on the processor; nothing may run elsewhere. */
export const PROVIDER = "wasm";

const OPTIONS = {
  executionProviders: [PROVIDER],
  graphOptimizationLevel: "all",
  executionMode: "sequential",
  logSeverityLevel: 3,
};

/**
 * An ONNX Runtime Web session of `engine` (an entry of a manifest), whose files `source` reads.
 *
 * `threads` counts for the whole page or process: the first session decides it, and `ort.env.wasm.numThreads` is what
 * came of it: 1 in a page that is not cross-origin isolated.
 * UnavailableError (a requirement is not met), BundleError (graph and manifest disagree), BuildError (refused).
 */
export async function openSession(ort, source, engine, threads) {
  checkRequirements(engine, ort.env.versions.web ?? ort.env.versions.common);
  const graph = await source.read(engine.files[0]);
  const options = { ...OPTIONS, externalData: await externalData(source, engine, graph) };
  ort.env.wasm.numThreads = threads;
  const session = await create(ort, engine, graph, options);
  checkSignature("inputs", session.inputMetadata, engine.inputs, engine);
  checkSignature("outputs", session.outputMetadata, engine.outputs, engine);
  return session;
}

async function create(ort, engine, graph, options) {
  try {
    return await ort.InferenceSession.create(graph, options);
  } catch (error) {
    const reason = String(error?.message ?? error).split(/\s+/).join(" ").slice(0, 300);
    throw new Failure("BuildError", `onnxruntime-web ${ort.env.versions.web} cannot open ${engine.files[0]}: ${reason}`);
  }
}

function checkSignature(side, found, declared, engine) {
  const shown = (infos) => infos.map(({ name, type, dtype, shape }) => `${name} ${type ?? dtype} [${shape}]`).sort().join(", ");
  const actual = new Map(found.map((info) => [info.name, info]));
  const fits = (info) => sameTensor(actual.get(info.name), info);
  if (found.length === declared.length && declared.every(fits)) return;
  const graph = `the graph of engine '${engine.id}' has the ${side} ${shown(found)}`;
  throw new Failure("BundleError", `${graph}, the manifest says ${shown(declared)}`);
}

function sameTensor(actual, declared) {
  if (!actual || actual.type !== declared.dtype || actual.shape.length !== declared.shape.length) return false;
  return declared.shape.every((size, axis) => typeof actual.shape[axis] === "string" || actual.shape[axis] === size);
}
