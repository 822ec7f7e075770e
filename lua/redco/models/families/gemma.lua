--- Gemma (Gemma Team, 2024), as Hugging Face's `GemmaForCausalLM`: LLaMA with norms whose weights
--- are distances from 1, and scaled embeddings.
local new_family = require "redco.models.kinds.llama_like"
local norms = require "redco.models.layers.norms"
local tasks = require "redco.models.tasks"

return new_family {
  model_type = "gemma",
  models = "Gemma 1, CodeGemma",
  remarks = "`hidden_act` \"gelu\" of the first folders means its tanh form, as for version 5",
  architecture = "GemmaForCausalLM",
  tasks = tasks.of_decoder("Gemma", { token_classification = "score" }),
  defaults = {
    vocab_size = 256000,
    hidden_size = 3072,
    intermediate_size = 24576,
    num_hidden_layers = 28,
    num_attention_heads = 16,
    num_key_value_heads = 16,
    head_dim = 256,
    hidden_act = "gelu_pytorch_tanh",
    max_position_embeddings = 8192,
    rms_norm_eps = 1e-6,
    attention_bias = false,
    tie_word_embeddings = true,
    pad_token_id = 0,
    bos_token_id = 2,
    eos_token_id = 1,
  },
  -- transformers does not read this key.
  optional = { "hidden_activation" },
  only = { use_bidirectional_attention = false },
  -- Early folders write "gelu" and mean the tanh form. Version 5 of transformers reads it so, too.
  complete = function(c)
    if c.hidden_act == "gelu" then c.hidden_act = "gelu_pytorch_tanh" end
  end,
  facts = function(c)
    return {
      norm = norms.rms_from_one, qkv_bias = c.attention_bias, o_bias = c.attention_bias,
      embedding_scale = math.sqrt(c.hidden_size), rounds_embedding_scale = true,
    }
  end,
}
