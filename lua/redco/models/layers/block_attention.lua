--- Attention of long texts, as LongT5's encoder has it (Guo et al., 2021): a token attends to those
--- near it, and by a "transient-global" encoder_attention_type also to sums of the tokens of each
--- block of global_block_size. Keys are read in blocks of L = local_radius + 1 tokens, so memory
--- grows with the length T of the text times L. Shapes: B rows, n blocks, H heads, G sums.
local blocks = require "redco.models.layers.blocks"
local near_blocks = require "redco.models.layers.near_blocks"
local relative_bias = require "redco.models.layers.relative_bias"
local torch = require "redco.torch"

-- Returns the number of the block whose sum contains each token, [B, T], or -1 for padding; `kept`
-- is [B, T]. The sum of the last whole block also contains the tokens behind it.
local function sums_of_tokens(kept, size)
  local places = torch.arange(kept:size(1), { device = kept.device })
  local numbers = places:div(size, { rounding_mode = "floor" })
    * kept:to "int64" - kept:logical_not():to "int64"
  local ends = places:remainder(size):eq(size - 1):logical_and(numbers:ge(0))
  return torch.minimum(numbers, ends:sum({ 1 }, true) - 1)
end

--- Returns an object with the `name` of the layer, add_parameters(name, add, init, norm),
--- mask(params, name, kept, x), what all layers read, and attend(params, name, x, mask, o). `name`
--- is that of a layer, of mask that of the first one, which has biases by distance; kept [B, T] has
--- 1 for tokens and 0 for padding.
return function(c)
  local length, size = c.local_radius + 1, c.global_block_size
  local has_sums = c.encoder_attention_type == "transient-global"
  local n_buckets, most = c.relative_attention_num_buckets, c.relative_attention_max_distance
  local layer = { name = has_sums and "TransientGlobalSelfAttention" or "LocalSelfAttention" }

  function layer.add_parameters(name, add, init, is_first, norm_init)
    if not has_sums then return end
    if is_first then
      add(name .. ".global_relative_attention_bias.weight", { n_buckets, c.num_heads }, init)
    end
    add(name .. ".global_input_layer_norm.weight", { c.d_model }, norm_init)
  end

  -- Returns the bias of tokens to sums [B, n, H, L, G], and which sum each token is a part of,
  -- [B, T, G].
  local function bias_of_sums(params, name, kept, dtype)
    local n = math.floor(kept:size(1) / size)
    local own = sums_of_tokens(kept, size):unsqueeze(-1)
    local numbers = torch.arange(n, { device = kept.device })
    local is_there = numbers:le(own:amax { 1 })
    local seen = kept:unsqueeze(-1):eq(is_there:unsqueeze(1))
    local bias = blocks.embedding(params, name .. ".global_relative_attention_bias",
      relative_bias.buckets(numbers - own, n_buckets, most))
    bias = bias + near_blocks.additive(seen, dtype):unsqueeze(-1)
    return near_blocks.split(bias, length):permute { 0, 1, 4, 2, 3 }, own:eq(numbers):to(dtype)
  end

  function layer.mask(params, name, kept, x)
    kept = kept:ne(0)
    local seen = near_blocks.seen(kept, kept, length)
    local bias = relative_bias.new(n_buckets, most, { device = x.device, past = length,
      length = 2 * length })(params, name .. ".relative_attention_bias"):narrow(2, 0, length)
    bias = bias:unsqueeze(0) + near_blocks.additive(seen, x.dtype):unsqueeze(2)
    local sums
    if has_sums and kept:size(1) >= size then
      local more
      more, sums = bias_of_sums(params, name, kept, x.dtype)
      bias = torch.cat({ bias, more }, -1)
    end
    return { mask = bias:flatten(0, 1):contiguous(), sums = sums }
  end

  function layer.attend(params, name, x, mask, o)
    local sums = mask.sums and blocks.rms_norm(params, name .. ".global_input_layer_norm",
      mask.sums:transpose(1, 2):matmul(x), c.layer_norm_epsilon)
    local y = near_blocks.attention(x, sums, length, c.num_heads, function(part, z)
      return blocks.linear(params, name .. "." .. part, z, o)
    end, { mask = mask.mask, scale = 1, dropout = c.dropout_rate }, o)
    return blocks.linear(params, name .. ".o", y, o)
  end

  return layer
end
