"""Random configurations of models with an encoder and a decoder."""
import transformers

from .decoders import gemma2, gpt2
from .draw import ACTIVATIONS, ENCODER_DECODERS, common, draws, heads
from .pictures import vit


@draws("bart", of=ENCODER_DECODERS)
def bart(draw):
    config = common(draw)
    n_heads, width = heads(draw, 3)
    n_layers = draw.randint(1, 3)
    config.update(
        d_model=width, encoder_layers=n_layers, decoder_layers=draw.randint(1, n_layers),
        encoder_attention_heads=n_heads, decoder_attention_heads=draw.choice([1, n_heads]),
        encoder_ffn_dim=draw.randint(3, 30), decoder_ffn_dim=draw.randint(3, 30), dropout=0.0,
        max_position_embeddings=draw.randint(20, 40), activation_function=draw.choice(ACTIVATIONS),
        scale_embedding=draw.maybe(), decoder_start_token_id=draw.token(config["vocab_size"]),
        forced_eos_token_id=draw.choice([None, 2]))
    return config


@draws("led", of=ENCODER_DECODERS)
def led(draw):
    # With a window of 2 the library fails.
    config, window = bart(draw), 2 * draw.randint(2, 3)
    windows = [window * draw.randint(1, 2) for _ in range(config["encoder_layers"])]
    n = config.pop("max_position_embeddings")
    config.pop("scale_embedding")  # which the library does not read
    config.setdefault("pad_token_id", 1)
    config.update(  # the library fills the last window
        max_encoder_position_embeddings=n + 6, max_decoder_position_embeddings=n,
        attention_window=draw.choice([window, windows]))
    return config


@draws("t5", "mt5", "umt5", of=ENCODER_DECODERS)
def t5(draw):
    config = common(draw)
    gate = draw.choice(["", "gated-"])
    config.update(
        d_model=draw.randint(3, 20), d_kv=draw.randint(1, 8), d_ff=draw.randint(3, 30),
        num_layers=draw.randint(1, 3), num_heads=draw.randint(1, 4), dropout_rate=0.0,
        relative_attention_num_buckets=2 * draw.randint(2, 8),
        relative_attention_max_distance=draw.randint(17, 64),
        layer_norm_epsilon=draw.choice([1e-6, 1e-3, 0.1]),
        feed_forward_proj=gate + draw.choice(["relu", "gelu", "silu", "tanh"]),
        tie_word_embeddings=draw.maybe(), decoder_start_token_id=draw.token(config["vocab_size"]))
    config.setdefault("pad_token_id", 0)
    if draw.maybe():
        # With more than in the encoder, the library's cache is too short.
        config["num_decoder_layers"] = draw.randint(1, config["num_layers"])
    return config


@draws("longt5", of=ENCODER_DECODERS)
def longt5(draw):
    config = t5(draw)
    config.update(local_radius=draw.randint(1, 4), global_block_size=draw.randint(1, 2),
                  encoder_attention_type=draw.choice(["local", "transient-global"]))
    return config


@draws("marian", of=ENCODER_DECODERS)
def marian(draw):
    config = bart(draw)
    config["share_encoder_decoder_embeddings"] = draw.maybe(0.7)
    config.setdefault("pad_token_id", 0)
    if not config["share_encoder_decoder_embeddings"]:
        config["decoder_vocab_size"] = config["vocab_size"]
    return config


@draws("mbart", "pegasus", "blenderbot", of=ENCODER_DECODERS)
def mbart(draw):
    config = bart(draw)
    config.setdefault("pad_token_id", 1)
    return config


@draws("m2m_100", of=ENCODER_DECODERS)
def m2m_100(draw):
    config = mbart(draw)
    config["pad_token_id"] = draw.randint(0, 3)  # a row of the table
    if config["d_model"] < 4:  # the library divides by the number of frequencies less 1
        config["d_model"] *= 2
    return config


@draws("whisper", of=ENCODER_DECODERS)
def whisper(draw):
    config = bart(draw)
    config.setdefault("pad_token_id", 0)
    config.update(num_mel_bins=draw.randint(1, 12), max_source_positions=draw.randint(2, 9),
                  max_target_positions=config.pop("max_position_embeddings"),
                  begin_suppress_tokens=draw.choice([None, [1, 2]]), suppress_tokens=None)
    if config["d_model"] < 4:  # the library divides by the number of frequencies less 1
        config["d_model"] *= 2
    del config["forced_eos_token_id"]
    return config


@draws("vision-encoder-decoder", of=ENCODER_DECODERS)
def captioner(draw):
    encoder, decoder = vit(draw), gpt2(draw, padding=False)
    decoder.update(add_cross_attention=True, is_decoder=True, tie_word_embeddings=True)
    decoder["n_positions"] += 20  # the library does not know where its positions end
    if draw.maybe():  # then there is no projection between them
        encoder["hidden_size"] = decoder["n_embd"]
        encoder["num_attention_heads"] = decoder["n_head"]
    return dict(encoder=dict(encoder, model_type="vit"), decoder=dict(decoder, model_type="gpt2"),
                tie_word_embeddings=False, pad_token_id=draw.token(decoder["vocab_size"]),
                decoder_start_token_id=draw.token(decoder["vocab_size"]))


def whisper_classes(draw):
    config = whisper(draw)
    config.update(classifier_proj_size=draw.randint(2, 20), use_weighted_layer_sum=draw.maybe(),
                  id2label={i: f"class {i}" for i in range(draw.randint(2, 7))}, problem_type=None)
    return config


@draws("t5gemma", of=ENCODER_DECODERS)
def t5gemma(draw):
    parts = {}
    for kind in ("encoder", "decoder"):
        config = parts[kind] = gemma2(draw)
        n_kv = config["num_key_value_heads"]
        config["hidden_size"] = config["num_attention_heads"] * draw.randint(2, 9)
        config.setdefault("pad_token_id", 0)
        config["num_key_value_heads"] = n_kv
    encoder, decoder = parts["encoder"], parts["decoder"]
    n = decoder["vocab_size"] = encoder["vocab_size"]
    decoder["pad_token_id"] = encoder["pad_token_id"] = draw.token(n)
    decoder.update(bos_token_id=draw.token(n), eos_token_id=draw.token(n))
    if transformers.__version__.startswith("4."):
        # Its cache of the encoder's output has the decoder's windows, and its head their first size.
        decoder["sliding_window"] = 30
        for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"):
            decoder[key] = encoder[key]
    return dict(encoder=encoder, decoder=decoder, vocab_size=n,
                tie_word_embeddings=draw.maybe() or transformers.__version__.startswith("4."),
                dropout_rate=0.0,
                pad_token_id=decoder["pad_token_id"], bos_token_id=decoder["bos_token_id"],
                eos_token_id=decoder["eos_token_id"])
