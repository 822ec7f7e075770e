"""Random configurations of models that read sound with texts, and their inputs."""
import torch

from .decoders import llama, qwen2
from .draw import ACTIVATIONS, heads
from .images_with_text import INPUTS, counts_of, of_images, rows_with, some_pixels, with_type
from . import placed_patches
from .states import IS_OLD


@of_images
def qwen2_audio(draw):
    text = with_type(qwen2(draw), "qwen2")
    if text.get("pad_token_id") == -1:
        text["pad_token_id"] = 0
    if not IS_OLD:  # which never ties it
        text["tie_word_embeddings"] = False
    n_heads, width = heads(draw)
    audio = dict(
        num_mel_bins=draw.randint(1, 12), max_source_positions=draw.randint(4, 9), d_model=width,
        encoder_layers=draw.randint(1, 3), encoder_attention_heads=n_heads,
        encoder_ffn_dim=draw.randint(3, 30), activation_function=draw.choice(ACTIVATIONS),
        scale_embedding=draw.maybe())
    return dict(text_config=text, audio_config=audio,
                audio_token_index=draw.token(text["vocab_size"] - 6) + 6,
                tie_word_embeddings=text["tie_word_embeddings"])


@of_images
def voxtral(draw):
    text = with_type(llama(draw), "llama")
    if text.get("pad_token_id") == -1:
        text["pad_token_id"] = 0
    if not IS_OLD:
        text["tie_word_embeddings"] = False
    # It has other defaults than LLaMA.
    text.setdefault("num_key_value_heads", text["num_attention_heads"])
    text.setdefault("head_dim", text["hidden_size"] // text["num_attention_heads"])
    n_heads, width = heads(draw)
    joined, n = draw.randint(1, 3), draw.randint(1, 4)
    audio = dict(
        num_mel_bins=draw.randint(1, 12), max_source_positions=joined * n, hidden_size=width,
        num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        intermediate_size=joined * width, activation_function=draw.choice(ACTIVATIONS),
        scale_embedding=draw.maybe())
    return dict(text_config=text, audio_config=audio, projector_hidden_act=draw.choice(ACTIVATIONS),
                audio_token_id=draw.token(text["vocab_size"] - 6) + 6,
                tie_word_embeddings=text["tie_word_embeddings"])


def with_windows(draw, config, ids):
    """Rows with windows of sound."""
    audio = config["audio_config"]
    n = audio["max_source_positions"] * audio["hidden_size"] // audio["intermediate_size"]
    counts = counts_of(draw, len(ids))
    features = some_pixels(draw, sum(counts), audio["num_mel_bins"],
                           2 * audio["max_source_positions"])
    return dict(input_ids=rows_with(draw, config, ids, [[n] * count for count in counts]),
                input_features=features)


def with_sounds(draw, config, ids):
    """Rows with sounds of several lengths, one of at least two tokens: else transformers puts them
    into the rows by itself. Rows with fewer sounds are filled up, if each row has its own."""
    audio = config["audio_config"]
    most, counts = 2 * audio["max_source_positions"], counts_of(draw, len(ids))
    frames = [draw.randint(1, most) for _ in range(sum(counts))]
    frames[0] = draw.randint(7, most)
    rest = iter(frames)
    frames = [[next(rest) for _ in range(count)] for count in counts]
    lengths = [[(n + 1) // 4 for n in own] for own in frames]
    if has_rows := draw.maybe():
        frames = [own + [0] * (max(counts) - len(own)) for own in frames]
    sizes = torch.tensor([n for own in frames for n in own])
    mask = (torch.arange(most) < sizes[:, None]).long()
    features = some_pixels(draw, len(sizes), audio["num_mel_bins"], most)
    features[sizes == 0] = 0
    if has_rows:
        features, mask = (t.unflatten(0, (len(counts), -1)) for t in (features, mask))
    return dict(input_ids=rows_with(draw, config, ids, lengths), input_features=features,
                feature_attention_mask=mask)


INPUTS.update(qwen2_audio=with_sounds, voxtral=with_windows)


def of_library(inputs, model):
    """The inputs as transformers takes them: only real sounds, in one dimension."""
    if "feature_attention_mask" not in inputs:
        return placed_patches.of_library(inputs, model)
    mask = inputs["feature_attention_mask"].flatten(0, -2)
    features, is_real = inputs["input_features"].flatten(0, -3), mask.any(1)
    return dict(inputs, input_features=features[is_real], feature_attention_mask=mask[is_real])
