// Log-mel features of a clip (see frontend/logmel.py, whose arithmetic this is, in double precision).

import { Failure } from "./errors.mjs";

/** The front end of a speech model, from the `frontend` object of a manifest. UnavailableError for another kind. */
export class LogMel {
  constructor(config) {
    if (config?.type !== "log_mel" || Math.log2(config.n_fft) % 1) {
      const shown = `${config?.type} with n_fft ${config?.n_fft}`;
      throw new Failure("UnavailableError", `the front end ${shown} cannot be computed here: expected log_mel and a power of two`);
    }
    Object.assign(this, config);
    this.hann = Float64Array.from({ length: this.window }, (_, n) => 0.5 - 0.5 * Math.cos((2 * Math.PI * n) / this.window));
    this.triangles = melTriangles(this);
  }

  /**
   * Samples in [-1, 1) at `sample_rate`, at most `clip_samples`, as inputs of an engine: `features` [1, frames, n_mels], zero
   * behind the clip's end, and `lengths` [1]. InputError for an empty or too long clip.
   */
  inputs(samples) {
    if (!(samples.length >= 1 && samples.length <= this.clip_samples)) {
      throw new Failure("InputError", `the clip has ${samples.length} samples, the model takes 1 to ${this.clip_samples}`);
    }
    const length = Math.min(this.frames, Math.ceil(samples.length / this.hop));
    const data = new Float32Array(this.frames * this.n_mels);
    for (let frame = 0; frame < length; frame++) data.set(this.#row(samples, frame * this.hop), frame * this.n_mels);
    const lengths = { data: BigInt64Array.of(BigInt(length)), dims: [1] };
    return { features: { data, dims: [1, this.frames, this.n_mels] }, lengths };
  }

  /** The bands of the window that begins at sample `start`, normalised. */
  #row(samples, start) {
    const [real, imaginary] = [new Float64Array(this.n_fft), new Float64Array(this.n_fft)];
    for (let n = 0; n < this.window; n++) real[n] = (samples[start + n] ?? 0) * this.hann[n];
    transform(real, imaginary);
    return this.triangles.map((triangle, band) => {
      const energy = triangle.reduce((sum, weight, bin) => sum + weight * (real[bin] ** 2 + imaginary[bin] ** 2), 0);
      const log = Math.log(energy + this.floor);
      return this.mean.length ? (log - this.mean[band]) / this.std[band] : log;
    });
  }
}

/** Triangles equally spaced on the HTK mel scale, mel(f) = 2595 log10(1 + f/700): weights by bin, for each band. */
function melTriangles({ n_mels, n_fft, f_min, f_max, sample_rate }) {
  const [low, high] = [f_min, f_max].map((f) => 2595 * Math.log10(1 + f / 700));
  const edge = (index) => 700 * (10 ** ((low + ((high - low) * index) / (n_mels + 1)) / 2595) - 1);
  const frequencies = Array.from({ length: n_fft / 2 + 1 }, (_, bin) => (bin * sample_rate) / n_fft);
  return Array.from({ length: n_mels }, (_, band) => {
    const [from, centre, to] = [edge(band), edge(band + 1), edge(band + 2)];
    return frequencies.map((f) => Math.max(0, Math.min((f - from) / (centre - from), (to - f) / (to - centre))));
  });
}

/** The discrete Fourier transform in place, for a power of two (Cooley and Tukey's). */
function transform(real, imaginary) {
  reorder(real, imaginary);
  for (let size = 2; size <= real.length; size *= 2) {
    for (let k = 0; k < size / 2; k++) {
      const [cos, sin] = [Math.cos((-2 * Math.PI * k) / size), Math.sin((-2 * Math.PI * k) / size)];
      for (let one = k; one < real.length; one += size) butterfly(real, imaginary, one, one + size / 2, cos, sin);
    }
  }
}

function butterfly(real, imaginary, one, other, cos, sin) {
  const [a, b] = [real[other] * cos - imaginary[other] * sin, real[other] * sin + imaginary[other] * cos];
  [real[other], imaginary[other]] = [real[one] - a, imaginary[one] - b];
  [real[one], imaginary[one]] = [real[one] + a, imaginary[one] + b];
}

/** Put every entry where its index, read backwards in binary, says. */
function reorder(...arrays) {
  const bits = Math.log2(arrays[0].length);
  for (let index = 0; index < arrays[0].length; index++) {
    let mirror = 0;
    for (let bit = 0; bit < bits; bit++) mirror |= ((index >> bit) & 1) << (bits - 1 - bit);
    if (mirror > index) for (const array of arrays) [array[index], array[mirror]] = [array[mirror], array[index]];
  }
}
