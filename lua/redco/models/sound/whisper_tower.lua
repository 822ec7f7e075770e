--- Whisper's encoder as a tower of decoders that read sound (kinds/features_in_text.lua).
local blocks = require "redco.models.layers.blocks"
local encoder = require "redco.models.sound.whisper_encoder"

-- Whisper's names of sizes, other names of the same, and the defaults.
local sizes = {
  { "d_model", "hidden_size", 1280 },
  { "encoder_layers", "num_hidden_layers", 32 },
  { "encoder_attention_heads", "num_attention_heads", 20 },
  { "encoder_ffn_dim", "intermediate_size", 5120 },
}

--- Returns a tower. A row has model_type, architecture, and
---   writes_other_names: whether configurations have the other names of sizes
---   pool(x): changes the hidden states [n, T, size] before the last norm
---   seen(c, inputs): the positions [n, T] that are no padding, or nil for all
return function(row)
  local tower = { model_type = row.model_type, architecture = row.architecture, prefix = "",
    aliases = {},
    defaults = {
      num_mel_bins = 128,
      max_source_positions = 1500,
      activation_function = "gelu",
      dropout = 0.0,
      attention_dropout = 0.0,
      activation_dropout = 0.0,
      initializer_range = 0.02,
    },
    -- In transformers scale_embedding has no effect.
    optional = { "scale_embedding", "vocab_size" },
    only = { encoder_layerdrop = 0, layerdrop = 0 },
  }
  local own_name = {}
  for _, size in ipairs(sizes) do
    local whispers, other, default = unpack(size)
    local own, alias = whispers, other
    if row.writes_other_names then own, alias = other, whispers end
    own_name[whispers], tower.defaults[own] = own, default
    if alias == "num_hidden_layers" then
      table.insert(tower.optional, alias)  -- which version 4 of transformers writes, too
    else
      tower.aliases[alias] = own
    end
  end

  local function as_whisper(c)
    local names = { init_std = c.initializer_range }
    for whispers, own in pairs(own_name) do names[whispers] = c[own] end
    return setmetatable(names, { __index = c })
  end

  function tower.check(c)
    blocks.check_multiple(c, own_name.d_model, own_name.encoder_attention_heads)
  end

  function tower.add_parameters(c, add)
    encoder.add_parameters(as_whisper(c), add, blocks.normal(c.initializer_range))
  end

  function tower.new_tower(c)
    local run = encoder.new(as_whisper(c), row.pool)
    return function(params, inputs, o, kept)
      return run(params, inputs.input_features, o, row.seen and row.seen(c, inputs), kept)
    end
  end

  return tower
end
