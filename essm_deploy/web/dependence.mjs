// How many independent samples a sequence of latencies is worth (see runtime/dependence.py, whose method this is).

const POINTS = 256;
const LEVELS = 3;
const LEAST_ABOVE = 10;

/**
 * How many independent samples `samples`, in the order of time, are worth for the percentile `fraction`: their number over the
 * longest integrated autocorrelation time of whether a sample lies above that percentile, or above one of the levels beyond.
 */
export function effectiveSamples(samples, fraction) {
  const count = samples.length;
  if (count === 0) return 0;
  const ordered = Float64Array.from(samples).sort();
  const longest = Math.max(...levels(count, fraction).map((level) => correlationTime(samples, percentile(ordered, level))));
  return count / longest;
}

/** The percentile, and those that halve what lies above, while enough of `count` samples does. */
function levels(count, fraction) {
  const found = [fraction];
  for (let halvings = 1; halvings < LEVELS; halvings++) {
    const share = (1 - fraction) / 2 ** halvings;
    if (share * count >= LEAST_ABOVE) found.push(1 - share);
  }
  return found;
}

/** In samples, at least 1, by Geyer's initial monotone sequence estimator, of the means of at most 256 blocks. */
function correlationTime(samples, limit) {
  const share = shareAbove(samples, 0, samples.length, limit);
  if (share === 0) return 1;
  const size = Math.ceil(samples.length / POINTS);
  const count = Math.floor(samples.length / size);
  const blocks = Float64Array.from({ length: count }, (_, at) => shareAbove(samples, at * size, size, limit));
  const centre = blocks.reduce((sum, value) => sum + value, 0) / count;
  const centred = blocks.map((value) => value - centre);
  let [twice, least] = [-covariance(centred, 0), Infinity];
  for (let lag = 0; lag < centred.length - 1; lag += 2) {
    least = Math.min(least, covariance(centred, lag) + covariance(centred, lag + 1));
    if (least <= 0) break;
    twice += 2 * least;
  }
  return Math.max(1, (size * twice) / (share * (1 - share)));
}

function shareAbove(samples, start, size, limit) {
  let above = 0;
  for (let index = start; index < start + size; index++) above += samples[index] > limit;
  return above / size;
}

function covariance(values, lag) {
  let sum = 0;
  for (let index = lag; index < values.length; index++) sum += values[index] * values[index - lag];
  return sum / values.length;
}

function percentile(ordered, fraction) {
  return ordered[Math.max(1, Math.ceil(Number((fraction * ordered.length).toFixed(9)))) - 1];
}
