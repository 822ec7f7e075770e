"""redco.models.processor makes of random images or sounds and texts what transformers' processors and
Pillow do.

processors_peer.py REDCO_LUA SOURCE [--seed N] [--count N] [--kind NAME ...] [--keep FOLDER]
"""
import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import numpy as np
import PIL
import transformers
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers.processing_utils import ProcessorMixin

sys.dont_write_bytecode = True
import with_pillow  # noqa: E402

IS_NEW = transformers.__version__.startswith("5.")
SOUND = ["<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"]
TOKENS = ["<image>", "<fake_token_around_image>", "<global-img>", "[IMG]", "[IMG_BREAK]", "[IMG_END]",
          "<img>", "</img>", "<IMG_CONTEXT>", "<|image|>", "<|patch|>", "<|image_start|>",
          "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>", *SOUND, *(f"<row_{i}_col_{j}>" for i in range(1, 7)
                                                for j in range(1, 7))]


def new_tokenizer(source):
    tokenizer = transformers.AutoTokenizer.from_pretrained(source / "tests/cases/gpt2")
    tokenizer.add_special_tokens(dict(additional_special_tokens=TOKENS, pad_token="<pad>"))
    return tokenizer


def named(name):
    """A class of transformers; in version 5 that which uses Pillow."""
    return getattr(transformers, name + "Pil", None) or getattr(transformers, name)


def colours(draw):
    return dict(image_mean=[draw.uniform(0, 1) for _ in range(3)],
                image_std=[draw.uniform(0.2, 1) for _ in range(3)], resample=draw.choice([1, 2, 3]))


def bare(kind, **attributes):
    """A processor without the films that its constructor asks for."""
    processor = kind.__new__(kind)
    for name, value in dict(attributes, chat_template=None).items():
        setattr(processor, name, value)
    return processor


def some_grid(draw, side):
    return [[side * draw.randint(1, 3), side * draw.randint(1, 3)]
            for _ in range(draw.randint(1, 5))]


