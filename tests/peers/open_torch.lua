-- Reads the files that the list names, one a line, as a tree and as weights; prints for each a line
-- of what torch.load returned, or of its error. With a second argument it writes the tensors by
-- their paths as NUMBER.safetensors into that folder.
local ffi = require "ffi"
local redco = require "redco"
local native = require "redco.native"
local torch = redco.torch

-- Of the first element of a tensor or, with `offset`, of another of its storage.
local function address(tensor, offset)
  return tonumber(ffi.cast("intptr_t", tensor:as_strided({ 1 }, { 1 }, offset):address()))
end

-- "path dtype sizes strides offset storage" of each tensor, where storages are numbered in the
-- order of the paths, and "path value" of each other leaf.
local function described(value)
  local lines, tensors, storages, n_storages = {}, {}, {}, 0
  local function visit(path, each)
    if torch.is_tensor(each) then
      tensors[#tensors + 1] = { path, each }
    elseif type(each) == "table" then
      for key, child in pairs(each) do
        visit(path .. "." .. (type(key) == "number" and key - 1 or key), child)
      end
    elseif type(each) == "number" then
      lines[#lines + 1] = path .. (" %.17g"):format(each)
    else
      lines[#lines + 1] = path .. " " .. tostring(each):gsub("U?LL$", "")
    end
  end
  visit("", value)
  table.sort(tensors, function(a, b) return a[1] < b[1] end)
  for _, entry in ipairs(tensors) do
    local path, tensor = entry[1], entry[2]
    local offset, storage = 0, "-"
    if tensor:numel() > 0 then
      local begin, first = address(tensor, 0), address(tensor)
      local key = tostring(begin)
      offset = (first - begin) * tensor:numel() / tensor:nbytes()
      if not storages[key] then storages[key], n_storages = n_storages, n_storages + 1 end
      storage = storages[key]
    end
    lines[#lines + 1] = ("%s %s [%s] [%s] %d %s"):format(path, tensor.dtype,
      table.concat(tensor.shape, ","), table.concat(tensor:stride(), ","),
      offset, storage)
  end
  table.sort(lines)
  return table.concat(lines, ";")
end

local function read_weights(path)
  local weights, sum = native.open_weights(path), 0
  for _, name in ipairs(weights:keys()) do
    local tensor = weights:tensor(name)
    assert(tensor:is_contiguous() and tensor.dtype == weights:dtype(name), name)
    assert(table.concat(tensor.shape, ",") == table.concat(weights:shape(name), ","), name)
    if tensor:numel() > 0 then sum = sum + tensor:view { -1 }:view "uint8":sum():item() end
  end
  return sum
end

local number = 0
for path in io.lines(arg[1]) do
  local ok, value = pcall(torch.load, path)
  pcall(read_weights, path)
  if ok and arg[2] then
    local copies, paths = {}, redco.tree.paths(value)
    for i, leaf in ipairs(redco.tree.leaves(value)) do
      if torch.is_tensor(leaf) then copies[paths[i]] = leaf:clone() end
    end
    torch.save(copies, ("%s/%d.safetensors"):format(arg[2], number))
  end
  number = number + 1
  local line = ok and "ok " .. described(value) or "error " .. tostring(value)
  print((line:gsub("\n", " ")))
end
