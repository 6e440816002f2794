"""Files of sound to log-mel frames, one core: soundfile and transformers' WhisperFeatureExtractor against ours.

    PYTHON benches/sound.py [--binary PATH] [FILE …]    (without files: 30 s of the committed synthetic voices)

Needs transformers 5.17, torch and soundfile, and 16 kHz mono files: neither side resamples. Transformers plays at the best of
its settings: numpy or torch, one clip or eight at a time. PATH is the binary that `cargo bench -p loongforge-core --bench sound
--no-run` prints; without it the benchmark is built. LOONGFORGE_QUICK=1 measures next to nothing, to see that it runs.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
import soundfile  # noqa: E402
import torch  # noqa: E402
from transformers import WhisperFeatureExtractor  # noqa: E402
from transformers.models.whisper import feature_extraction_whisper  # noqa: E402

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parent.parent
RATE, SECONDS, BATCH = 16_000, 30, 8
SPELL = 0.02 if os.environ.get("LOONGFORGE_QUICK") else 1


def rate(call, seconds):
    """Best of three spells of a second, in seconds of sound a second."""
    best = 0.0
    for _ in range(3):
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < SPELL:
            call()
            calls += 1
        best = max(best, calls * seconds / (time.perf_counter() - start))
    return best


def of_file(file):
    """Rates of decoding, of frames and of both, and the setting that was fastest."""
    samples, own = soundfile.read(file, dtype="float32")
    assert own == RATE and samples.ndim == 1, f"{file}: 16 kHz and one channel, please"
    seconds = len(samples) / RATE
    extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=max(1, round(seconds)))
    decode = lambda: soundfile.read(file, dtype="float32")[0]  # noqa: E731
    frames = lambda clips: extractor(clips, sampling_rate=RATE, return_tensors="np", padding="longest")  # noqa: E731
    frame_rates, both_rates = {}, {}
    for back_end in ["torch", "numpy"]:
        feature_extraction_whisper.is_torch_available = lambda: back_end == "torch"
        for batch in [1, BATCH]:
            name = f"{back_end}, {batch} at a time"
            frame_rates[name] = rate(lambda: frames([samples] * batch), seconds * batch)
            both_rates[name] = rate(lambda: frames([decode() for _ in range(batch)]), seconds * batch)
    best = max(both_rates, key=both_rates.get)
    return {"decode": rate(decode, seconds), "log-mel": max(frame_rates.values()), "both": both_rates[best]}, best


def ours(binary, files):
    command = [binary] if binary else ["cargo", "bench", "-q", "-p", "loongforge-core", "--bench", "sound", "--"]
    text = subprocess.run([*command, *map(str, files)], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rates = [float(line.split()[1]) for line in text.splitlines() if line.endswith("s of sound a second")]
    return [dict(zip(["decode", "log-mel", "both"], rates[at : at + 3])) for at in range(0, len(rates), 3)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path)
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = [file.resolve() for file in args.files]
        if not files:
            voices = ROOT / "src/core/data/spoken_digits/held_out.ogg"
            samples, _ = soundfile.read(voices, frames=SECONDS * RATE, dtype="float32")
            for name in ["voices.wav", "voices.flac", "voices.ogg"]:
                files.append(Path(folder) / name)
                soundfile.write(files[-1], samples, RATE)
        for file, own in zip(files, ours(args.binary, files)):
            theirs, setting = of_file(file)
            print(f"{file.name}, {file.stat().st_size} bytes; s of sound a second; transformers: {setting}")
            for what, rate_of_theirs in theirs.items():
                ratio = own[what] / rate_of_theirs
                print(f"  {what:8} theirs {rate_of_theirs:8.0f}   ours {own[what]:8.0f}   {ratio:5.2f} x", flush=True)


main()
