--- Conversions of tensors in GGUF files to those of Hugging Face's models, and back. They move
--- whole rows, so that they also apply to blocks of quantized numbers; those of norms add a number.
local torch = require "redco.torch"

local convert = {}

-- Reorders the rows of a head. In the files, the two elements that rotary positions rotate together
-- are adjacent; in Hugging Face's models, all first elements precede all second ones.
local function in_halves(t, n_heads)
  return t:view { n_heads, t:size(0) / n_heads / 2, 2, -1 }:transpose(1, 2):reshape(t.shape)
end

--- Of q and k in files whose rotary positions turn neighbours.
convert.neighbours_of_heads = {
  attn_q = function(t, c) return in_halves(t, c.num_attention_heads) end,
  attn_k = function(t, c) return in_halves(t, c.num_key_value_heads) end,
}

--- Of Gemma's norms: the files have the factor, the models its distance from 1.
convert.norms_from_one = {}
for _, part in ipairs { "attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm", "output_norm",
  "post_attention_norm", "post_ffw_norm" } do
  convert.norms_from_one[part] = -1
end

--- Of q, k and v one after the other, to q, k and v of each head.
function convert.heads_together(t, c)
  local n_heads = c.num_attention_heads
  return t:view { 3, n_heads, t:size(0) / n_heads / 3, -1 }:transpose(0, 1):reshape(t.shape)
end

--- Of q, k and v one after the other, to the heads of q that share one of k and v, and these.
function convert.groups_together(t, c)
  local n_groups, n_heads = c.num_kv_heads, c.num_attention_heads
  local size = t:size(0) / (n_heads + 2 * n_groups)
  local q, k, v = unpack(t:split({ n_heads * size, n_groups * size, n_groups * size }, 0))
  local parts = { q:reshape { n_groups, n_heads / n_groups, size, -1 },
    k:reshape { n_groups, 1, size, -1 }, v:reshape { n_groups, 1, size, -1 } }
  return torch.cat(parts, 1):reshape(t.shape)
end

--- Returns a tensor of a file as Hugging Face's models have it. `how` is an entry of a row's table,
--- or nil.
function convert.read(t, how, config)
  if type(how) == "number" then return t + how end
  return how and how(t, config) or t
end

--- The inverse.
function convert.written(t, how, config)
  if type(how) == "number" then return t - how end
  if not how then return t end
  return t:index_select(0, how(torch.arange(t:size(0)), config):argsort())
end

return convert
