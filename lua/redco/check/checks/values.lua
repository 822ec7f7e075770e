--- Checks of numbers: inputs and labels that are not text.
local attempt = require "redco.check.attempt"
local data = require "redco.data"
local native = require "redco.native"
local new_tally = require "redco.check.tally"
local torch = require "redco.torch"

local few = 8  -- examples that may well be alike

local function is_floating(x) return x.dtype:find "^b?float" ~= nil end

-- Calls f(row, example) for each example. Returns false if a tensor has no row for each example.
local function each_row(list, f)
  for _, each in ipairs(list) do
    local value = each.value
    if value:dim() == 0 or value:size(0) ~= #each.examples then return false end
    for i, example in ipairs(each.examples) do f(value[i - 1], example) end
  end
  return true
end

local function sorted_names(tensors)
  local names = {}
  for name in pairs(tensors) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function are_not_finite(s)
  local tally, found = new_tally(), {}
  for _, name in ipairs(sorted_names(s.tensors)) do
    if not name:find "mask" and not name:find "bias" then
      for _, each in ipairs(s.tensors[name]) do
        local value = each.value
        if is_floating(value) and not value:isfinite():all():item() then
          if found[#found] ~= name then found[#found + 1] = name end
          each_row({ each }, function(row, example)
            if not row:isfinite():all():item() then tally.add(example) end
          end)
        end
      end
    end
  end
  if #found == 0 then return nil end
  local count, of, where = tally.result(#s.chosen)
  return count or 1, of, table.concat(found, ", ") .. (where and "; " .. where or "")
end

-- The number of rows if all equal the first one, else nil.
local function count_alike(list)
  local first, count, are_alike = nil, 0, true
  local is_whole = each_row(list, function(row)
    count = count + 1
    if not first then first = row end
    are_alike = are_alike and row.shape == first.shape and row:equal(first)
  end)
  return is_whole and are_alike and count >= few and count or nil
end

local label_names = { "labels", "label", "targets", "target", "y", "classes", "class" }

local function is_input(name)
  for _, label in ipairs(label_names) do
    if name == label then return false end
  end
  return not name:find "mask"
end

-- The number of examples if each input is the same in all of them.
local function are_constant(s)
  local found, count = {}, nil
  for _, name in ipairs(sorted_names(s.tensors)) do
    if is_input(name) then
      count = count_alike(s.tensors[name])
      if not count then return nil end
      found[#found + 1] = name
    end
  end
  return count, count, table.concat(found, ", ")
end

-- The tensor of one label for each example, and its name.
local function labels_of(s)
  for _, name in ipairs(label_names) do
    local list = s.tensors[name]
    if list and list[1].value:dim() == 1 then return list, name end
  end
end

local function labels_are_constant(s)
  local list, name = labels_of(s)
  local count = list and count_alike(list)
  return count, count, count and ("%s is always %s"):format(name, list[1].value[0]:item())
end

local function are_sorted(s)
  local list = labels_of(s)
  if not list or s.arguments.shuffle ~= false then return nil end
  local before, count, n_changes = nil, 0, 0
  for _, each in ipairs(list) do
    for _, label in ipairs(each.value:tolist()) do
      if before and label < before then return nil end
      if before and label > before then n_changes = n_changes + 1 end
      before, count = label, count + 1
    end
  end
  if n_changes > 0 and count >= few and n_changes < count / 2 then return count, count end
end

-- The lowest and highest value that an image processor gives.
local function range_of(process)
  local ok, low, high = attempt(function()
    local function extreme(value)
      return process { torch.full({ 3, 256, 256 }, value, { dtype = "uint8" }) }
    end
    return extreme(0):min():item(), extreme(255):max():item()
  end)
  if ok then return low, high end
end

-- The script's image processor, or the one in the folder of its model.
local function processor_of(s)
  if s.made.processors[1] then return s.made.processors[1] end
  local folder = s.model and s.made.folders[s.model]
  if folder and native.file_exists(folder .. "/preprocessor_config.json") then
    local ok, process = attempt(data.image_processor, folder)
    return ok and process or nil
  end
end

local function image_extremes(s)
  local low, high, count = math.huge, -math.huge, 0
  for _, name in ipairs { "pixel_values", "images", "image" } do
    for _, each in ipairs(s.tensors[name] or {}) do
      if is_floating(each.value) and each.value:dim() == 4 then
        low = math.min(low, each.value:min():item())
        high = math.max(high, each.value:max():item())
        count = count + #each.examples
      end
    end
  end
  return low, high, count
end

local function are_out_of_range(s)
  local low, high, count = image_extremes(s)
  if count == 0 then return nil end
  local process = processor_of(s)
  if not process then return nil end
  local least, most = range_of(process)
  if not least then return nil end
  local margin = 0.02 * (most - least)
  local is_outside = low < least - margin or high > most + margin
  -- The values are from 0 to 1, although the processor also subtracts the mean.
  local is_unshifted = least < -0.2 and low >= 0 and high <= 1
  if not is_outside and not is_unshifted then return nil end
  return count, count, ("%.3g to %.3g, the model's processor gives %.3g to %.3g"):format(low, high,
    least, most)
end

local function are_bytes(s)
  local low, high, count = image_extremes(s)
  if count == 0 or high <= 10 or processor_of(s) then return nil end
  return count, count, ("%.3g to %.3g"):format(low, high)
end

return {
  { name = "not_finite", level = "error", title = "examples with NaN or infinity",
    advice = "find out where they come from; missing values need a number",
    needs = { "tensors" }, find = are_not_finite },
  { name = "constant_inputs", level = "warning", title = "examples whose inputs are all the same",
    advice = "does collate_fn use the examples?", needs = { "tensors" }, find = are_constant },
  { name = "constant_labels", level = "warning", title = "examples that have all the same label",
    advice = "nothing is to be learned; does the file have the other classes?",
    needs = { "tensors" }, find = labels_are_constant },
  { name = "sorted_labels", level = "warning",
    title = "examples in the order of their labels, with shuffle = false",
    advice = "leave shuffle out: a batch should have several classes",
    needs = { "tensors" }, find = are_sorted },
  { name = "image_range", level = "error", title = "images with values of another range",
    advice = "prepare them with redco.data.image_processor(folder of the model)",
    needs = { "tensors" }, find = are_out_of_range },
  { name = "unscaled_images", level = "warning", title = "images with large values",
    advice = "divide by 255, unless the model does so", needs = { "tensors" }, find = are_bytes },
}
