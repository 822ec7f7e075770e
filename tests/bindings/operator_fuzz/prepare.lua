--- Defines the functions that the calls of calls.lua need, in the engine that makes the calls.
local torch = require "redco.torch"

local function numel(sizes)
  local n = 1
  for _, size in ipairs(sizes) do n = n * size end
  return n
end

-- Elements in order of the sizes; `values`: all of them, or with "range" the least and the largest.
local function elements(dtype, sizes, values, kind)
  local n = numel(sizes)
  local flat
  if values and kind ~= "range" then
    local filled = {}
    for i = 1, n do filled[i] = values[i] or 0 end
    if n == 0 then return torch.zeros(sizes, { dtype = dtype }) end
    flat = torch.tensor(filled, { dtype = "int64" })
  elseif values then
    -- From the least to the largest, round and round.
    flat = torch.full({ n }, values[1], { dtype = "int64" })
    if n > 1 then flat[n - 1] = values[2] end
  elseif kind == "nan" or kind == "huge" then
    flat = torch.full({ n }, kind == "nan" and 0 / 0 or 1e30)
  else
    flat = torch.arange(n):add(1):mul(0.618):remainder(1):add(kind == "int" and 0 or 0.01)
    if dtype:match "int" then flat = flat:mul(3) end
  end
  return flat:to(dtype):reshape(sizes)
end

local made

function T(dtype, sizes, values, kind)
  local t
  if kind == "expanded" and #sizes > 0 then
    local one = {}
    for i in ipairs(sizes) do one[i] = i == 1 and 1 or sizes[i] end
    t = elements(dtype, one, values):expand(sizes)
  else
    t = elements(dtype, sizes, values, kind)
    local last = #sizes - 1
    if kind == "transposed" and last >= 1 then
      t = t:transpose(0, last):contiguous():transpose(0, last)
    elseif kind == "sliced" and last >= 0 then
      t = torch.cat({ t, t }, last):narrow(last, 0, sizes[last + 1])
    elseif kind == "last" and last >= 0 then
      -- At the very end of its memory.
      t = torch.cat({ t, t }, 0):narrow(0, sizes[1], sizes[1])
    elseif kind == "channels_last" and last == 3 then
      t = t:contiguous { memory_format = "channels_last" }
    end
  end
  if with_gradients and t.dtype:match "^float" and t:numel() > 0 then
    t = t:detach():requires_grad_()
  end
  made[#made + 1] = t
  return t
end

-- Reads every element, and makes the backward kernels run.
local function use(value)
  if torch.is_tensor(value) then
    if value:numel() > 1e7 then return end  -- a view that repeats
    pcall(function() return value:sum():item() end)
    if value.requires_grad and value.dtype:match "^float" then
      pcall(function() value:sum():backward { retain_graph = true } end)
    end
  elseif type(value) == "table" then
    for _, each in ipairs(value) do use(each) end
  end
end

--- Makes a call; returns whether it raised no error.
function make(call)
  made = {}
  local results = { pcall(call) }
  for i = 2, #results do use(results[i]) end
  local ok = results[1]
  for _, t in ipairs(made) do use(t) end
  made = {}
  return ok, not ok and tostring(results[2]) or ""
end
