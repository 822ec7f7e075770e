--- Configurations of Hugging Face's models from the keys of GGUF files, and keys from
--- configurations.
local fail = require "redco.fail"
local new_reader = require "redco.models.gguf.reader"
local positions = require "redco.models.gguf.positions"
local rotary = require "redco.models.layers.rotary"
local tokens = require "redco.models.gguf.tokens"

-- Sets the sizes of heads and the rotary positions.
local function set_heads(file, r, row, c)
  local head_dim = r.number("attention.key_length",
    math.floor(c.hidden_size / c.num_attention_heads))
  local function expect(key, what)
    if r.number(key, head_dim) ~= head_dim then
      fail("%s: %s is %s, expected %s, %s", r.path, r.name(key), r.number(key), what, head_dim)
    end
  end
  expect("attention.value_length", "the size of a head")
  c.head_dim = row.has_head_dim and head_dim or nil
  if not row.rotary then return end
  local size = r.count("rope.dimension_count", head_dim)
  if row.rotary == "whole" then expect("rope.dimension_count", "the size of a head") end
  if size > head_dim then
    fail("%s: %s is %s, more than the size of a head, %s", r.path, r.name "rope.dimension_count",
      size, head_dim)
  end
  positions.set(file, r, c, size)
  -- A little more than the quotient, so that rounding cannot make the product smaller than `size`.
  if row.rotary == "part" then c.partial_rotary_factor = (size + 1e-6) / head_dim end
end

-- Returns the number of layers. A damaged file may claim more layers than it has tensors.
local function n_layers_of(file, r)
  local n_layers, n_tensors = r.count "block_count", #file:keys()
  if n_layers > n_tensors then
    fail("%s: %s is %d, but there are only %d tensors", r.path, r.name "block_count", n_layers,
      n_tensors)
  end
  return n_layers
end

-- Returns the size of the vocabulary, by default the number of tokens or of the embedding's rows.
local function vocab_size_of(file, r)
  local n_tokens = #(r.metadata["tokenizer.ggml.tokens"] or {})
  local embedding = "token_embd.weight"
  if n_tokens == 0 and r.has(embedding) then n_tokens = file:shape(embedding)[1] end
  return r.count("vocab_size", n_tokens)
end

local config = {}

--- Returns the configuration of a file with this architecture, and the row that is used, which may
--- be that of a variant.
function config.read(file, architecture, row)
  local r = new_reader(file, architecture)
  for _, variant in ipairs(row.variants or {}) do
    if variant.is_variant(r) then row = variant end
  end
  local c = {
    model_type = row.model_type,
    vocab_size = vocab_size_of(file, r),
    hidden_size = r.count "embedding_length",
    num_hidden_layers = n_layers_of(file, r),
    num_attention_heads = r.count "attention.head_count",
    tie_word_embeddings = not r.has "output.weight",
  }
  c[row.inner] = r.count "feed_forward_length"
  if row.kv_heads then
    c[row.kv_heads] = r.count("attention.head_count_kv", c.num_attention_heads)
  end
  if row.context then c[row.context] = r.count "context_length" end
  c[row.eps[2]] = r.fraction(row.eps[1])
  set_heads(file, r, row, c)
  tokens.set(r.metadata, c)
  for _, field in ipairs(row.fields) do field.read(r, c) end
  r.refuse_others()
  return c, row
end

--- Adds the keys of a configuration to `w`, an object of values.lua. Returns the tensors that
--- belong to it, a list of {name, type, shape, tensor}.
function config.write(w, row, c)
  w.count("vocab_size", c.vocab_size)
  -- Files name a length even for models without a greatest one.
  w.count("context_length", row.context and c[row.context] or c.seq_length or c.hidden_size)
  w.count("embedding_length", c.hidden_size)
  w.count("block_count", c.num_hidden_layers)
  w.count("feed_forward_length", c[row.inner] or 4 * c.hidden_size)
  w.count("attention.head_count", c.num_attention_heads)
  if row.kv_heads then w.count("attention.head_count_kv", c[row.kv_heads]) end
  w.fraction(row.eps[1], c[row.eps[2]])
  if row.has_head_dim then
    w.count("attention.key_length", rotary.head_dim(c))
    w.count("attention.value_length", rotary.head_dim(c))
  end
  local tensors = {}
  if row.rotary then
    w.count("rope.dimension_count", rotary.size(c))
    tensors = positions.write(w, c, row)
  end
  for _, field in ipairs(row.fields) do
    if field.write then field.write(w, c) end
  end
  return tensors
end

return config
