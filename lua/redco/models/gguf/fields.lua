--- The settings of models in GGUF files. A field is read from the keys of a file into a
--- configuration, `read(r, c)`, and written from a configuration to keys, `write(w, c)`; what a
--- file says in no key has no `write`. `r` is an object of reader.lua, `w` one of values.lua.
local fail = require "redco.fail"
local json = require "redco.models.json"

local fields = {}

local function default_of(default, c)
  if type(default) == "function" then return default(c) end
  return default
end

-- Returns function(key, name, default) -> field: `name` is the key in the configuration, `default`
-- a value or a function(c).
local function of_kind(kind)
  return function(key, name, default)
    return {
      read = function(r, c) c[name] = r[kind](key, default_of(default, c)) end,
      write = function(w, c) w[kind](key, c[name]) end,
    }
  end
end

fields.count = of_kind "count"
fields.fraction = of_kind "fraction"
fields.flag = of_kind "flag"

--- A factor, for which 0 also stands for the default.
function fields.scale(key, name, default)
  return {
    read = function(r, c)
      local value = r.fraction(key, 0)
      c[name] = value ~= 0 and value or default_of(default, c)
    end,
    write = function(w, c) w.fraction(key, c[name]) end,
  }
end

--- A cap of numbers, of which 0 is none.
function fields.cap(key, default)
  return {
    read = function(r, c)
      local value = r.fraction(key, default)
      if value == 0 then return json.set_null(c, key) end
      c[key] = value
    end,
    write = function(w, c)
      if c[key] or default ~= 0 then w.fraction(key, c[key] or 0) end
    end,
  }
end

--- Settings that all models of the architecture share.
function fields.constants(values)
  return { read = function(_, c)
    for name, value in pairs(values) do c[name] = value end
  end }
end

--- Whether there is a tensor.
function fields.presence(name, tensor)
  return { read = function(r, c) c[name] = r.has(tensor) end }
end

--- The number of experts, and of those that are chosen.
function fields.experts(name)
  return {
    read = function(r, c)
      c[name] = r.count "expert_count"
      c.num_experts_per_tok = r.count "expert_used_count"
      if c[name] > 4096 then
        fail("%s: %s is %d, expected at most 4096", r.path, r.name "expert_count", c[name])
      end
    end,
    write = function(w, c)
      w.count("expert_count", c[name])
      w.count("expert_used_count", c.num_experts_per_tok)
    end,
  }
end

--- The window of all layers, of which 0 is none.
fields.window = {
  read = function(r, c)
    local window = r.number("attention.sliding_window", 0)
    c.sliding_window = window > 0 and r.count "attention.sliding_window" or nil
  end,
  write = function(w, c) w.count("attention.sliding_window", c.sliding_window or 0) end,
}

-- Whether layer i has a window. A number means all layers but the last of each `pattern`; a list
-- has one flag for each layer.
local function has_window(pattern, i)
  if type(pattern) == "number" then return pattern == 0 or i % pattern < pattern - 1 end
  local flag = nil
  if type(pattern) == "table" then flag = pattern[i + 1] end
  if type(flag) == "number" then return flag ~= 0 end
  return flag
end

--- Returns fields for the window (`default` if the file has none; 0 means no window) and for the
--- layers that have it: all but the last of each `period`, unless the file says otherwise.
function fields.windows(default, period)
  local key = "attention.sliding_window_pattern"
  return {
    read = function(r, c)
      local pattern, window = r.value(key), r.number("attention.sliding_window", default)
      if pattern == nil then pattern = period end
      c.sliding_window = window > 0 and r.count("attention.sliding_window", window) or nil
      c.layer_types = {}
      for i = 0, c.num_hidden_layers - 1 do
        local flag = window > 0 and has_window(pattern, i)
        if type(flag) ~= "boolean" then
          fail("%s: %s is a %s, expected a number, or a boolean for each of %d layers", r.path,
            r.name(key), type(pattern), c.num_hidden_layers)
        end
        c.layer_types[i + 1] = flag and "sliding_attention" or "full_attention"
      end
    end,
    write = function(w, c) w.count("attention.sliding_window", c.sliding_window or 0) end,
  }
end

--- The scale of Gemma's queries. Its largest models, known by their number of layers, have another.
function fields.query_scale(n_layers_of_largest)
  return { read = function(_, c)
    c.query_pre_attn_scalar = c.num_hidden_layers == n_layers_of_largest
      and c.hidden_size / c.num_attention_heads or c.head_dim
    c.hidden_activation = "gelu_pytorch_tanh"
  end }
end

return fields
