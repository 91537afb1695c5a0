// The worker's protocol (see runtime/worker.py) for ONNX Runtime Web, in Node and in a page alike.
//
// `host` is what differs between the two:
//   ort            the module onnxruntime-web
//   versions, pid  for `hello`
//   source(root)   {read(path, offset?, length?)}: the bytes of a file below `root`
//   memory()       {peak_bytes, reasons {name: why null}}, as far as the runtime knows
//
// What a worker in JavaScript cannot know, targets/web_facts.py fills in on the way: the machine, the physical cores,
// and what the kernel says of memory and of waiting for a processor.

import { describeError, Failure } from "./errors.mjs";
import { replay } from "./replay.mjs";
import { SequenceEngine } from "./sequence.mjs";
import { openSession, PROVIDER } from "./session.mjs";
import { StreamEngine } from "./stream.mjs";
import { decodeTensor, encodeTensor, randomInputs } from "./tensors.mjs";
import { clockStepMs, clockWarnings, rotating, sample, VARIANTS, warmUp } from "./timing.mjs";

const PROTOCOL = 1;
const LONGEST = 32 * 2 ** 20; // of a line that holds arrays
const NO_DEVICE = "the engine runs on the host: no GPU takes part";

/** Greets through `send`, answers the request that `receive` gives (or null), and returns the exit status. */
export async function answer(host, receive, send) {
  try {
    const { pid, versions } = host;
    await send({ event: "hello", protocol: PROTOCOL, pid, versions, machine: null, baseline_bytes: null });
    const request = await receive();
    if (request !== null) await operation(request)(host, request, send);
    return 0;
  } catch (error) {
    const described = describeError(error);
    await send({ event: "error", ...described });
    return described.exit_code;
  }
}

function operation(request) {
  const known = { measure, run };
  if (Object.hasOwn(known, request?.op)) return known[request.op];
  throw new Failure("BundleError", `the request: op is ${JSON.stringify(request?.op)}, expected measure or run`);
}

async function measure(host, request, send) {
  const { runner, warnings } = await load(host, request, send);
  const inputs = randomInputs(runner.inputs, { ...request, count: VARIANTS });
  const call = rotating((tensors) => runner.run(tensors), inputs);
  const warm = await warmUp(call, request.warmup);
  await send({ event: "warm", ...warm });
  let samples = 0;
  for (const [mode, plan] of plans(request)) {
    for await (const ms of sample(call, plan)) {
      await send({ event: "samples", mode, ms });
      samples += ms.length;
    }
  }
  await send({ event: "memory", ...memory(host) });
  await send({ event: "done", samples, warnings: [...warnings, ...clockWarnings(clockStepMs(), warm.median_ms)] });
}

/** One call after the other, and then, if that is asked for, one in `pace_ms`. */
function* plans({ min_samples, min_seconds, max_seconds, support = null, pace_ms, paced_samples, paced_seconds }) {
  yield ["back_to_back", { min_samples, min_seconds, max_seconds, support, pace_ms: null }];
  if (!pace_ms) return;
  const end = { min_samples: paced_samples ?? min_samples, min_seconds: 0, max_seconds: paced_seconds ?? max_seconds };
  yield ["paced", { ...end, support, pace_ms }];
}

async function run(host, request, send) {
  const { runner } = await load(host, request, send);
  const results = await replay(runner, decoded(request.inputs ?? {}));
  const dtypes = new Map(request.engine.outputs.map(({ name, dtype }) => [name, dtype]));
  const outputs = Object.entries(results).map(([name, tensor]) => [name, encodeTensor(dtypes.get(name), tensor)]);
  const length = outputs.reduce((sum, [, { data }]) => sum + data.length, 0);
  if (length > LONGEST) throw new Failure("WorkerError", `outputs take ${length} bytes, more than the ${LONGEST} of a line`);
  await send({ event: "outputs", outputs: Object.fromEntries(outputs) });
  await send({ event: "done" });
}

const decoded = (inputs) => Object.fromEntries(Object.entries(inputs).map(([name, wire]) => [name, decodeTensor(name, wire)]));

/** The engine that the request names, opened and reported, and what is not as it was asked for. */
async function load(host, { root, engine, threads }, send) {
  const start = performance.now();
  const runner = await openEngine(host.ort, host.source(root), engine, threads);
  const load_ms = performance.now() - start;
  const used = host.ort.env.wasm.numThreads;
  await send({ event: "loaded", load_ms, provider: PROVIDER, threads: used });
  const fewer = `threads: ${used} instead of ${threads}, as the page is not cross-origin isolated`;
  return { runner, warnings: used < threads ? [fewer] : [] };
}

/**
 * Open an entry of a manifest's engines, of kind sequence or stream, whose files `source` reads.
 *
 * UnavailableError for another kind, and what `openSession` throws.
 */
export async function openEngine(ort, source, engine, threads) {
  const kind = { sequence: SequenceEngine, stream: StreamEngine }[engine?.kind];
  if (kind) return new kind(ort, await openSession(ort, source, engine, threads), engine);
  throw new Failure("UnavailableError", `engine '${engine?.id}' is of kind ${engine?.kind}, expected sequence or stream`);
}

function memory(host) {
  const { reasons, ...known } = host.memory();
  const why = { ...reasons, device_bytes: NO_DEVICE, nvml_bytes: NO_DEVICE };
  return { ...known, device_bytes: null, nvml_bytes: null, bounded_by: "peak_bytes", reasons: why };
}
