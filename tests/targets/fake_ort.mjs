// A module that looks like onnxruntime-web: its graphs are a JSON object in the producer's name of an ONNX file.

export const env = { versions: { web: "1.30.0" }, wasm: { numThreads: 0 } };

export class Tensor {
  constructor(type, data, dims) {
    const size = dims.reduce((product, one) => product * one, 1);
    if (size !== data.length) throw new Error(`Tensor's size(${size}) does not match data length(${data.length}).`);
    Object.assign(this, { type, data, dims });
  }
}

class Session {
  constructor({ inputs, outputs, milliseconds = 0 }) {
    const typed = (infos) => infos.map(({ name, dtype, shape }) => ({ name, type: dtype, shape, isTensor: true }));
    Object.assign(this, { inputMetadata: typed(inputs), outputMetadata: typed(outputs), milliseconds });
  }

  /** Every output holds the sum of all inputs. */
  async run(feeds) {
    const start = performance.now();
    const numbers = Object.values(feeds).flatMap(({ data }) => [...data].map(Number));
    const sum = numbers.reduce((total, value) => total + value, 0);
    while (performance.now() - start < this.milliseconds);
    return Object.fromEntries(this.outputMetadata.map(({ name, shape }) => [name, filled(shape, sum)]));
  }
}

function filled(shape, value) {
  const dims = shape.map((size) => (typeof size === "number" ? size : 1));
  return new Tensor("float32", new Float32Array(dims.reduce((product, one) => product * one, 1)).fill(value), dims);
}

export class InferenceSession {
  static async create(graph) {
    const text = new TextDecoder().decode(graph);
    if (text.includes("refuse me")) throw new Error("refused,\n as asked");
    return new Session(JSON.parse(text.slice(text.indexOf("{"), text.lastIndexOf("}") + 1)));
  }
}
