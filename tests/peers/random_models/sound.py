"""Random configurations of models of sound, whose inputs are samples."""
import transformers

from .draw import ACTIVATIONS, heads
from .pictures import clip_text


def wav2vec2(draw):
    n_heads, width = heads(draw)
    n, is_stable, norm = draw.randint(1, 3), draw.maybe(), draw.choice(["group", "layer"])
    # Version 5 adds up the last layer before its norm.
    is_same = not (is_stable and transformers.__version__.startswith("5."))
    return dict(
        vocab_size=draw.randint(5, 20), hidden_size=width, num_attention_heads=n_heads,
        num_hidden_layers=draw.randint(1, 3), intermediate_size=draw.randint(3, 30),
        hidden_act=draw.choice(ACTIVATIONS), feat_extract_activation=draw.choice(ACTIVATIONS),
        layer_norm_eps=draw.choice([1e-5, 1e-3]), feat_extract_norm=norm,
        conv_dim=[draw.randint(2, 8) for _ in range(n)],
        conv_stride=[draw.randint(1, 3) for _ in range(n)],
        conv_kernel=[draw.randint(1, 4) for _ in range(n)], conv_bias=norm == "layer",
        num_conv_pos_embeddings=draw.randint(2, 6),
        num_conv_pos_embedding_groups=draw.choice([1, n_heads]),
        do_stable_layer_norm=is_stable, mask_time_prob=draw.choice([0.0, 0.1]),
        use_weighted_layer_sum=is_same and draw.maybe(), classifier_proj_size=draw.randint(2, 12),
        ctc_loss_reduction="mean", ctc_zero_infinity=draw.maybe(), pad_token_id=draw.randint(0, 2))


def hubert(draw):
    return dict(wav2vec2(draw), feat_proj_layer_norm=draw.maybe())


def wavlm(draw):
    n = 4 * draw.randint(1, 3)
    return dict(wav2vec2(draw), num_buckets=n, max_bucket_distance=n + draw.randint(1, 9))


def parakeet_encoder(draw):
    n_heads, width = heads(draw)
    factor = draw.choice([2, 4, 8])
    is_old = transformers.__version__.startswith("4.")  # without convolution_bias
    more = {} if is_old else dict(convolution_bias=draw.maybe())
    return dict(
        more, hidden_size=width, num_attention_heads=n_heads, num_hidden_layers=draw.randint(1, 3),
        intermediate_size=draw.randint(3, 30), hidden_act=draw.choice(ACTIVATIONS),
        attention_bias=draw.maybe(), conv_kernel_size=draw.choice([1, 3, 5, 9]),
        subsampling_factor=factor, subsampling_conv_channels=draw.randint(1, 6),
        subsampling_conv_kernel_size=draw.choice([3, 5]), num_mel_bins=factor * draw.randint(1, 3),
        scale_input=draw.maybe())


def parakeet(draw):
    size = draw.randint(6, 20)
    return dict(vocab_size=size, encoder_config=dict(parakeet_encoder(draw)),
                ctc_zero_infinity=draw.maybe(), pad_token_id=draw.randint(0, size - 1))


def clap_text(draw):
    config = clip_text(draw)
    config.update(projection_hidden_act=draw.choice(ACTIVATIONS), pad_token_id=draw.randint(0, 3),
                  type_vocab_size=draw.randint(1, 2))
    config["max_position_embeddings"] += 4
    return config


def clap_audio(draw):
    """Spectra that fill their squares, or are shorter."""
    n, patch, window = draw.randint(1, 3), draw.randint(2, 3), draw.randint(2, 3)
    stride = draw.choice([patch, patch - 2 if patch > 2 else patch])
    side = 2 ** (n - 1) * window * stride
    while side < 3 * patch:  # three parts stand beside each other
        side *= 2
    pieces = draw.choice([k for k in (1, 2, 4) if k * side <= 48])
    side *= pieces
    n_heads = [draw.choice([1, 2]) for _ in range(n)]
    size = 2 * draw.randint(1, 4)
    return dict(
        window_size=window, num_mel_bins=side // pieces, spec_size=side, patch_size=patch,
        patch_stride=[stride, stride], hidden_act=draw.choice(ACTIVATIONS), depths=[
            draw.randint(1, 2) for _ in range(n)], num_attention_heads=n_heads,
        patch_embeds_hidden_size=size, hidden_size=size * 2 ** (n - 1),
        aff_block_r=draw.choice([1, 2]), enable_fusion=draw.maybe(), enable_patch_layer_norm=draw.maybe(0.7),
        qkv_bias=draw.maybe(0.7), mlp_ratio=draw.choice([1.0, 2.0]),
        layer_norm_eps=draw.choice([1e-5, 0.1]), projection_dim=draw.randint(2, 12),
        projection_hidden_act=draw.choice(ACTIVATIONS))


def clap(draw):
    return dict(text_config=clap_text(draw), audio_config=clap_audio(draw),
                projection_dim=draw.randint(2, 12), projection_hidden_act=draw.choice(ACTIVATIONS))


def classes(draw, of_sound):
    config = of_sound(draw)
    config["id2label"] = {i: f"class {i}" for i in range(draw.randint(2, 7))}
    config["problem_type"] = None
    return config
