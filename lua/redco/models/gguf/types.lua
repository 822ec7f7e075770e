--- The types of tensors in GGUF files by the type of the file, as llama-quantize of llama.cpp
--- chooses them.
local native = require "redco.native"

local types = {}

--- The numbers of files' types in `general.file_type`.
types.numbers = { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 7, q4_k_m = 15, q5_k_m = 17, q6_k = 18,
  bf16 = 32 }

--- The types of elements that are not in blocks, with their dtypes.
types.plain = { f32 = "float32", f16 = "float16", bf16 = "bfloat16" }

-- The type of most tensors in files of mixed types.
local bases = { q4_k_m = "q4_k", q5_k_m = "q5_k" }

-- Replacements for rows that are not whole blocks of 256.
local smaller = { q4_k = "q5_0", q5_k = "q5_1", q6_k = "q8_0" }

local sizes = {}
for _, type in ipairs(native.block_types) do sizes[type.name] = type.size end

-- Whether layer i has better types: the first and last eighth, and every third between.
local function is_important(i, n)
  local eighth = math.floor(n / 8)
  return i < eighth or i >= math.floor(7 * n / 8) or (i - eighth) % 3 == 2
end

-- For each part of a tensor's name, function(base, layer, facts of the model) -> type.
local parts = {}

-- The output layer, which may be the embedding.
local function output(base, _, m)
  if m.architecture == "falcon" or m.n_columns % (sizes[base] or 1) ~= 0 then return "q8_0" end
  return base == "q8_0" and base or "q6_k"
end
parts.output = output
function parts.token_embd(base, i, m) return m.is_tied and output(base, i, m) or base end

function parts.attn_v(base, i, m)
  if m.n_experts == 8 then return "q8_0" end
  if m.is_mixed and is_important(i, m.n_layers) then return "q6_k" end
  return base == "q4_k" and m.is_70b and "q5_k" or base
end
parts.attn_qkv = parts.attn_v

function parts.attn_k(base, _, m) return m.n_experts == 8 and "q8_0" or base end

function parts.attn_output(base, _, m)
  return m.n_experts == 8 and base == "q4_k" and m.is_mixed and "q5_k" or base
end

function parts.ffn_down(base, i, m)
  if base == "q4_0" and m.has_importance and i < math.floor(m.n_layers / 8) then return "q4_1" end
  if not m.is_mixed then return base end
  local better = is_important(i, m.n_layers)
  if m.architecture == "falcon" and base == "q4_k" then
    return i < math.floor(m.n_layers / 16) and "q6_k" or better and "q5_k" or base
  end
  return better and "q6_k" or base
end
parts.ffn_down_exps = parts.ffn_down

--- Whether a tensor of this name and shape is always of float32.
function types.is_small(name, shape)
  return #shape < 2 or name:find "_norm%.weight$" or name:find "ffn_gate_inp%.weight$"
    or name:find "^position_embd" or not name:find "%.weight$"
end

--- Returns the type of a tensor in a file of this type. `m` has the facts of the model:
--- architecture, n_layers, n_experts, is_tied, is_70b, has_importance.
function types.of(file_type, name, shape, m)
  if types.is_small(name, shape) then return "f32" end
  if types.plain[file_type] then return file_type end
  local n_columns = shape[#shape]
  local layer, part = name:match "^blk%.(%d+)%.([%w_]+)%."
  part = part or name:match "^([%w_]+)%."
  local base = bases[file_type] or file_type
  local facts = setmetatable({ n_columns = n_columns, is_mixed = bases[file_type] ~= nil },
    { __index = m })
  local type = parts[part] and parts[part](base, tonumber(layer), facts) or base
  if n_columns % sizes[type] ~= 0 then type = smaller[type] or type end
  return n_columns % sizes[type] == 0 and type or "f16"
end

return types
