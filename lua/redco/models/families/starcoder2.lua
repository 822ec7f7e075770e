--- StarCoder2 (Lozhkov et al., 2024), as Hugging Face's `Starcoder2ForCausalLM`: LLaMA with layer
--- norms, biases, and feed-forward layers without a gate.
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

return new_family {
  model_type = "starcoder2",
  models = "StarCoder2",
  architecture = "Starcoder2ForCausalLM",
  tasks = tasks.of_decoder("Starcoder2", { token_classification = "score" }),
  defaults = {
    vocab_size = 49152,
    hidden_size = 3072,
    intermediate_size = 12288,
    num_hidden_layers = 30,
    num_attention_heads = 24,
    num_key_value_heads = 2,
    hidden_act = "gelu_pytorch_tanh",
    max_position_embeddings = 4096,
    initializer_range = 0.018042,
    norm_epsilon = 1e-5,
    residual_dropout = 0,
    embedding_dropout = 0,
    use_bias = true,
    tie_word_embeddings = true,
    bos_token_id = 50256,
    eos_token_id = 50256,
  },
  -- Model folders contain the other keys, which transformers does not read.
  optional = { "sliding_window", "activation_function", "attention_softmax_in_fp32",
    "layer_norm_epsilon", "mlp_type", "norm_type", "scale_attention_softmax_in_fp32",
    "scale_attn_weights" },
  facts = function(c)
    return {
      norm = norms.layer, eps = "norm_epsilon", mlp_names = { "c_fc", "c_proj" },
      qkv_bias = c.use_bias, o_bias = c.use_bias, mlp_bias = c.use_bias,
      embedding_dropout = c.embedding_dropout, window = windows.of_all(c),
      residual_dropouts = { c.residual_dropout, c.residual_dropout },
    }
  end,
}
