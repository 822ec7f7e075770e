local torch = require "redco.torch"
return function(dir)
  local t, keys = torch.load(dir .. "/model.safetensors"), {}
  for n in pairs(t) do keys[#keys + 1] = n end
  return { path = dir, keys = function() return keys end,
    shape = function(_, n) return t[n].shape end, tensor = function(_, n) return t[n] end }
end
