--- WavLM (Chen et al., 2021), as Hugging Face's `WavLMForCTC`, `WavLMForSequenceClassification` and
--- `WavLMModel`: wav2vec 2.0 whose scores have relative positions, gated by each frame.
local blocks = require "redco.models.layers.blocks"
local new_family = require "redco.models.kinds.wav2vec2_like"
local new_bias = require("redco.models.layers.relative_bias").new
local torch = require "redco.torch"

-- Returns the gate [B, H, T, 1] of frames x [B, T, size].
local function gate(params, name, x, n_heads, o)
  local heads = blocks.split_heads(x, n_heads)
  local both = blocks.linear(params, name .. "gru_rel_pos_linear", heads, o)
  local a, b = unpack(torch.sigmoid(both:unflatten(-1, { 2, 4 }):sum(-1)):chunk(2, -1))
  return a * (b * params[name .. "gru_rel_pos_const"] - 1) + 2
end

return new_family {
  model_type = "wavlm",
  models = "WavLM",
  class = "WavLM",
  prefix = "wavlm",
  more = { num_buckets = 320, max_bucket_distance = 800, ctc_loss_reduction = "mean" },
  optional = { "num_ctc_classes" },
  add_to_attention = function(c, add, name, i)
    local n_heads, normal = c.num_attention_heads, blocks.normal(c.initializer_range)
    add(name .. "gru_rel_pos_const", { 1, n_heads, 1, 1 }, blocks.ones)
    blocks.add_linear(add, name .. "gru_rel_pos_linear", c.hidden_size / n_heads, 8, normal)
    if i == 0 then
      add(name .. "rel_attn_embed.weight", { c.num_buckets, n_heads }, blocks.normal(1))
    end
  end,
  new_attention = function(c)
    local n_heads = c.num_attention_heads
    local attention = blocks.new_attention(n_heads, { q = ".q_proj", k = ".k_proj",
      v = ".v_proj", out = ".out_proj" }, c.attention_dropout)
    return function(params, x, mask, o)
      local bias = new_bias(c.num_buckets, c.max_bucket_distance, { device = x.device,
        length = x:size(1) })(params, "encoder.layers.0.attention.rel_attn_embed")
      return function(i, y)
        local name = ("encoder.layers.%d.attention"):format(i)
        local scores = gate(params, name .. ".", y, n_heads, o) * bias
        if mask.mask then scores = scores + mask.mask end
        return attention.to_itself(params, name, y, { mask = scores }, o)
      end
    end
  end,
}
