--- Adapters as kohya's scripts name and hold them: names of the original layout with underscores,
--- and one adapter for layers that the original has joined, as q, k and v.
local fail = require "redco.fail"
local original_names = require "redco.diffusion.original_names"
local torch = require "redco.torch"

local kohya = {}

-- Prefixes of names by part of a pipeline. The first is written if there is one text encoder.
local starts = {
  unet = { "lora_unet_" }, transformer = { "lora_unet_" },
  text_encoder = { "lora_te_", "lora_te1_" }, text_encoder_2 = { "lora_te2_" },
  text_encoder_3 = { "lora_te3_" },
}

--- Whether adapters of this part of a pipeline have a place in a file.
function kohya.is_part(name) return starts[name] ~= nil end

local function part_of(layer) return layer.name:match "^([^.]+)%.(.*)$" end

-- Returns function(name of a layer) -> original name or nil, form; `name_of` does so for weights.
local function of_layers(name_of)
  return function(name)
    local original, form = name_of(name .. ".weight")
    return original and original:match "^(.*)%.weight$", form
  end
end

-- Returns such a function for a transformer with these layers, or nil if its names are not known.
local function transformer_names(all)
  local own = {}
  for _, layer in ipairs(all) do
    local part, name = part_of(layer)
    if part == "transformer" then own[name .. ".weight"] = true end
  end
  if own["x_embedder.weight"] then return nil end  -- Flux
  return of_layers(own["context_embedder.weight"] and original_names.sd3(nil, own)
    or original_names.dit())
end

local function flat(start, name) return start .. name:gsub("%.", "_") end

--- Returns the layers that the names in a file mean: {name = {{layer, form}, ...}}.
function kohya.layers_by_name(pipeline, all)
  local found = {}
  local function add(name, layer, form)
    found[name] = found[name] or {}
    table.insert(found[name], { layer = layer, form = form })
  end
  local originals = { transformer = transformer_names(all),
    unet = pipeline.unet and of_layers(original_names.unet(pipeline.unet.config)) }
  for _, layer in ipairs(all) do
    local part, name = part_of(layer)
    for _, start in ipairs(starts[part] or {}) do
      local original, form
      if originals[part] then original, form = originals[part](name) end
      add(flat(start, name), layer)
      if original and original ~= name then add(flat(start, original), layer, form) end
    end
  end
  return found
end

--- Returns the matrices for one layer of an adapter, or nil if the adapter is only of the others.
--- Of a joined adapter, ranks of other layers are left out: their part of `b` is zero here.
function kohya.own_matrices(a, b, form)
  local own = original_names.from_original(b, form)
  if type(form) ~= "number" then return a, own end
  local used = own:ne(0):any(0):nonzero():flatten()
  if used:numel() > 0 then return a:index_select(0, used), own:index_select(1, used) end
  if b:ne(0):any():item() then return nil end
  return a, own  -- a new adapter
end

-- Joins the adapters `parts` {[0] = q, k, v}; some may be nil. Each part reads its own ranks.
local function joined(parts)
  local downs, ups, rank, first = {}, {}, 0, nil
  for i = 0, 2 do
    if parts[i] then
      first = first or parts[i]
      downs[#downs + 1], rank = parts[i].a, rank + parts[i].a:size(0)
    end
  end
  local at = 0
  for i = 0, 2 do
    local part = parts[i]
    if part then
      local r = part.a:size(0)
      ups[i + 1] = torch.constant_pad_nd(part.b * (part.scaling / first.scaling),
        { at, rank - at - r }, 0)
      at = at + r
    else
      ups[i + 1] = first.b:new_zeros { first.b:size(0), rank }
    end
  end
  return { a = torch.cat(downs, 0), b = torch.cat(ups, 0), scaling = first.scaling }
end

--- Returns the tensors of a file for adapters {layer, a, b, scaling}. `all`: all layers of the
--- parameters.
function kohya.tensors(adapters, all, has_two_text_encoders)
  local tensors, groups, stems = {}, {}, {}
  local original_of = transformer_names(all)
  local function write(stem, adapter)
    tensors[stem .. ".lora_down.weight"], tensors[stem .. ".lora_up.weight"] = adapter.a, adapter.b
    tensors[stem .. ".alpha"] = torch.tensor(adapter.scaling * adapter.a:size(0),
      { dtype = adapter.a.dtype })
  end
  for _, adapter in ipairs(adapters) do
    local part, name = part_of(adapter.layer)
    local start, original, form = starts[part][has_two_text_encoders and 2 or 1] or starts[part][1]
    if part == "transformer" then
      if not original_of then
        fail("diffusion.save_lora: kohya's format is not supported for %s of Flux: give format = "
          .. "\"diffusers\"", adapter.layer.name)
      end
      original, form = original_of(name)
    end
    local stem = flat(start, form ~= "shared" and original or name)
    if type(form) == "number" then
      if not groups[stem] then groups[stem], stems[#stems + 1] = {}, stem end
      groups[stem][form] = adapter
    else
      if form == "swapped" then
        adapter.b = original_names.from_original(adapter.b, form)
      end
      write(stem, adapter)
    end
  end
  for _, stem in ipairs(stems) do write(stem, joined(groups[stem])) end
  return tensors
end

return kohya
