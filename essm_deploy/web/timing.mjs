// Timing one call, host to host, again and again (see runtime/timing.py, whose rules these are).

import { effectiveSamples } from "./dependence.mjs";

export const VARIANTS = 4; // different inputs, called in turn
const MAX_SAMPLES = 1_000_000;
const REPORT_MS = 250;
const LEAST_WINDOW = 3;
// WebAssembly is compiled again, better, while it runs, function by function: for a second or more, calls may take twice what
// they will take, and agree on it. So the warm-up goes on until calls have not become faster for that long.
const STEADY_MS = 1500;
const FASTER = 0.9;
const MOST_MS = 8000;
const COARSE = 0.02; // of a call: a clock's step above that is worth a warning

const now = () => performance.now();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Milliseconds of one call by the monotonic clock. */
export async function timedMs(call) {
  const start = now();
  await call();
  return now() - start;
}

/**
 * Call until the median of a window of calls is within `tolerance` of the one before, twice in a row, and none was faster than
 * all before it for some time, or until time is up: `max_seconds`, or eight seconds if that is less.
 */
export async function warmUp(call, { max_seconds, window, tolerance }) {
  const [start, most] = [now(), Math.max(max_seconds * 1e3, MOST_MS)];
  const due = () => now() - start >= most;
  const fitting = (ms) => Math.max(LEAST_WINDOW, Math.min(window, Math.floor((max_seconds * 1e3) / 4 / Math.max(ms, 1e-3))));
  const first_ms = await timedMs(call);
  let [iterations, agreeing, current, previous, best, since] = [1, 0, first_ms, null, first_ms, now()];
  while ((agreeing < 2 || now() - since < STEADY_MS) && !due()) {
    const [took, size] = [[], fitting(current)]; // the first call, which compiles, takes many times what others do
    while (took.length < size && (took.length === 0 || !due())) took.push(await timedMs(call));
    [iterations, current] = [iterations + took.length, median(took)];
    const close = previous !== null && Math.abs(current - previous) <= tolerance * previous;
    agreeing = close && took.length === size ? agreeing + 1 : 0;
    previous = current;
    if (current < FASTER * best) [best, since] = [current, now()];
  }
  return { iterations, settled: agreeing >= 2, first_ms, median_ms: current, seconds: (now() - start) / 1e3 };
}

/**
 * Times calls in milliseconds by the plan; yields what was taken about every quarter of a second, so that a reader can
 * store it. The time that the reader takes is not part of any sample.
 *
 * The plan is that of runtime/timing.py: {min_samples, min_seconds, max_seconds, pace_ms, support: {percentile, samples}}.
 */
export async function* sample(call, plan) {
  const [start, end] = [now(), new End(plan)];
  let [due, blockMs, block] = [start, 0, []];
  while (!end.reached((now() - start) / 1e3)) {
    if (plan.pace_ms) {
      due = Math.max(due + plan.pace_ms, now());
      await sleep(Math.max(0, due - now()));
    }
    block.push(await timedMs(call));
    end.taken.push(block.at(-1));
    blockMs += Math.max(block.at(-1), plan.pace_ms ?? 0);
    if (blockMs >= REPORT_MS) {
      yield block;
      [block, blockMs] = [[], 0];
    }
  }
  if (block.length > 0) yield block;
}

/** When sampling is over. How many independent samples there are is counted anew only after a tenth more of them. */
class End {
  constructor(plan) {
    Object.assign(this, { plan, taken: [], nextCount: plan.min_samples });
  }

  reached(seconds) {
    const [{ min_seconds, max_seconds }, count] = [this.plan, this.taken.length];
    if (count >= MAX_SAMPLES || (seconds >= max_seconds && count > 0)) return true;
    return count >= this.nextCount && seconds >= min_seconds && this.#supported();
  }

  #supported() {
    const { support } = this.plan;
    if (!support || effectiveSamples(this.taken, support.percentile) >= support.samples) return true;
    this.nextCount = this.taken.length + 1 + Math.floor(this.taken.length / 10);
    return false;
  }
}

/** `run` with the next of `inputs` at each call. */
export function rotating(run, inputs) {
  let turn = 0;
  return () => run(inputs[turn++ % inputs.length]);
}

/** Milliseconds of the clock's smallest step: 0.005 in a cross-origin isolated page, 0.1 in others. */
export function clockStepMs() {
  let step = Infinity;
  for (let index = 0; index < 20; index++) {
    const start = now();
    let next = start;
    while (next === start) next = now();
    step = Math.min(step, next - start);
  }
  return step;
}

/** What makes the samples less exact than they look. */
export function clockWarnings(stepMs, medianMs) {
  if (stepMs <= COARSE * medianMs) return [];
  return [`clock: it steps by ${stepMs.toPrecision(2)} ms, a call takes about ${medianMs.toPrecision(2)} ms`];
}

function median(values) {
  const ordered = [...values].sort((one, other) => one - other);
  const middle = Math.floor(ordered.length / 2);
  return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}
