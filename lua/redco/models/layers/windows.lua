--- Which layers of a decoder see only a window of the last tokens.
local fail = require "redco.fail"

local windows = {}

--- Completes layer_types: `is_sliding(i)` of layer i, from 0, where the configuration has none.
function windows.complete(c, is_sliding)
  if c.layer_types then return end
  c.layer_types = {}
  for i = 0, c.num_hidden_layers - 1 do
    c.layer_types[i + 1] = is_sliding(i) and "sliding_attention" or "full_attention"
  end
end

--- Completes layer_types of configurations in which the layers from max_window_layers on have
--- windows.
function windows.complete_last(c)
  local has_windows = c.use_sliding_window and c.sliding_window ~= nil
  windows.complete(c, function(i) return has_windows and i >= c.max_window_layers end)
end

--- Returns the window of layer i, or nil, by layer_types.
function windows.of_types(c)
  local window = c.sliding_window
  if c.use_sliding_window == false then window = nil end
  for _, kind in ipairs(c.layer_types) do
    if kind == "sliding_attention" and not window then
      fail("%s: layer_types have sliding_attention, but there is no sliding_window%s", c.model_type,
        c.use_sliding_window == false and ": use_sliding_window is false" or "")
    end
  end
  return function(i) return c.layer_types[i + 1] == "sliding_attention" and window or nil end
end

--- Returns the window of all layers, or nil.
function windows.of_all(c)
  return function() return c.sliding_window end
end

return windows
