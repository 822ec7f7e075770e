--- Seed-OSS (ByteDance Seed, 2025), as Hugging Face's `SeedOssForCausalLM`: LLaMA with a bias of
--- its own for the output of attention, and dropout.
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "seed_oss",
  models = "Seed-OSS",
  architecture = "SeedOssForCausalLM",
  tasks = tasks.of_decoder("SeedOss",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 155136,
    intermediate_size = 27648,
    num_hidden_layers = 64,
    num_attention_heads = 80,
    num_key_value_heads = 8,
    head_dim = 128,
    hidden_act = "silu",
    max_position_embeddings = 524288,
    rms_norm_eps = 1e-6,
    attention_bias = true,
    attention_out_bias = false,
    attention_dropout = 0.1,
    residual_dropout = 0.1,
    mlp_bias = false,
    bos_token_id = 0,
    pad_token_id = 1,
    eos_token_id = 2,
  },
  nullable = { "num_key_value_heads", "head_dim" },
  optional = { "pretraining_tp" },
  facts = function(c)
    return {
      qkv_bias = c.attention_bias, o_bias = c.attention_out_bias, mlp_bias = c.mlp_bias,
      residual_dropouts = { c.residual_dropout, c.residual_dropout },
    }
  end,
}
