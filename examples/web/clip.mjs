// A clip from a file or the microphone, as samples at the rate of the model.

/** float32 samples in [-1, 1] of one channel, at most `most` of them, of an audio file's bytes. */
export async function decodeClip(bytes, rate, most) {
  const audio = await new OfflineAudioContext(1, 1, rate).decodeAudioData(bytes); // which brings it to that rate
  return audio.getChannelData(0).slice(0, most);
}

/** The bytes of a recording of `seconds` from the microphone. */
export async function record(seconds) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const pieces = [];
  recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
  const stopped = new Promise((resolve) => recorder.addEventListener("stop", resolve));
  recorder.start();
  setTimeout(() => recorder.stop(), seconds * 1000);
  await stopped;
  for (const track of stream.getTracks()) track.stop();
  return new Blob(pieces).arrayBuffer();
}
