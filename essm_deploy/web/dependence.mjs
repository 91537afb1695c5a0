// How many independent samples a sequence of latencies is worth (see runtime/dependence.py).

const BATCHES = 20;
const LEAST_PER_BATCH = 10;
const INFLATION_BY_CHANCE = 1.905; // the 99% quantile of chi-square with 19 degrees of freedom, over 19

/**
 * How many independent samples `samples`, in the order of time, are worth for the percentile `fraction`: batch means of
 * whether a sample lies above it. Inflation that chance alone would show is not counted.
 */
export function effectiveSamples(samples, fraction) {
  const size = Math.floor(samples.length / BATCHES);
  if (size < LEAST_PER_BATCH) return samples.length;
  const limit = percentile(samples, fraction);
  const means = Array.from({ length: BATCHES }, (_, batch) => shareAbove(samples, batch * size, size, limit));
  const inflation = variance(means) / ((fraction * (1 - fraction)) / size);
  return inflation > INFLATION_BY_CHANCE ? samples.length / inflation : samples.length;
}

function percentile(samples, fraction) {
  const ordered = Float64Array.from(samples).sort();
  return ordered[Math.max(1, Math.ceil(Number((fraction * ordered.length).toFixed(9)))) - 1];
}

function shareAbove(samples, start, size, limit) {
  let above = 0;
  for (let index = start; index < start + size; index++) above += samples[index] > limit;
  return above / size;
}

function variance(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1);
}
