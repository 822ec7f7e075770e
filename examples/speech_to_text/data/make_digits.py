"""Makes digits.ogg: the words "zero" to "nine" by 48 voices of espeak-ng, 0.6 seconds each, voice after
voice. Takes Debian's packages espeak-ng and sox.

    python3 make_digits.py digits.ogg
"""
import array
import io
import random
import subprocess
import sys
import wave

WORDS = "zero one two three four five six seven eight nine".split()
ACCENTS = ["en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-us-nyc", "en-gb-x-gbclan",
           "en-gb-x-gbcwmd"]
VARIANTS = ["m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5"]
RATE = 22050
SLOT = int(0.6 * RATE)
random.seed(1)


def spoken(word, voice, pitch, speed):
    """The samples, without the silence before and after."""
    out = subprocess.run(["espeak-ng", "-v", voice, "-p", str(pitch), "-s", str(speed), "--stdout", word],
                         check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(out)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        samples = array.array("h", file.readframes(10 * RATE))
    loud = [i for i, x in enumerate(samples) if abs(x) > 300]
    return samples[max(loud[0] - 100, 0):loud[-1] + 100]


all_samples, longest = array.array("h"), 0
for accent in ACCENTS:
    for variant in random.sample(VARIANTS, 6):
        pitch, speed = random.randint(25, 75), random.randint(175, 230)
        for word in WORDS:
            samples = spoken(word, f"{accent}+{variant}", pitch, speed)
            longest = max(longest, len(samples))
            samples = samples[:SLOT]
            all_samples.extend(samples)
            all_samples.extend([0] * (SLOT - len(samples)))
print(f"the longest word has {longest / RATE:.2f} s")
subprocess.run(["sox", "-t", "raw", "-r", str(RATE), "-e", "signed", "-b", "16", "-c", "1", "-", "-r", "16000",
                "-C", "2", sys.argv[1]], input=all_samples.tobytes(), check=True)
