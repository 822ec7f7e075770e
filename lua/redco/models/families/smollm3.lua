--- SmolLM3 (2025), as Hugging Face's `SmolLM3ForCausalLM`: LLaMA with layers that have no
--- positions.
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.llama_like"
local tasks = require "redco.models.tasks"
local windows = require "redco.models.layers.windows"

local smollm3 = {
  model_type = "smollm3",
  models = "SmolLM3",
  architecture = "SmolLM3ForCausalLM",
  tasks = tasks.of_decoder("SmolLM3",
    { token_classification = "score", question_answering = true }, "transformer"),
  defaults = {
    vocab_size = 128256,
    hidden_size = 2048,
    intermediate_size = 11008,
    num_hidden_layers = 36,
    num_attention_heads = 16,
    num_key_value_heads = 4,
    hidden_act = "silu",
    max_position_embeddings = 32768,
    rms_norm_eps = 1e-6,
    rope_theta = 2000000,
    use_sliding_window = false,
    no_rope_layer_interval = 4,
    attention_bias = false,
    mlp_bias = false,
    tie_word_embeddings = true,
    bos_token_id = 128000,
    eos_token_id = 128001,
    pad_token_id = 128004,
  },
  nullable = { "num_key_value_heads" },
  optional = { "sliding_window", "layer_types", "no_rope_layers", "max_window_layers" },
}

function smollm3.complete(c)
  if not c.no_rope_layers then
    c.no_rope_layers = {}
    for i = 1, c.num_hidden_layers do
      c.no_rope_layers[i] = i % c.no_rope_layer_interval ~= 0 and 1 or 0
    end
  elseif type(c.no_rope_layers) ~= "table" or #c.no_rope_layers ~= c.num_hidden_layers then
    fail("smollm3: no_rope_layers must be a list of %d numbers, one for each layer",
      c.num_hidden_layers)
  end
  windows.complete(c, function(i)
    return c.use_sliding_window and c.sliding_window and c.no_rope_layers[i + 1] == 0
  end)
end

function smollm3.facts(c)
  return {
    qkv_bias = c.attention_bias, o_bias = c.attention_bias, mlp_bias = c.mlp_bias,
    window = windows.of_types(c),
    -- Despite the key's name, 0 means no positions.
    rope = function(i, whole) return c.no_rope_layers[i + 1] ~= 0 and whole or nil end,
  }
end

return new_family(smollm3)