def idefics3(draw, tokenizer):
    patch, factor = draw.randint(3, 4), draw.randint(1, 2)
    side = patch * factor * draw.randint(2, 3)
    n = (side // patch // factor) ** 2
    images = named("Idefics3ImageProcessor")(
        size=dict(longest_edge=side * draw.randint(1, 4) + draw.randint(0, 5)),
        max_image_size=dict(longest_edge=side), do_image_splitting=draw.random() < 0.8,
        **colours(draw))
    config = dict(model_type=draw.choice(["idefics3", "smolvlm"]), scale_factor=factor,
                  vision_config=dict(image_size=side, patch_size=patch))
    return config, transformers.Idefics3Processor(images, tokenizer, image_seq_len=n), "<image>"


def internvl(draw, tokenizer):
    patch, factor = draw.randint(3, 4), draw.randint(1, 2)
    side = patch * factor * draw.randint(2, 3)
    n = (side // patch // factor) ** 2
    least = draw.randint(1, 2)
    images = named("GotOcr2ImageProcessor")(
        size=dict(height=side, width=side), min_patches=least, max_patches=draw.randint(least, 6),
        **dict(colours(draw), resample=3))
    tokens = {f"{name}_id": tokenizer.convert_tokens_to_ids(token) for name, token in (
        ("image_token", "<IMG_CONTEXT>"), ("start_image_token", "<img>"),
        ("end_image_token", "</img>"))}
    config = dict(model_type="internvl", image_token_id=tokens["image_token_id"],
                  downsample_ratio=1 / factor, vision_config=dict(
                      image_size=[side, side], patch_size=[patch, patch]))
    processor = bare(
        transformers.InternVLProcessor, image_processor=images, tokenizer=tokenizer, **tokens,
        image_seq_length=n, start_image_token="<img>", end_image_token="</img>",
        image_token="<IMG_CONTEXT>", video_token="<video>", image_ids=list(tokens.values()),
        multimodal_pattern=re.compile("(?P<image><IMG_CONTEXT>)|(?P<video><video>)"))
    return config, processor, "<IMG_CONTEXT>"


def llama4(draw, tokenizer):
    patch, factor = draw.randint(3, 4), draw.randint(1, 3)
    side = patch * factor * draw.randint(1, 3)
    images = transformers.Llama4ImageProcessor(
        size=dict(height=side, width=side), max_patches=draw.randint(1, 16),
        resize_to_max_canvas=draw.random() < 0.5, **dict(colours(draw), resample=draw.choice([2, 3])))
    config = dict(model_type="llama4", image_token_index=tokenizer.convert_tokens_to_ids("<|patch|>"),
                  vision_config=dict(image_size=side, patch_size=patch, pixel_shuffle_ratio=1 / factor,
                                     hidden_size=64, intermediate_size=64 * factor ** 2,
                                     vision_output_dim=4096))
    return config, transformers.Llama4Processor(
        images, tokenizer, patch_size=patch, pixel_shuffle_ratio=1 / factor), "<|image|>"


def mistral3(draw, tokenizer, model_type="mistral3", most=2):
    patch, merge = draw.randint(5, 6), draw.randint(1, most)
    images = named("PixtralImageProcessor")(
        size=dict(longest_edge=draw.randint(10, 60)), patch_size=dict(height=16, width=16),
        **colours(draw))
    config = dict(model_type=model_type, spatial_merge_size=merge,
                  image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
                  vision_config=dict(model_type="pixtral", image_size=64, patch_size=patch))
    return config, transformers.PixtralProcessor(
        images, tokenizer, patch_size=patch, spatial_merge_size=merge), "[IMG]"


def pixtral(draw, tokenizer):
    """In LLaVA's form."""
    config, processor, word = mistral3(draw, tokenizer, "llava", 1)
    del config["spatial_merge_size"]
    return dict(config, vision_feature_select_strategy="full"), processor, word


def paligemma(draw, tokenizer):
    patch = draw.randint(3, 4)
    side = patch * draw.randint(2, 3)
    images = named("SiglipImageProcessor")(size=dict(height=side, width=side), **colours(draw))
    images.image_seq_length = (side // patch) ** 2
    config = dict(model_type="paligemma", vision_config=dict(
        model_type="siglip_vision_model", image_size=side, patch_size=patch))
    kind = transformers.PaliGemmaProcessor
    kind.tokenizer_class = "AutoTokenizer"
    return config, kind(images, tokenizer), "<image>"


def llava_next(draw, tokenizer):
    patch = draw.randint(3, 4)
    side = patch * draw.randint(2, 4)
    images = named("LlavaNextImageProcessor")(
        size=dict(shortest_edge=side), crop_size=dict(height=side, width=side),
        image_grid_pinpoints=some_grid(draw, side), **colours(draw))
    config = dict(model_type="llava_next", image_grid_pinpoints=images.image_grid_pinpoints,
                  vision_config=dict(model_type="clip_vision_model", image_size=side,
                                     patch_size=patch))
    return config, transformers.LlavaNextProcessor(
        images, tokenizer, patch_size=patch, vision_feature_select_strategy="default",
        num_additional_image_tokens=1), "<image>"


def llava_onevision(draw, tokenizer):
    patch = draw.randint(3, 4)
    side, most = patch * draw.randint(2, 4), draw.choice([1, 2, 9])
    images = named("LlavaOnevisionImageProcessor")(
        size=dict(height=side, width=side), image_grid_pinpoints=some_grid(draw, side),
        **colours(draw))
    config = dict(model_type="llava_onevision", image_grid_pinpoints=images.image_grid_pinpoints,
                  vision_aspect_ratio=f"anyres_max_{most}",
                  vision_config=dict(model_type="siglip_vision_model", image_size=side,
                                     patch_size=patch))
    return config, bare(
        transformers.LlavaOnevisionProcessor, image_processor=images, tokenizer=tokenizer,
        num_image_tokens=(side // patch) ** 2, vision_feature_select_strategy="full",
        image_token="<image>", video_token="<video>",
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_aspect_ratio=f"anyres_max_{most}"), "<image>"


def qwen_vl(draw, tokenizer):
    name = draw.choice(["Qwen2VL", "Qwen2_5_VL", "Qwen3VL"])
    patch, merge = draw.randint(3, 6), draw.randint(1, 3)
    bounds = dict(min_pixels=draw.randint(1, 1500), max_pixels=draw.randint(1500, 4000))
    if hasattr(transformers, "Qwen2VLImageProcessorPil") and draw.random() < 0.5:
        bounds = dict(size=dict(zip(("shortest_edge", "longest_edge"), bounds.values())))
    images = named("Qwen2VLImageProcessor")(
        patch_size=patch, merge_size=merge, temporal_patch_size=draw.randint(1, 2), **bounds,
        **colours(draw))
    types = dict(Qwen2VL="qwen2_vl", Qwen2_5_VL="qwen2_5_vl", Qwen3VL="qwen3_vl")
    token = tokenizer.convert_tokens_to_ids("<image>")
    config = dict(model_type=types[name], image_token_id=token,
                  vision_config=dict(patch_size=patch, spatial_merge_size=merge, window_size=112))
    return config, bare(
        getattr(transformers, name + "Processor"), image_processor=images, tokenizer=tokenizer,
        image_token="<image>", image_token_id=token, video_token="<film>", video_token_id=-1), "<image>"


def gemma4(draw, tokenizer):
    patch, pool = draw.randint(2, 4), draw.randint(1, 3)
    images = named("Gemma4ImageProcessor")(
        patch_size=patch, pooling_kernel_size=pool, max_soft_tokens=draw.choice([70, 140]),
        do_normalize=draw.random() < 0.5, **colours(draw))
    tokens = dict(image_token="<image>", boi_token="<img>", eoi_token="</img>")
    ids = {name + "_id": tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()}
    config = dict(model_type="gemma4", **ids, vision_config=dict(
        patch_size=patch, pooling_kernel_size=pool))
    return config, bare(
        transformers.Gemma4Processor, image_processor=images, tokenizer=tokenizer, **tokens,
        image_token_id=ids["image_token_id"], video_token="<film>", video_token_id=-1,
        audio_token="<sound>", audio_token_id=-1, boa_token="<", eoa_token=">"), "<image>"


def qwen2_audio(draw, tokenizer):
    mels, seconds = draw.randint(4, 20), draw.randint(1, 2)
    extractor = transformers.WhisperFeatureExtractor(
        feature_size=mels, chunk_length=seconds, hop_length=draw.choice([80, 160]))
    config = dict(model_type="qwen2_audio", audio_token_index=tokenizer.convert_tokens_to_ids(
        "<|AUDIO|>"), audio_config=dict(num_mel_bins=mels,
                                        max_source_positions=extractor.nb_max_frames // 2))
    # Version 4 adds the other two where they are missing.
    return config, transformers.Qwen2AudioProcessor(extractor, tokenizer), "".join(SOUND)


class OfWindows:
    """What VoxtralProcessor makes of sounds, beside a tokenizer that is not of mistral_common."""

    def __init__(self, feature_extractor, tokenizer, frames, n):
        self.feature_extractor, self.tokenizer = feature_extractor, tokenizer
        self.frames, self.n = frames, n

    def __call__(self, text, audio, return_tensors, sampling_rate, **options):
        unit = self.frames * self.feature_extractor.hop_length
        features = transformers.VoxtralProcessor._retrieve_input_features(
            self, audio, self.frames, sampling_rate=sampling_rate, padding=True, truncation=False,
            pad_to_multiple_of=unit, return_tensors="pt").numpy()
        rest = iter(audio)
        texts = [re.sub(re.escape(SOUND[1]), lambda found: found[0] * self.n * -(
            -len(next(rest)) // unit), one) for one in text]
        return dict(self.tokenizer(texts, return_tensors=return_tensors, **options),
                    input_features=features)


def voxtral(draw, tokenizer):
    mels, joined = draw.randint(4, 20), draw.choice([1, 2, 5, 10])
    extractor = transformers.WhisperFeatureExtractor(
        feature_size=mels, chunk_length=1, hop_length=draw.choice([80, 160]))
    frames = extractor.nb_max_frames
    config = dict(model_type="voxtral", audio_token_id=tokenizer.convert_tokens_to_ids(SOUND[1]),
                  audio_config=dict(num_mel_bins=mels, max_source_positions=frames // 2,
                                    hidden_size=20, intermediate_size=20 * joined))
    return config, OfWindows(extractor, tokenizer, frames, frames // 2 // joined), SOUND[1]


KINDS = {make.__name__: make for make in (idefics3, internvl, mistral3, pixtral, paligemma,
                                          llava_next, llava_onevision, qwen_vl, qwen2_audio)}
if transformers.utils.is_torch_available():
    KINDS["voxtral"] = voxtral
if IS_NEW:  # version 4 lacks Gemma 4, and needs more packages for Llama 4
    KINDS.update(gemma4=gemma4, llama4=llama4)


BARE = (internvl, llava_onevision, qwen_vl, gemma4, voxtral)  # these are not complete


def some_texts(draw, word, counts):
    words = ["a", "red", "heart", "is", "late", "\n", ", "]
    texts = []
    for count in counts:
        parts = [" ".join(draw.choices(words, k=draw.randint(0, 4))) for _ in range(count + 1)]
        texts.append(word.join(parts))
    return texts


def flat(pixels, counts):
    """The images or tiles of rows, one behind the other."""
    return np.concatenate([row[:count] for row, count in zip(pixels, counts)])


def name_version_of_pillow(folder):
    """Older ones resize otherwise than redco-lua does without the key."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).exists():
            config = json.loads((folder / name).read_text())
            images = config.get("image_processor", config)
            if "image_processor_type" in images:
                images["pillow"] = int(PIL.__version__.split(".")[0])
                (folder / name).write_text(json.dumps(config))


def write_case(folder, seed, kinds, source):
    draw = random.Random(f"processors {seed}")
    make = KINDS[kinds[seed % len(kinds)]]
    tokenizer = new_tokenizer(source)
    tokenizer.save_pretrained(folder)
    config, processor, word = make(draw, tokenizer)
    of_sound = make in (qwen2_audio, voxtral)
    if not of_sound:
        config.setdefault("image_token_id" if make in (idefics3, qwen_vl, gemma4)
                          else "image_token_index", tokenizer.convert_tokens_to_ids(word))
    if make is internvl:
        config.pop("image_token_index")
    config["text_config"] = dict(vocab_size=len(tokenizer))
    if make is paligemma:
        config["text_config"]["hidden_size"] = config["projection_dim"] = 2048
    (folder / "config.json").write_text(json.dumps(config))
    # Version 5 writes a whole processor into one file.
    is_whole = IS_NEW and make not in BARE and draw.random() < 0.5
    (processor if is_whole else processor.feature_extractor if of_sound
     else processor.image_processor).save_pretrained(folder)
    name_version_of_pillow(folder)
    counts = [draw.randint(0, 2) for _ in range(draw.randint(1, 3))]
    if sum(counts) == 0:
        counts[0] = 1
    is_listed = draw.random() < 0.5 or make is gemma4
    has_words = make is not paligemma or draw.random() < 0.6
    if not has_words or make is paligemma and 0 in counts and IS_NEW:
        # Version 5 puts the token of the beginning behind six letters of a text without images.
        counts = [1] * len(counts)
    texts = some_texts(draw, word if has_words else "", counts)
    generator = np.random.default_rng(seed)
    # Sizes of which no tile has 1, 3 or 4 rows, which the library takes for channels.
    images = [generator.integers(0, 256, (draw.randint(35, 65), draw.randint(35, 65), 3), np.uint8)
              for _ in range(0 if of_sound else sum(counts))]
    sounds = [generator.standard_normal(draw.randint(100, 40000), np.float32) / 5
              for _ in range(sum(counts) if of_sound else 0)]
    given = sounds or [Image.fromarray(image) for image in images]
    if is_listed and make in (idefics3, llava_onevision, gemma4):
        rest = iter(given)
        given = [[next(rest) for _ in range(count)] for count in counts]
    options = dict(padding=True)
    if draw.random() < 0.6:
        options["padding_side"] = draw.choice(["left", "right"])
    if make is paligemma and draw.random() < 0.5:
        options["suffix"] = some_texts(draw, "", counts)
    units = dict(audio=given, sampling_rate=16000) if of_sound else dict(images=given)
    expected = processor(text=list(texts), return_tensors="pt" if make is llama4 else "np", **units,
                         **options)
    if make is llama4:  # NumPy has no bfloat16
        expected = {key: (value.float() if key == "pixel_values" else value).numpy()
                    for key, value in expected.items()}
    expected.pop("mm_token_type_ids", None)  # which tokens are those of images
    if not is_listed:  # one for each image, which says nothing
        expected.pop("batch_num_images", None)
    arrays = {key: np.ascontiguousarray(value) for key, value in expected.items()}
    save_file(arrays, folder / "expected.safetensors")
    save_file({str(i): np.ascontiguousarray(unit) for i, unit in enumerate(
        sounds or [image.transpose(2, 0, 1) for image in images])}, folder / "images.safetensors")
    (folder / "case.json").write_text(json.dumps(dict(
        texts=texts, counts=counts, is_listed=is_listed if of_sound else isinstance(given[0], list),
        options=options, kind=make.__name__)))


def differences(folder):
    case = json.loads((folder / "case.json").read_text())
    expected = load_file(folder / "expected.safetensors")
    result = load_file(folder / "result.safetensors")
    for name, value in expected.items():
        found = result.get(name)
        if found is None:
            yield f"{name} is missing"
            continue
        if name == "batch_num_images":
            found = found[found > 0]
        elif name == "pixel_values" and case["kind"] == "qwen_vl":  # patches of each image
            sizes = result["image_grid_thw"].reshape(-1, 3).prod(1)
            found = flat(found.reshape(len(sizes), *found.shape[-2:]), sizes)
        elif found.ndim == value.ndim + 1:  # rows of images, of which transformers has a list
            counts = case["counts"]
            if case["kind"] in ("internvl", "llama4", "voxtral"):  # tiles, windows
                counts = [int((row.reshape(len(row), -1) != 0).any(1).sum()) for row in
                          result.get("pixel_values", result.get("input_features"))]
            found = flat(found, counts)
        if found.shape != value.shape:
            yield f"{name} has the shape {found.shape}, expected {value.shape}"
        elif name == "input_features" and np.allclose(found, value, 0, 1e-3):
            continue  # logarithms of sums in another order
        elif not np.array_equal(found, value):
            yield f"{name} is off by {np.abs(found.astype(float) - value).max():.3g}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--keep", type=pathlib.Path)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with_pillow.patch()
    ProcessorMixin._check_special_mm_tokens = lambda *arguments, **options: None
    n_wrong = 0
    with tempfile.TemporaryDirectory() as out:
        folders = []
        for seed in range(given.seed, given.seed + given.count):
            folders.append((given.keep or pathlib.Path(out)) / str(seed))
            folders[-1].mkdir(parents=True)
            write_case(folders[-1], seed, given.kind or list(KINDS), given.source)
        subprocess.run([given.program, given.source / "tests/peers/processors.lua", *folders],
                       check=True, env={**os.environ, "REDCO_SOURCE": str(given.source)})
        for folder in folders:
            messages = list(differences(folder))
            if messages:
                n_wrong += 1
                print(f"--seed {folder.name} --count 1 ({json.loads((folder / 'case.json').read_text())})")
                print("\n".join("  " + message for message in messages))
    print(f"{given.count} random processors, {n_wrong} of them differ")
    if n_wrong:
        raise SystemExit(1)


main()
