--- CLAP's model of texts (Wu et al., 2023), as Hugging Face's `ClapTextModel` and
--- `ClapTextModelWithProjection`: RoBERTa with a pooler.
local blocks = require "redco.models.layers.blocks"
local new_encoder = require "redco.models.kinds.bert_like"
local projection = require "redco.models.sound.clap_projection"
local tower = require "redco.models.kinds.tower"

local prefix = "text_model"

local roberta = new_encoder {
  model_type = "clap_text_model",
  class = "ClapText",
  prefix = prefix,
  positions_of_tokens = true,
  more = { vocab_size = 50265, max_position_embeddings = 514, type_vocab_size = 1,
    initializer_factor = 1.0, projection_dim = 512, projection_hidden_act = "relu",
    pad_token_id = 1, bos_token_id = 0, eos_token_id = 2 },
  tasks = {},
}

-- CLAP's configuration has initializer_factor instead of initializer_range, and there is no head.
roberta.defaults.initializer_range = nil
roberta.defaults.tie_word_embeddings = nil
local range = 0.02

local text = setmetatable({
  models = "the texts' half of CLAP",
  prefix = prefix .. ".",
  own_prefix = "",
  inputs = { "input_ids", "attention_mask", "position_ids" },
  ignored = { "position_ids$", "token_type_ids$", "^text_projection%.", "^audio_model%.",
    "^audio_projection%.", "^logit_scale_" },
  projection = projection.new "text_projection",
  default_task = false, tasks = false, new_forward = false,  -- it is a part of the tower
}, { __index = roberta })

-- Lets the encoder read the parameters under names with the prefix.
local function with_prefix(params)
  return setmetatable({}, { __index = function(_, name) return params[name:sub(#prefix + 2)] end })
end

function text.add_parameters(c, add)
  local embedded = blocks.normal(range * c.initializer_factor)
  local normal = blocks.normal(projection.deviation(c))
  local with_range = setmetatable({ initializer_range = range }, { __index = c })
  roberta.add_parameters(with_range, function(name, sizes, init, kind)
    if name:find "_embeddings%.weight$" then init = embedded end
    add(name:sub(#prefix + 2), sizes, kind == "linear" and normal or init, kind)
  end)
  blocks.add_linear(add, "pooler.dense", c.hidden_size, c.hidden_size, normal)
end

function text.new_tower(c)
  local run = roberta.new_forward(c)
  return function(params, inputs, o, kept)
    local x = run(with_prefix(params), inputs, o, kept)
    return x, blocks.linear(params, "pooler.dense", x:select(1, 0), o):tanh()
  end
end

return tower.family(text)
