"""Random configurations of encoders of texts."""
from .decoders import llama, rope_scaling, with_newer_name
from .draw import ACTIVATIONS, ENCODERS, common, draws, heads
from .states import IS_OLD


@draws("bert", "megatron-bert", of=ENCODERS)
def bert(draw, **more):
    config = common(draw)
    n_heads, width = heads(draw)
    config.update(
        hidden_size=width, num_hidden_layers=draw.randint(1, 3), num_attention_heads=n_heads,
        intermediate_size=draw.randint(3, 40), hidden_act=draw.choice(ACTIVATIONS),
        max_position_embeddings=draw.randint(10, 40), type_vocab_size=draw.randint(1, 3),
        layer_norm_eps=draw.choice([1e-12, 1e-3, 0.1]), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **more)
    return config


@draws("roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm",
       "xlm-roberta-xl", of=ENCODERS)
def roberta(draw):
    config = bert(draw)
    config.setdefault("pad_token_id", 1)
    config["max_position_embeddings"] += config["pad_token_id"] + 1
    return config


@draws("ernie", of=ENCODERS)
def ernie(draw):
    return bert(draw, use_task_id=draw.maybe(), task_type_vocab_size=draw.randint(1, 4))


@draws("electra", of=ENCODERS)
def electra(draw):
    config = bert(draw)
    config["embedding_size"] = draw.choice([config["hidden_size"], draw.randint(3, 20)])
    return config


@draws("xlnet", of=ENCODERS)
def xlnet(draw):
    config = common(draw)
    n_heads, width = heads(draw)
    config.update(
        d_model=width, n_layer=draw.randint(1, 3), n_head=n_heads, d_inner=draw.randint(3, 40),
        ff_activation=draw.choice(ACTIVATIONS), layer_norm_eps=draw.choice([1e-12, 1e-3, 0.1]),
        clamp_len=draw.choice([-1, 3]), summary_activation=draw.choice(["tanh", "gelu"]),
        dropout=0.0, summary_last_dropout=0.0)
    return config


@draws("distilbert", of=ENCODERS)
def distilbert(draw):
    config = common(draw)
    n_heads, width = heads(draw)
    config.update(
        dim=width, n_layers=draw.randint(1, 3), n_heads=n_heads, hidden_dim=draw.randint(3, 40),
        activation=draw.choice(ACTIVATIONS), max_position_embeddings=draw.randint(10, 40),
        dropout=0.0, attention_dropout=0.0, qa_dropout=0.0, seq_classif_dropout=0.0)
    return config


@draws("deberta-v2", of=ENCODERS)
def deberta(draw):
    config = bert(draw)
    config.update(
        type_vocab_size=draw.randint(0, 3), position_biased_input=draw.maybe(),
        pooler_dropout=0, pooler_hidden_act=draw.choice(ACTIVATIONS))
    if draw.maybe(0.8):
        config.update(
            relative_attention=True, share_att_key=draw.maybe(),
            pos_att_type=draw.choice([["c2p"], ["p2c"], ["p2c", "c2p"], "c2p|p2c"]),
            norm_rel_ebd=draw.choice(["none", "layer_norm"]))
    if draw.maybe():
        config.update(position_buckets=draw.randint(2, 6), max_relative_positions=draw.randint(8, 20))
    if draw.maybe(0.3):
        config["embedding_size"] = draw.randint(3, 20)
    if draw.maybe(0.4):
        config.update(conv_kernel_size=draw.choice([1, 3, 5]), conv_act=draw.choice(ACTIVATIONS),
                      conv_groups=draw.choice([1, config["num_attention_heads"]]))
    return config


@draws("deberta", of=ENCODERS)
def deberta_1(draw):
    config = deberta(draw)
    for key in ("share_att_key", "norm_rel_ebd", "position_buckets", "conv_kernel_size",
                "conv_act", "conv_groups"):
        config.pop(key, None)
    return config


@draws("modernbert", of=ENCODERS)
def modernbert(draw):
    config = common(draw)
    n_heads, width = heads(draw)
    config.setdefault("pad_token_id", draw.token(config["vocab_size"]))
    config.update(
        hidden_size=width, num_hidden_layers=draw.randint(1, 4), num_attention_heads=n_heads,
        intermediate_size=draw.randint(3, 40), hidden_activation=draw.choice(ACTIVATIONS),
        max_position_embeddings=draw.randint(10, 40), norm_eps=draw.choice([1e-5, 1e-3, 0.1]),
        norm_bias=draw.maybe(), attention_bias=draw.maybe(), mlp_bias=draw.maybe(),
        decoder_bias=draw.maybe(0.7), classifier_bias=draw.maybe(),
        global_rope_theta=draw.choice([100.0, 160000.0]),
        local_rope_theta=draw.choice([50.0, 10000.0] + IS_OLD * [None]),  # without, 5 fails
        global_attn_every_n_layers=draw.randint(1, 3), local_attention=draw.randint(1, 12),
        classifier_pooling=draw.choice(["cls", "mean"]),
        classifier_activation=draw.choice(ACTIVATIONS))
    return config


@draws("mpnet", of=ENCODERS)
def mpnet(draw):
    config = bert(draw)
    config["vocab_size"] = max(config["vocab_size"], 2)
    del config["type_vocab_size"]
    config.update(pad_token_id=1, max_position_embeddings=config["max_position_embeddings"] + 2)
    return config


@draws("albert", of=ENCODERS)
def albert(draw):
    config = bert(draw)
    config.update(
        embedding_size=draw.choice([config["hidden_size"], draw.randint(3, 20)]),
        num_hidden_layers=draw.randint(1, 4), classifier_dropout_prob=0.0)
    n_groups = config["num_hidden_groups"] = draw.randint(1, config["num_hidden_layers"])
    # Version 4 fails with more.
    config["inner_group_num"] = draw.randint(1, min(2, config["num_hidden_layers"] // n_groups))
    return config


@draws("nomic_bert", of=ENCODERS)
def nomic_bert(draw):
    config = bert(draw)
    config.setdefault("pad_token_id", 0)
    config["hidden_size"] = config["num_attention_heads"] * 2 * draw.randint(2, 5)
    rope = rope_scaling(draw, config["hidden_size"] // config["num_attention_heads"] // 2)
    config["rope_parameters"] = dict(with_newer_name(rope) or dict(rope_type="default"),
                                     rope_theta=draw.choice([100.0, 1000.0]))
    return config


def esm(draw):
    config = nomic_bert(draw)
    del config["rope_parameters"], config["type_vocab_size"], config["hidden_act"]
    config.update(
        rope_theta=draw.choice([100.0, 10000.0]), emb_layer_norm_before=draw.maybe(),
        position_embedding_type=draw.choice(["absolute", "rotary", "rotary"]),
        token_dropout=draw.maybe(), mask_token_id=draw.token(config["vocab_size"]))
    config["max_position_embeddings"] += config["pad_token_id"] + 1
    return config


def eurobert(draw):
    config = llama(draw)
    config.setdefault("pad_token_id", 0)
    config["classifier_pooling"] = draw.choice(["bos", "mean", "late"])
    return config


if not IS_OLD:  # version 4 lacks EuroBERT, and forgets ESM's padding when it counts masked tokens
    draws("eurobert", of=ENCODERS)(eurobert)
    draws("esm", of=ENCODERS)(esm)


@draws("gte", of=ENCODERS)
def gte(draw):
    config = nomic_bert(draw)
    config["type_vocab_size"] = draw.randint(0, 2)
    return config
