#!/usr/bin/env python3
"""Makes train.ogg, held_out.ogg and voices.csv: the digits zero to nine in synthetic voices of eSpeak NG.

Run once: `apt install espeak-ng vorbis-tools`, then `python3 make.py`. Made with espeak-ng 1.51 and vorbis-tools 1.4.2.
A digit begins every second. voices.csv has a line for each voice: part, voice, pitch, speed, and the lengths of its ten
digits in samples at 16 kHz.
"""

import array
import io
import os
import random
import subprocess
import wave

WORDS = "zero one two three four five six seven eight nine".split()
ACCENTS = ["en-gb", "en-us", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-rp", "en-gb-x-gbcwmd", "en-029"]
TRAIN = """Adam Alex Andrea Andy Annie Antonio Auntie Belinda Benjamin Boris Caleb David Denis Diogo Ed Edward Gene Gustave
Henrique Hugo Jacky John Kaukovalta Lee Linda Marcelo Marco Mario Max Michel Miguel Mike anika f1 f2 f4 m1 m2 m3 m5 m6 m7
grandpa sandro shelby""".split()
HELD_OUT = "Alicia Pablo Paul Pedro Quincy Rob Robert Steph Zac travis victor f3 m4 f5 m8".split()
RATE = 22050
OUT_RATE = 16000


def say(word, voice, pitch, speed):
    """The word's samples at 22,050 Hz without the silence around it, at a peak of 0.6."""
    command = os.environ.get("ESPEAK", "espeak-ng").split()
    command += ["-v", voice, "-p", str(pitch), "-s", str(speed), "--stdout", word]
    sound = subprocess.run(command, capture_output=True, check=True).stdout
    samples = array.array("h", sound[44:])
    peak = max(map(abs, samples))
    loud = [at for at, sample in enumerate(samples) if abs(sample) > 0.02 * peak]
    samples = samples[max(loud[0] - 220, 0) : loud[-1] + 220]
    return [int(sample * 0.6 * 32767 / peak) for sample in samples]


def part(name, variants, per_variant, rng, lines):
    """Writes one part: each variant in `per_variant` accents, with a line for each of these voices."""
    whole = array.array("h")
    for variant in variants:
        for accent in rng.sample(ACCENTS, per_variant):
            pitch, speed = rng.randint(25, 75), rng.randint(130, 190)
            lengths = []
            for word in WORDS:
                samples = say(word, f"{accent}+{variant}", pitch, speed)[:RATE]
                lengths.append(len(samples) * OUT_RATE // RATE)
                whole.extend(samples + [0] * (RATE - len(samples)))
            lines.append(",".join(map(str, [name, f"{accent}+{variant}", pitch, speed, *lengths])))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(whole.tobytes())
    command = os.environ.get("OGGENC", "oggenc").split()
    command += ["-Q", "-q", "-1", "--serial", "1", "--discard-comments", "--resample", str(OUT_RATE), "-o", f"{name}.ogg", "-"]
    subprocess.run(command, input=file.getvalue(), check=True)


def main():
    rng, lines = random.Random(1), []
    part("train", TRAIN, 3, rng, lines)
    part("held_out", HELD_OUT, 2, rng, lines)
    with open("voices.csv", "w") as file:
        file.write("\n".join(lines) + "\n")


main()
