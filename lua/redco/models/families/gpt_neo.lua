--- GPT-Neo (Black et al., 2021), as Hugging Face's `GPTNeoForCausalLM`: GPT-2 with windows in every
--- other layer and scores without a scale.
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local new_family = require "redco.models.kinds.gpt_like"
local tasks = require "redco.models.tasks"

local gpt_neo = {
  model_type = "gpt_neo",
  models = "GPT-Neo",
  architecture = "GPTNeoForCausalLM",
  tasks = tasks.of_decoder("GPTNeo",
    { token_classification = "classifier", question_answering = true }),
  defaults = {
    vocab_size = 50257,
    max_position_embeddings = 2048,
    hidden_size = 2048,
    num_layers = 24,
    num_heads = 16,
    window_size = 256,
    activation_function = "gelu_new",
    resid_dropout = 0,
    embed_dropout = 0,
    attention_dropout = 0,
    classifier_dropout = 0.1,
    layer_norm_epsilon = 1e-5,
    initializer_range = 0.02,
    tie_word_embeddings = true,
    bos_token_id = 50256,
    eos_token_id = 50256,
  },
  -- Other names of the same settings (attribute_map of transformers).
  aliases = { num_attention_heads = "num_heads", num_hidden_layers = "num_layers" },
  -- Model folders contain the last keys, which transformers does not read.
  optional = { "intermediate_size", "attention_types", "attention_layers", "gradient_checkpointing",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj" },
  -- Masks that old checkpoints have among the weights.
  ignored = { "%.attention%.bias$", "%.attention%.masked_bias$" },
}

-- Expands attention_types, { { kinds, n }, ... }, to the kind of each layer, "global" or "local".
local function expanded(c)
  local list = {}
  for _, row in ipairs(c.attention_types or { { { "global", "local" }, c.num_layers / 2 } }) do
    local kinds, n = unpack(type(row) == "table" and row or {})
    if type(kinds) ~= "table" or type(n) ~= "number" then
      fail "gpt_neo: attention_types must be a list like [[[\"global\", \"local\"], 12]]"
    end
    for _ = 1, n do
      for _, kind in ipairs(kinds) do list[#list + 1] = kind end
    end
  end
  return list
end

function gpt_neo.complete(c)
  for _, key in ipairs { "attention_layers", "attention_types" } do
    if c[key] ~= nil and type(c[key]) ~= "table" then
      fail("gpt_neo: %s is %s, expected a list", key, c[key])
    end
  end
  c.attention_layers = c.attention_layers or expanded(c)
end

function gpt_neo.check(c)
  blocks.check_multiple(c, "hidden_size", "num_heads")
  if #c.attention_layers ~= c.num_layers then
    fail("gpt_neo: attention_layers has %d entries, but num_layers is %d", #c.attention_layers,
      c.num_layers)
  end
  for _, kind in ipairs(c.attention_layers) do
    if kind ~= "global" and kind ~= "local" then
      fail("gpt_neo: attention_layers have %s, which is not supported, only global and local", kind)
    end
  end
end

function gpt_neo.facts(c)
  return {
    width = c.hidden_size, n_layers = c.num_layers, n_heads = c.num_heads,
    inner = c.intermediate_size, positions = "max_position_embeddings", attention_scale = 1,
    attention = "attn.attention", mlp = { "c_fc", "c_proj" },
    embedding_dropout = c.embed_dropout, attention_dropout = c.attention_dropout,
    residual_dropout = c.resid_dropout,
    window = function(i) return c.attention_layers[i + 1] == "local" and c.window_size or nil end,
  }
end

return new_family(gpt_neo)
