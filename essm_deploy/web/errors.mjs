// The kinds of failure that the worker's protocol names, with the exit codes of essm_deploy/errors.py.

const EXIT_CODES = {
  IntegrityError: 1,
  BundleError: 2,
  InputError: 2,
  UnavailableError: 3,
  BuildError: 4,
  WorkerError: 4,
};

/** A failure with one line for people; `name` is that of the Python exception. */
export class Failure extends Error {
  constructor(name, message) {
    super(message);
    this.name = name;
  }
}

/** What an `error` event says of any exception: {type, message, exit_code}. */
export function describeError(error) {
  const known = error instanceof Failure;
  const type = known ? error.name : "WorkerError";
  const message = known ? error.message : `${error?.name ?? "Error"}: ${error?.message ?? error}`;
  return { type, message: message.split(/\s+/).join(" ").trim().slice(0, 2000), exit_code: EXIT_CODES[type] };
}
